"""What a checkpoint is and what would become of it, without running it: the facts behind `poot-models inspect`."""

from poot_models.inspection.inspect import inspect_model
from poot_models.inspection.report import Report
from poot_models.inspection.show import lines

__all__ = ["Report", "inspect_model", "lines"]
