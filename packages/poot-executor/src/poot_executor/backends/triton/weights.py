"""How weights are held: `dense` matrices in the activation type, `vector`s in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from poot_executor.encodings.dense import decode_dense
from poot_executor.encodings.dequantise import byte_tensor
from poot_executor.encodings.ggml import decode_ggml
from poot_executor.encodings.types import Dense, Encoding, Ggml, WeightSource
from poot_executor.kernels.kernel import WeightForm

# Bytes of a piece that is copied as it is, and elements of one that is decoded (about eight bytes each, for a moment).
PIECE_BYTES = 2**23
_PIECE_ELEMENTS = 2**21

_SAME = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some whole blocks of a weight: their bytes on the host, and the device elements (1-D) that they become."""

    data: npt.NDArray[np.uint8]
    encoding: Encoding
    target: torch.Tensor

    def deliver(self, host: torch.Tensor) -> None:
        """Enqueue on the current stream: from `host`, a copy of `data`, to the target, decoded there if need be."""
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


def is_plain(encoding: Encoding, dtype: torch.dtype) -> bool:
    """Whether a weight's bytes in its file are those of a tensor of `dtype`."""
    return isinstance(encoding, Dense) and _SAME.get(encoding.dtype) == dtype


def room(form: WeightForm, sources: Sequence[WeightSource], activation: torch.dtype, device: str) -> torch.Tensor:
    """Memory for the form's weights, one behind the other along the first dimension; nothing is in it yet."""
    dtype = torch.float32 if form.layout == "vector" else activation
    return torch.empty(sum(s.shape[0] for s in sources), *sources[0].shape[1:], dtype=dtype, device=device)


def pieces(held: torch.Tensor, sources: Sequence[WeightSource]) -> Iterator[Piece]:
    """What is to be copied, in pieces: whoever does it never holds a whole weight on the host."""
    flat, at = held.view(-1), 0
    for source in sources:
        encoding = source.encoding
        blocks = source.data.size // encoding.block_bytes
        plain = is_plain(encoding, held.dtype)
        step = PIECE_BYTES // encoding.block_bytes if plain else _PIECE_ELEMENTS // encoding.block_size
        for first in range(0, blocks, step):
            last = min(first + step, blocks)
            data = source.data[first * encoding.block_bytes : last * encoding.block_bytes]
            target = flat[at + first * encoding.block_size : at + last * encoding.block_size]
            yield Piece(data, encoding, target)
        at += prod(source.shape)


def fill(held: torch.Tensor, sources: Sequence[WeightSource]) -> None:
    """Copy all of it here and now."""
    for piece in pieces(held, sources):
        whole = WeightSource("", (piece.data.size,), Dense("U8"), piece.data)
        piece.deliver(byte_tensor(whole))
