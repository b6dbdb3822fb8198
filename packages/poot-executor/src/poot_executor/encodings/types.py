"""Weight encodings as values, and one weight as a view of its file. No torch here.

Block layouts: ggml's `ggml-common.h` (`block_q4_0` and so on). A block is the smallest run of consecutive
elements of a row that can be decoded alone; a dense dtype is a block of one element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from poot_executor.errors import EncodingError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_DENSE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "F64": 8,
        "F32": 4,
        "F16": 2,
        "BF16": 2,
        "I64": 8,
        "I32": 4,
        "I16": 2,
        "I8": 1,
        "U64": 8,
        "U32": 4,
        "U16": 2,
        "U8": 1,
        "BOOL": 1,
    }
)

# name -> (elements, bytes) of a block
_GGML_BLOCKS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "Q4_0": (32, 18),
        "Q4_1": (32, 20),
        "Q5_0": (32, 22),
        "Q5_1": (32, 24),
        "Q8_0": (32, 34),
        "Q2_K": (256, 84),
        "Q3_K": (256, 110),
        "Q4_K": (256, 144),
        "Q5_K": (256, 176),
        "Q6_K": (256, 210),
    }
)


@dataclass(frozen=True, slots=True)
class Dense:
    """Plain little-endian elements. `dtype` is a safetensors name; only F32, F16 and BF16 dequantise."""

    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in _DENSE_BYTES:
            raise EncodingError(f"no dense dtype {self.dtype!r}; known: {', '.join(_DENSE_BYTES)}")

    @property
    def block_size(self) -> int:
        return 1

    @property
    def block_bytes(self) -> int:
        return _DENSE_BYTES[self.dtype]

    def __str__(self) -> str:
        return self.dtype


@dataclass(frozen=True, slots=True)
class Ggml:
    """A ggml block format. `name` is ggml's own, such as "Q4_K"."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in _GGML_BLOCKS:
            raise EncodingError(f"no ggml encoding {self.name!r}; known: {', '.join(_GGML_BLOCKS)}")

    @property
    def block_size(self) -> int:
        return _GGML_BLOCKS[self.name][0]

    @property
    def block_bytes(self) -> int:
        return _GGML_BLOCKS[self.name][1]

    def __str__(self) -> str:
        return self.name


Encoding: TypeAlias = Dense | Ggml


def block_size(encoding: Encoding) -> int:
    """Elements in a block."""
    return encoding.block_size


def block_bytes(encoding: Encoding) -> int:
    """Bytes in a block."""
    return encoding.block_bytes


def nbytes(encoding: Encoding, shape: tuple[int, ...]) -> int:
    """Bytes of a weight of row-major `shape` (last dimension contiguous).

    EncodingError: a dimension below 1, or a last dimension that is no whole number of blocks.
    """
    if any(dim < 1 for dim in shape):
        raise EncodingError(f"shape {list(shape)} has a dimension below 1")
    size = encoding.block_size
    columns = shape[-1] if shape else 1
    if columns % size:
        raise EncodingError(
            f"the last dimension of shape {list(shape)} is no multiple of {size}, the block size of {encoding}"
        )
    return prod(shape) // size * encoding.block_bytes


@dataclass(frozen=True, slots=True, eq=False)
class WeightSource:
    """One weight as it lies in its file.

    shape: row-major, last dimension contiguous: (out, in) for a linear layer.
    data: 1-D uint8, `nbytes(encoding, shape)` long, read-only; usually a view that keeps a file map alive.
    EncodingError: `data` is not that.
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    data: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.data.dtype.str != "|u1" or self.data.ndim != 1 or not self.data.flags.c_contiguous:
            raise EncodingError(f"weight {self.name!r}: data must be one contiguous run of uint8")
        expected = nbytes(self.encoding, self.shape)
        if self.data.size != expected:
            raise EncodingError(
                f"weight {self.name!r}: {self.encoding} of shape {list(self.shape)} takes {expected} bytes, "
                f"but {self.data.size} are there"
            )

    def rows(self, start: int, stop: int) -> WeightSource:
        """Indices [start, stop) of dimension 0, without a copy.

        EncodingError: out of range, empty, or (1-D) across a block.
        """
        if not self.shape or not 0 <= start < stop <= self.shape[0]:
            raise EncodingError(f"weight {self.name!r} of shape {list(self.shape)} has no rows [{start}, {stop})")
        size = self.encoding.block_size if len(self.shape) == 1 else 1
        if start % size or stop % size:
            raise EncodingError(f"weight {self.name!r}: [{start}, {stop}) cuts a block of {size} elements")
        row_bytes = self.data.size * size // self.shape[0]
        data = self.data[start // size * row_bytes : stop // size * row_bytes]
        return WeightSource(self.name, (stop - start, *self.shape[1:]), self.encoding, data)
