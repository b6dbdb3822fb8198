"""Decoders of dense dtypes."""

from __future__ import annotations

import torch

from poot_executor.encodings.types import Dense
from poot_executor.errors import EncodingError


def decode_dense(encoding: Dense, blocks: torch.Tensor, out: torch.Tensor) -> None:
    """blocks (n, itemsize) uint8 -> out (n, 1) float32.

    EncodingError: an integer dtype or F64, which have no weights to decode.
    """
    match encoding.dtype:
        case "F32":
            dtype = torch.float32
        case "F16":
            dtype = torch.float16
        case "BF16":
            dtype = torch.bfloat16
        case _:
            raise EncodingError(f"{encoding.dtype} elements are no weights; only F32, F16 and BF16 dequantise")
    if blocks.data_ptr() % dtype.itemsize:  # a safetensors header need not align its data
        blocks = blocks.clone()
    out.copy_(blocks.view(dtype))
