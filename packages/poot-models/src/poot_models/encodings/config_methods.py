"""What config.json says of how a safetensors checkpoint's weights are packed, and which dtypes hold weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from poot_executor.encodings import Dense, WeightSource
from poot_models.errors import UnsupportedEncodingError

WEIGHT_DTYPES = ("F32", "F16", "BF16")
"""Dense dtypes whose elements are weights; the others hold ids, masks and packed integers."""


def refuse_packed(config: Mapping[str, Any]) -> None:
    """UnsupportedEncodingError where `quantization_config` is there: GPTQ, AWQ, FP8 and others are not read.

    Without this the first product would miss its weight, which says little.
    """
    stated = config.get("quantization_config") or config.get("compression_config")
    if not stated:
        return
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    raise UnsupportedEncodingError(
        f"config.json says that the weights are quantised by {str(method or 'a method without a name')[:40]}, which is "
        "not read: take the model in BF16, F16 or F32, or a quantised GGUF file of it"
    )


def refuse_other_dtypes(sources: Iterable[WeightSource]) -> None:
    """UnsupportedEncodingError for a weight whose elements are no weights, such as I8."""
    for source in sources:
        if isinstance(source.encoding, Dense) and source.encoding.dtype not in WEIGHT_DTYPES:
            raise UnsupportedEncodingError(
                f"tensor {source.name} is of dtype {source.encoding.dtype}, which is no weight's; "
                f"{', '.join(WEIGHT_DTYPES)} and ggml's block formats are"
            )
