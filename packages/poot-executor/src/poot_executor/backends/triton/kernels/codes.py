"""Codes and scales of packed weights, as kernels take them from the planes (see `backends.triton.packed`).

Kernels get a segment as its tensors (low and high plane, scale, unit; another stands for what a layout lacks) and the
constants LOW, HIGH (bits of the planes), GROUP, OFFSET, MINIMUM and MULTIPLES.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import prefetch
from poot_executor.backends.triton.packed import Segment


@triton.jit
def codes(low, high, at, mask, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Of the octs `at`, the codes of elements 0, 4, 1, 5 and of 2, 6, 3, 7, as the bytes of two int32."""
    if LOW == 8:
        first = tl.load(low + at, mask=mask, other=0)
        second = tl.load(high + at, mask=mask, other=0)
    elif LOW == 4:
        word = tl.load(low + at, mask=mask, other=0)
        first = word & 0x0F0F0F0F
        second = (word >> 4) & 0x0F0F0F0F
    else:
        first, second = _pairs(low, at, mask)
    if HIGH == 2:
        more, rest = _pairs(high, at, mask)
        first |= more << LOW
        second |= rest << LOW
    if HIGH == 1:
        bits = tl.load(high + at, mask=mask, other=0).to(tl.int32)
        first |= (((bits & 0x55) * 0x41041) & 0x01010101) << LOW
        second |= (((bits >> 1 & 0x55) * 0x41041) & 0x01010101) << LOW
    return first, second


@triton.jit
def _pairs(plane, at, mask):
    """Of a plane of two bits."""
    word = tl.load(plane + at, mask=mask, other=0).to(tl.int32) & 0xFFFF
    return _far(word), _far(word >> 2)


@triton.jit
def _far(word):
    """Fields 0, 2, 4 and 6 of two bits as bytes."""
    word &= 0x3333
    word = (word | (word << 8)) & 0x00FF00FF
    return (word | (word << 4)) & 0x03030303


@triton.jit
def element(place):
    """The element of an oct whose code is byte `place` of the eight bytes that `codes` gives."""
    return place // 4 * 2 + place % 4 // 2 + place % 2 * 4


@triton.jit
def place(element):
    """The byte of the eight that `codes` gives where an element's code is."""
    return element // 2 % 2 * 4 + element % 2 * 2 + element // 4


@triton.jit
def fetch_ahead(low, line, first, k8, LOW: tl.constexpr):
    """Bring the first 512 bytes or so of these rows' low plane, from oct `first` on, to the cache of the device."""
    STEP: tl.constexpr = 64 if LOW == 2 else 32  # octs in 128 bytes
    prefetch(low + line[:, None] * k8 + tl.minimum(first + tl.arange(0, 4) * STEP, k8 - 1)[None, :])


@triton.jit
def fetch_scales(scale, unit, group, mask, GROUP: tl.constexpr, MULTIPLES: tl.constexpr):
    """What `scales` takes: the groups' integers and halves, as they are stored."""
    if MULTIPLES == 0:
        number = tl.load(scale + group, mask=mask, other=0)
        halves = number
    else:
        halves = tl.load(unit + group // (256 // GROUP), mask=mask, other=0)
        number = tl.load(scale + group, mask=mask, other=0)
    return number, halves


@triton.jit
def scales(number, halves, MINIMUM: tl.constexpr, MULTIPLES: tl.constexpr):
    """Scale and minimum of groups, float32; the minimum is zero where the layout has none."""
    if MINIMUM:
        size = halves.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        least = (halves >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        size = halves.to(tl.float32)
        least = 0.0
    if MULTIPLES > 0:
        whole = number.to(tl.int32)
        if MINIMUM:
            BITS: tl.constexpr = 4 * MULTIPLES
            least *= (whole >> BITS).to(tl.float32)
            whole &= (1 << BITS) - 1
        size *= whole.to(tl.float32)
    return size, least


def plane_tensors(segment: Segment) -> tuple[torch.Tensor, ...]:
    """low, high, scale, unit."""
    scale = segment.scale
    return segment.planes[0], segment.planes[-1], scale, scale if segment.unit is None else segment.unit


def constants(segment: Segment) -> dict[str, Any]:
    """What kernels are compiled for."""
    layout = segment.layout
    high = layout.bits[1] if len(layout.bits) > 1 else 0
    return {
        "LOW": layout.bits[0],
        "HIGH": high,
        "GROUP": layout.group,
        "OFFSET": layout.offset,
        "MINIMUM": layout.minimum,
        "MULTIPLES": layout.multiples,
    }
