"""Small dense vectors as numbers, for what a configuration keeps among the weights. No torch here."""

from __future__ import annotations

import numpy as np

from poot_executor.encodings import Dense, WeightSource
from poot_models.encodings.config_methods import refuse_other_dtypes
from poot_models.errors import UnsupportedEncodingError


def numbers(source: WeightSource) -> list[float]:
    """All elements in order. UnsupportedEncodingError: another encoding than F32, F16 or BF16."""
    if not isinstance(source.encoding, Dense):
        raise UnsupportedEncodingError(f"tensor {source.name} is encoded as {source.encoding}; it must be dense")
    refuse_other_dtypes([source])
    match source.encoding.dtype:
        case "BF16":  # the upper half of a float32
            values = (source.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case "F16":
            values = source.data.view("<f2").astype(np.float32)
        case _:
            values = source.data.view("<f4")
    found: list[float] = values.astype(np.float64).tolist()
    return found
