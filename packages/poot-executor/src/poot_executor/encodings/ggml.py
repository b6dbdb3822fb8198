"""Decoders of ggml's block formats: plain torch, bit for bit what ggml's reference computes.

Formats: ggml's `ggml-common.h` and `dequantize_row_*` in `ggml-quants.c`. Multiply, then add or subtract, as two
rounded operations: a fused one would differ in the last bit. Integers are handled as bytes until one conversion
to float32 in place, so a block's temporaries take about three bytes an element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from poot_executor.encodings.types import Ggml


def decode_ggml(encoding: Ggml, blocks: torch.Tensor, out: torch.Tensor) -> None:
    """blocks (n, block_bytes) uint8 -> out (n, block_size) float32, both contiguous."""
    _DECODERS[encoding.name](blocks, out)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 at byte `at` of every block, as float32 (n, 1)."""
    return blocks[:, at : at + 2].view(torch.float16).float()


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


def _q4_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(_nibbles(blocks, 2).view(torch.int8).sub_(8)).mul_(_half(blocks, 0))


def _q4_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(_nibbles(blocks, 4)).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    codes = _nibbles(blocks, 6).bitwise_or_(_fifth_bits(blocks, 2))
    out.copy_(codes.view(torch.int8).sub_(16)).mul_(_half(blocks, 0))


def _q5_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    codes = _nibbles(blocks, 8).bitwise_or_(_fifth_bits(blocks, 4))
    out.copy_(codes).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(blocks[:, 2:].view(torch.int8)).mul_(_half(blocks, 0))


def _q2_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """16 groups of 16: bytes are scales (low half: scale, high half: minimum) 16, codes 64, d 2, dmin 2."""
    out.copy_(_unpack(blocks[:, 16:80].view(-1, 2, 32), 2).view(-1, 256))
    scales = blocks[:, :16]
    groups = out.view(-1, 16, 16)
    groups.mul_((_half(blocks, 80) * (scales & 15)).unsqueeze(2))
    groups.sub_((_half(blocks, 82) * (scales >> 4)).unsqueeze(2))


def _q3_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """16 groups of 16: bytes are high bits 32, low two bits 64, six-bit scales 12, d 2."""
    codes = _unpack(blocks[:, 32:96].view(-1, 2, 32), 2).view(-1, 256)
    high = _unpack(blocks[:, None, :32], 1).view(-1, 256)
    signed = codes.bitwise_or_(high.bitwise_left_shift_(2)).view(torch.int8).sub_(4)  # a clear bit means minus 4
    low_scales = _unpack(blocks[:, None, 96:104], 4).view(-1, 16)
    high_scales = _unpack(blocks[:, None, 104:108], 2).view(-1, 16)
    scales = low_scales.bitwise_or_(high_scales.bitwise_left_shift_(4)).view(torch.int8).sub_(32)
    out.copy_(signed).view(-1, 16, 16).mul_((_half(blocks, 108) * scales).unsqueeze(2))


def _scale_and_minimum(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of Q4_K and Q5_K: d times scale and dmin times minimum of each of 8 groups; both float32 (n, 8, 1).

    Twelve bytes from byte 4 hold them at six bits: scales 0-3, minimums 0-3, then the low halves of 4-7, whose
    two high bits sit in the top of the first eight.
    """
    first, second, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (low & 15) | ((first >> 2) & 48)), dim=1)
    minimums = torch.cat((second & 63, (low >> 4) | ((second >> 2) & 48)), dim=1)
    return (_half(blocks, 0) * scales).unsqueeze(2), (_half(blocks, 2) * minimums).unsqueeze(2)


def _q4_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """8 groups of 32: bytes are d 2, dmin 2, scales and minimums 12, codes 128."""
    scale, minimum = _scale_and_minimum(blocks)
    out.copy_(_unpack(blocks[:, 16:].view(-1, 4, 32), 4).view(-1, 256))
    out.view(-1, 8, 32).mul_(scale).sub_(minimum)


def _q5_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """8 groups of 32: bytes are d 2, dmin 2, scales and minimums 12, fifth bits 32, low halves 128."""
    scale, minimum = _scale_and_minimum(blocks)
    codes = _unpack(blocks[:, 48:].view(-1, 4, 32), 4).view(-1, 256)
    fifth = _unpack(blocks[:, None, 16:48], 1).view(-1, 256)
    out.copy_(codes.bitwise_or_(fifth.bitwise_left_shift_(4)))
    out.view(-1, 8, 32).mul_(scale).sub_(minimum)


def _q6_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """16 groups of 16: bytes are low halves 128, high two bits 64, scales 16 (signed), d 2."""
    codes = _unpack(blocks[:, :128].view(-1, 2, 64), 4).view(-1, 256)
    high = _unpack(blocks[:, 128:192].view(-1, 2, 32), 2).view(-1, 256)
    signed = codes.bitwise_or_(high.bitwise_left_shift_(4)).view(torch.int8).sub_(32)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    out.copy_(signed).view(-1, 16, 16).mul_(scales.unsqueeze(2))


_DECODERS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], None]] = MappingProxyType(
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
