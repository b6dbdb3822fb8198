"""Decoders of ggml's block formats: plain torch, bit for bit what ggml's reference computes.

Formats: ggml's `ggml-common.h` and `dequantize_row_*` in `ggml-quants.c`. Multiply, then add or subtract, as two
rounded operations: a fused one would differ in the last bit. Integers are handled as bytes until one conversion
to float32 in place, so a block's temporaries take about three bytes an element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from poot_executor.encodings.types import Ggml


class Steps(NamedTuple):
    """A number for each group of a block: `unit` (n, 1) float16, times `multiples` (n, groups) uint8 or int8 if any."""

    unit: torch.Tensor
    multiples: torch.Tensor | None = None

    def values(self) -> torch.Tensor:
        """(n, groups) float32."""
        unit = self.unit.float()
        return unit if self.multiples is None else unit * self.multiples


class Parts(NamedTuple):
    """n blocks taken apart: an element is (code - offset) * its group's scale - its group's minimum.

    codes: (n, block size) uint8, in order. Groups are equal runs of a block's elements.
    """

    codes: torch.Tensor
    offset: int
    scale: Steps
    minimum: Steps | None = None


def take_apart(encoding: Ggml, blocks: torch.Tensor) -> Parts:
    """blocks: (n, block_bytes) uint8, contiguous. They are not changed."""
    return _FORMATS[encoding.name](blocks)


def decode_ggml(encoding: Ggml, blocks: torch.Tensor, out: torch.Tensor) -> None:
    """blocks (n, block_bytes) uint8 -> out (n, block_size) float32, both contiguous."""
    parts = take_apart(encoding, blocks)
    scale = parts.scale.values().unsqueeze(2)
    # Bytes wrap around: what is below zero then is a negative int8.
    codes = parts.codes.add_(256 - parts.offset).view(torch.int8) if parts.offset else parts.codes
    groups = out.copy_(codes).view(len(out), scale.shape[1], -1).mul_(scale)
    if parts.minimum is not None:
        groups.sub_(parts.minimum.values().unsqueeze(2))


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 at byte `at` of every block, (n, 1)."""
    return blocks[:, at : at + 2].view(torch.float16)


def _unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """packed (n, groups, k) uint8 -> (n, groups, 8 // bits, k): each byte's fields, lowest first."""
    n, groups, k = packed.shape
    fields = packed.new_empty(n, groups, 8 // bits, k)
    for index in range(8 // bits):
        torch.bitwise_right_shift(packed, index * bits, out=fields[:, :, index])
    return fields.bitwise_and_((1 << bits) - 1)


def _nibbles(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The 32 four-bit fields from byte `at`: low halves of 16 bytes, then high halves; (n, 32)."""
    return _unpack(blocks[:, None, at : at + 16], 4).view(-1, 32)


def _fifth_bits(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Bit i of the little-endian 32-bit word at byte `at`, moved to bit 4 of element i; (n, 32)."""
    return _unpack(blocks[:, at : at + 4, None], 1).view(-1, 32).bitwise_left_shift_(4)


def _q4_0(blocks: torch.Tensor) -> Parts:
    return Parts(_nibbles(blocks, 2), 8, Steps(_half(blocks, 0)))


def _q4_1(blocks: torch.Tensor) -> Parts:
    return Parts(_nibbles(blocks, 4), 0, Steps(_half(blocks, 0)), Steps(-_half(blocks, 2)))


def _q5_0(blocks: torch.Tensor) -> Parts:
    return Parts(_nibbles(blocks, 6).bitwise_or_(_fifth_bits(blocks, 2)), 16, Steps(_half(blocks, 0)))


def _q5_1(blocks: torch.Tensor) -> Parts:
    codes = _nibbles(blocks, 8).bitwise_or_(_fifth_bits(blocks, 4))
    return Parts(codes, 0, Steps(_half(blocks, 0)), Steps(-_half(blocks, 2)))


def _q8_0(blocks: torch.Tensor) -> Parts:
    return Parts(blocks[:, 2:] ^ 128, 128, Steps(_half(blocks, 0)))


def _q2_k(blocks: torch.Tensor) -> Parts:
    """16 groups of 16: bytes are scales (low half: scale, high half: minimum) 16, codes 64, d 2, dmin 2."""
    codes = _unpack(blocks[:, 16:80].view(-1, 2, 32), 2).view(-1, 256)
    scales = blocks[:, :16]
    return Parts(codes, 0, Steps(_half(blocks, 80), scales & 15), Steps(_half(blocks, 82), scales >> 4))


def _q3_k(blocks: torch.Tensor) -> Parts:
    """16 groups of 16: bytes are high bits 32, low two bits 64, six-bit scales 12, d 2."""
    codes = _unpack(blocks[:, 32:96].view(-1, 2, 32), 2).view(-1, 256)
    high = _unpack(blocks[:, None, :32], 1).view(-1, 256)
    codes.bitwise_or_(high.bitwise_left_shift_(2))  # a clear bit means minus 4
    low_scales = _unpack(blocks[:, None, 96:104], 4).view(-1, 16)
    high_scales = _unpack(blocks[:, None, 104:108], 2).view(-1, 16)
    scales = low_scales.bitwise_or_(high_scales.bitwise_left_shift_(4)).view(torch.int8).sub_(32)
    return Parts(codes, 4, Steps(_half(blocks, 108), scales))


def _scale_and_minimum(blocks: torch.Tensor) -> tuple[Steps, Steps]:
    """Of Q4_K and Q5_K: of each of 8 groups.

    Twelve bytes from byte 4 hold them at six bits: scales 0-3, minimums 0-3, then the low halves of 4-7, whose
    two high bits sit in the top of the first eight.
    """
    first, second, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (low & 15) | ((first >> 2) & 48)), dim=1)
    minimums = torch.cat((second & 63, (low >> 4) | ((second >> 2) & 48)), dim=1)
    return Steps(_half(blocks, 0), scales), Steps(_half(blocks, 2), minimums)


def _q4_k(blocks: torch.Tensor) -> Parts:
    """8 groups of 32: bytes are d 2, dmin 2, scales and minimums 12, codes 128."""
    return Parts(_unpack(blocks[:, 16:].view(-1, 4, 32), 4).view(-1, 256), 0, *_scale_and_minimum(blocks))


def _q5_k(blocks: torch.Tensor) -> Parts:
    """8 groups of 32: bytes are d 2, dmin 2, scales and minimums 12, fifth bits 32, low halves 128."""
    codes = _unpack(blocks[:, 48:].view(-1, 4, 32), 4).view(-1, 256)
    fifth = _unpack(blocks[:, None, 16:48], 1).view(-1, 256)
    return Parts(codes.bitwise_or_(fifth.bitwise_left_shift_(4)), 0, *_scale_and_minimum(blocks))


def _q6_k(blocks: torch.Tensor) -> Parts:
    """16 groups of 16: bytes are low halves 128, high two bits 64, scales 16 (signed), d 2."""
    codes = _unpack(blocks[:, :128].view(-1, 2, 64), 4).view(-1, 256)
    high = _unpack(blocks[:, 128:192].view(-1, 2, 32), 2).view(-1, 256)
    scales = blocks[:, 192:208].view(torch.int8)
    return Parts(codes.bitwise_or_(high.bitwise_left_shift_(4)), 32, Steps(_half(blocks, 208), scales))


_FORMATS: Mapping[str, Callable[[torch.Tensor], Parts]] = MappingProxyType(
    {
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q8_0": _q8_0,
        "Q2_K": _q2_k,
        "Q3_K": _q3_k,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
    }
)
