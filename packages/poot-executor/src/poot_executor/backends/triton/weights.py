"""How weights are held: `dense` matrices in the activation type, `vector`s in float32, `packed` planes (`packed`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from poot_executor.backends.triton.packed import Segment, packed_room, put
from poot_executor.encodings.dense import decode_dense
from poot_executor.encodings.dequantise import byte_tensor
from poot_executor.encodings.ggml import decode_ggml
from poot_executor.encodings.types import Dense, Encoding, Ggml, WeightSource
from poot_executor.kernels.kernel import WeightForm

# Bytes of a piece that is copied as it is, and elements of one that is decoded (about eight bytes each, for a moment).
PIECE_BYTES = 2**23
_PIECE_ELEMENTS = 2**21
# Elements of a piece that is packed (up to a sixteenth more bytes), which takes a dozen small kernels.
_PACKED_ELEMENTS = 2**22

_SAME = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Piece(Protocol):
    """Some of a weight's bytes on the host, which know where on the device they belong."""

    @property
    def data(self) -> npt.NDArray[np.uint8]: ...

    def deliver(self, host: torch.Tensor) -> None:
        """Enqueue on the current stream: from `host`, a copy of `data`, to the device, decoded there if need be."""


@dataclass(frozen=True, slots=True, eq=False)
class DensePiece:
    """Some whole blocks of a weight: their bytes on the host, and the device elements (1-D) that they become."""

    data: npt.NDArray[np.uint8]
    encoding: Encoding
    target: torch.Tensor

    def deliver(self, host: torch.Tensor) -> None:
        target = self.target
        if is_plain(self.encoding, target.dtype):
            target.view(torch.uint8).copy_(host, non_blocking=True)
            return
        packed = host.to(target.device, non_blocking=True)
        decoded = torch.empty(target.numel(), dtype=torch.float32, device=target.device)
        blocks, values = packed.view(-1, self.encoding.block_bytes), decoded.view(-1, self.encoding.block_size)
        match self.encoding:
            case Dense():
                decode_dense(self.encoding, blocks, values)
            case Ggml():
                decode_ggml(self.encoding, blocks, values)
        target.copy_(decoded)


@dataclass(frozen=True, slots=True, eq=False)
class PackedPiece:
    """Some whole blocks, and the segment's elements, from `at` on, that they become."""

    data: npt.NDArray[np.uint8]
    encoding: Ggml
    segment: Segment
    at: int

    def deliver(self, host: torch.Tensor) -> None:
        blocks = host.to(self.segment.scale.device, non_blocking=True).view(-1, self.encoding.block_bytes)
        put(self.segment, self.encoding, blocks, self.at)


def is_plain(encoding: Encoding, dtype: torch.dtype) -> bool:
    """Whether a weight's bytes in its file are those of a tensor of `dtype`."""
    return isinstance(encoding, Dense) and _SAME.get(encoding.dtype) == dtype


def room(form: WeightForm, sources: Sequence[WeightSource], activation: torch.dtype, device: str) -> Any:
    """Memory for the form's weights, one behind the other along the first dimension; nothing is in it yet.

    A tensor, or a tuple of segments where they are packed.
    """
    if form.layout == "packed":
        return packed_room(sources, device)
    dtype = torch.float32 if form.layout == "vector" else activation
    return torch.empty(sum(s.shape[0] for s in sources), *sources[0].shape[1:], dtype=dtype, device=device)


def pieces(held: Any, sources: Sequence[WeightSource]) -> Iterator[Piece]:
    """What is to be copied, in pieces: whoever does it never holds a whole weight on the host."""
    return _dense(held, sources) if isinstance(held, torch.Tensor) else _packed(held, sources)


def _dense(held: torch.Tensor, sources: Sequence[WeightSource]) -> Iterator[Piece]:
    flat, at = held.view(-1), 0
    for source in sources:
        encoding = source.encoding
        plain = is_plain(encoding, held.dtype)
        step = PIECE_BYTES // encoding.block_bytes if plain else _PIECE_ELEMENTS // encoding.block_size
        for first, data in _runs(source, step):
            start = at + first * encoding.block_size
            count = data.size // encoding.block_bytes * encoding.block_size
            yield DensePiece(data, encoding, flat[start : start + count])
        at += prod(source.shape)


def _packed(segments: Sequence[Segment], sources: Sequence[WeightSource]) -> Iterator[Piece]:
    row, remaining = 0, list(segments)
    for source in sources:
        assert isinstance(source.encoding, Ggml)
        if row == remaining[0].first + remaining[0].rows:
            del remaining[0]
        at = (row - remaining[0].first) * source.shape[1]
        for first, data in _runs(source, _PACKED_ELEMENTS // source.encoding.block_size):
            yield PackedPiece(data, source.encoding, remaining[0], at + first * source.encoding.block_size)
        row += source.shape[0]


def _runs(source: WeightSource, step: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Runs of `step` blocks: the number of the first, and their bytes."""
    size = source.encoding.block_bytes
    for first in range(0, source.data.size // size, step):
        yield first, source.data[first * size : (first + step) * size]


def fill(held: Any, sources: Sequence[WeightSource]) -> None:
    """Copy all of it here and now."""
    for piece in pieces(held, sources):
        whole = WeightSource("", (piece.data.size,), Dense("U8"), piece.data)
        piece.deliver(byte_tensor(whole))
