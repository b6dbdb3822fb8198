"""Weights to float32 on the host: the definition that every kernel of a packed weight is compared with.

A new encoding is a value in `types.py`, a file of decoders, and a line in `_decode`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from poot_executor.encodings.dense import decode_dense
from poot_executor.encodings.ggml import decode_ggml
from poot_executor.encodings.types import Dense, Encoding, Ggml, WeightSource
from poot_executor.errors import EncodingError

CHUNK_ELEMENTS = 1 << 20
"""Elements decoded at a time: temporaries stay in cache, and below 16 MiB."""


def dequantise(source: WeightSource, out: torch.Tensor | None = None) -> torch.Tensor:
    """`source` as a contiguous float32 host tensor of its shape, in `out` when it is given.

    Bit for bit ggml's reference. EncodingError: an encoding with no numbers to decode, or an unfit `out`.
    """
    if out is None:
        out = torch.empty(source.shape, dtype=torch.float32)
    else:
        _check_out(source, source.shape, out)
    _decode(source.encoding, byte_tensor(source), out.view(-1))
    return out


def dequantise_rows(source: WeightSource, row_ids: torch.Tensor, out: torch.Tensor) -> None:
    """Rows `row_ids` (k,) int32 or int64 of a matrix `source` (rows, columns) -> `out` (k, columns) float32.

    EncodingError: `source` is no matrix, an id is out of range, or `out` is unfit.
    """
    if len(source.shape) != 2:
        raise EncodingError(f"weight {source.name!r} of shape {list(source.shape)} has no rows to gather")
    if row_ids.ndim != 1 or row_ids.dtype not in (torch.int32, torch.int64) or row_ids.device.type != "cpu":
        raise EncodingError(f"row ids must be a 1-D int32 or int64 host tensor, not {row_ids.dtype} {row_ids.ndim}-D")
    rows, columns = source.shape
    count = row_ids.shape[0]
    _check_out(source, (count, columns), out)
    if count == 0:
        return
    lowest, highest = (int(bound) for bound in torch.aminmax(row_ids))
    if lowest < 0 or highest >= rows:
        raise EncodingError(f"weight {source.name!r} has rows 0 to {rows - 1}, not {lowest if lowest < 0 else highest}")
    packed = byte_tensor(source).view(rows, -1)
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, count, step):
        gathered = packed.index_select(0, row_ids[start : start + step])
        _decode(source.encoding, gathered.view(-1), out[start : start + step].view(-1))


def byte_tensor(source: WeightSource) -> torch.Tensor:
    """The weight's bytes as a 1-D uint8 tensor over the same memory, which it keeps alive. Never write to it."""
    # Torch has no read-only tensors and warns at a read-only array, so it is handed a writable alias.
    alias: npt.NDArray[np.uint8] = np.asarray(_WritableAlias(source.data))
    return torch.from_numpy(alias)


class _WritableAlias:
    """An array's memory without its read-only flag, by numpy's `__array_interface__` protocol."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, array: npt.NDArray[np.uint8]) -> None:
        self._owner = array
        self.__array_interface__: dict[str, Any] = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _check_out(source: WeightSource, shape: tuple[int, ...], out: torch.Tensor) -> None:
    fits = tuple(out.shape) == shape and out.dtype == torch.float32 and out.device.type == "cpu" and out.is_contiguous()
    if not fits:
        raise EncodingError(
            f"weight {source.name!r} needs a contiguous float32 host tensor of shape {list(shape)}, "
            f"not {out.dtype} {list(out.shape)} on {out.device}"
        )


def _decode(encoding: Encoding, packed: torch.Tensor, out: torch.Tensor) -> None:
    """packed: 1-D uint8; out: 1-D float32, as many elements as `packed` holds."""
    size = encoding.block_size
    blocks = packed.view(-1, encoding.block_bytes)
    values = out.view(-1, size)
    step = CHUNK_ELEMENTS // size
    for start in range(0, blocks.shape[0], step):
        chunk, into = blocks[start : start + step], values[start : start + step]
        match encoding:
            case Dense():
                decode_dense(encoding, chunk, into)
            case Ggml():
                decode_ggml(encoding, chunk, into)
