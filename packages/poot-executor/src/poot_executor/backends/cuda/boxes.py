"""Matrices as Hopper's copy engine takes them: in boxes of rows of 128 bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from poot_executor.errors import BackendUnavailableError, GraphError

MAP_BYTES, _MAP_ALIGNMENT = 128, 64
COLUMNS = 64  # of a box: 128 bytes
_MOST_ROWS = 256
# Numbers of cuda.h: CU_TENSOR_MAP_...
_BFLOAT16, _INTERLEAVE_NONE, _SWIZZLE_128, _L2_256, _FILL_ZEROS = 9, 0, 3, 3, 0


@dataclass(frozen=True, slots=True)
class Boxes:
    """A matrix (R, C) of bfloat16, columns next to each other, that a kernel copies in boxes (rows, 64).

    A box lies in shared memory as rows of 128 bytes, in which chunks of 16 bytes have changed places by exclusive or
    with the row modulo 8. What is outside of the matrix is zero. A kernel takes it as `const __grid_constant__ BoxMap`.
    With `pieces` C is a multiple of 64, rows are a multiple of 8, and that many boxes next to each other are copied at
    once, one after another. With `halves` a box has rows of the matrix's upper and lower half, eight of each in
    turn; R and rows are multiples of 16. Raises GraphError for a matrix that the engine does not take.
    """

    tensor: torch.Tensor
    rows: int
    pieces: int | None = None
    halves: bool = False

    def __post_init__(self) -> None:
        tensor = self.tensor
        wrong = (
            tensor.dtype != torch.bfloat16
            or tensor.dim() != 2
            or tensor.stride(1) != 1
            or not tensor.numel()
            or tensor.stride(0) < tensor.shape[1]
            or tensor.stride(0) % 8
            or tensor.data_ptr() % 16
            or not 1 <= self.rows <= _MOST_ROWS
        )
        if not wrong and self.pieces is not None:
            wrong = tensor.shape[1] % COLUMNS or self.rows % 8 or not 1 <= self.pieces <= tensor.shape[1] // COLUMNS
        if not wrong and self.halves:
            wrong = self.pieces is not None or len(tensor) % 16 or self.rows % 16
        if wrong:
            raise GraphError(f"no boxes of {self.rows} rows are cut from {tuple(tensor.shape)} {tensor.dtype}")


class BoxMap(ctypes.Structure):
    """CUtensorMap: 128 bytes that only the driver knows."""

    _fields_ = (("words", ctypes.c_uint64 * 16),)


def encode(boxes: Boxes) -> BoxMap:
    """The map that a kernel is given. Raises GraphError where the driver refuses it, BackendUnavailableError."""
    tensor, room = boxes.tensor, ctypes.create_string_buffer(MAP_BYTES + _MAP_ALIGNMENT)
    made = BoxMap.from_buffer(room, -ctypes.addressof(room) % _MAP_ALIGNMENT)
    rows, columns = tensor.shape
    pitch, sizes, pitches, box = tensor.stride(0) * 2, [columns, rows], [], [COLUMNS, boxes.rows]
    if boxes.pieces is not None:
        sizes, pitches, box = [COLUMNS, rows, columns // COLUMNS], [COLUMNS * 2], [*box, boxes.pieces]
    if boxes.halves:
        half = rows // 2
        sizes, pitches, box = [columns, 8, 2, half // 8], [half * pitch, 8 * pitch], [COLUMNS, 8, 2, boxes.rows // 16]
    dimensions = len(sizes)
    status = _encoder()(
        ctypes.byref(made), _BFLOAT16, dimensions, ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * dimensions)(*sizes), (ctypes.c_uint64 * (dimensions - 1))(pitch, *pitches),
        (ctypes.c_uint32 * dimensions)(*box), (ctypes.c_uint32 * dimensions)(*[1] * dimensions),
        _INTERLEAVE_NONE, _SWIZZLE_128, _L2_256, _FILL_ZEROS,
    )  # fmt: skip
    if status:
        raise GraphError(f"the driver cuts no boxes of {boxes.rows} rows from {tuple(tensor.shape)}: status {status}")
    return made


@cache
def _encoder() -> Callable[..., int]:
    try:
        encoder: Callable[..., int] = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise BackendUnavailableError(f"the NVIDIA driver has no maps of tensors: {error}") from error
    return encoder
