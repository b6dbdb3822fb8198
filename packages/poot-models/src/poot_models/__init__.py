"""poot-models: checkpoint readers, tokenizers, chat templates, and model families as graph builders.

`load(path)` opens a GGUF file, a safetensors directory or a model of the hub as a ModelHandle. Importing this package
imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poot_models.errors import ModelError

if TYPE_CHECKING:
    from poot_models.handle import ModelHandle
    from poot_models.loader import load

__all__ = ["ModelError", "ModelHandle", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "load":
        from poot_models.loader import load

        return load
    if name == "ModelHandle":
        from poot_models.handle import ModelHandle

        return ModelHandle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
