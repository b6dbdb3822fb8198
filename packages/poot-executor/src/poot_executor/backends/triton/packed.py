"""Packed weights on the device: a ggml weight's codes and scales as planes that kernels read in order.

Eight consecutive elements of a row are an oct, and their codes are cut into planes of 8, 4, 2 and 1 bits, an oct being
two int32, an int32, an int16 or a uint8. Its elements lie in the order 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first. So
neighbours are 16 bits apart in a word of 4 bits each, and one mask takes both, as a matrix unit wants them; and few
instructions make the codes of elements 0, 4, 1, 5 and of 2, 6, 3, 7 bytes of two int32 (see `kernels/codes.py`), which
integer dot products take. Those are the two int32 of 8 bits, too.

An element is (code - offset) * scale - minimum, exactly as the format has it: a group's scale (and minimum) is a half
or, in formats that have those, a small integer times a half that 256 elements share. Scale and minimum are side by
side, so that kernels load both at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import torch

from poot_executor.encodings.ggml import Parts, Steps, take_apart
from poot_executor.encodings.types import Encoding, Ggml, WeightSource

OCT = 8
SHARED = 256  # elements whose multiples are of the same half


@dataclass(frozen=True, slots=True)
class Layout:
    """`bits` of the planes, those of a code's low bits first; `group` elements have a scale in common.

    `multiples`: bytes of a group's integers, for formats that have them: one is a signed scale or, with minimums, two
    halves of a byte, the scale's low; two are a byte each, the scale's first. 0: a group has halves of its own.
    What 256 elements share takes four bytes: two halves or, without minimum, a half as float32.
    """

    bits: tuple[int, ...]
    group: int = 32
    offset: int = 0
    minimum: bool = False
    multiples: int = 0

    def nbytes(self, elements: int) -> int:
        """Bytes that so many elements take, whole blocks of them."""
        groups, halves = elements // self.group, 2 * (1 + self.minimum)
        scales = groups * self.multiples + elements // SHARED * 4 if self.multiples else groups * halves
        return elements // OCT * sum(self.bits) + scales


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "Q4_0": Layout((4,), offset=8),
        "Q4_1": Layout((4,), minimum=True),
        "Q5_0": Layout((4, 1), offset=16),
        "Q5_1": Layout((4, 1), minimum=True),
        "Q8_0": Layout((8,), offset=128),
        "Q2_K": Layout((2,), 16, minimum=True, multiples=1),
        "Q3_K": Layout((2, 1), 16, offset=4, multiples=1),
        "Q4_K": Layout((4,), minimum=True, multiples=2),
        "Q5_K": Layout((4, 1), minimum=True, multiples=2),
        "Q6_K": Layout((4, 2), 16, offset=32, multiples=1),
    }
)

_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the element of each field of an oct
_HALVES = ([0, 4, 1, 5], [2, 6, 3, 7])  # those of the bytes of two int32

_PLANE_TYPES = {4: torch.int32, 2: torch.int16, 1: torch.uint8}


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Rows of a packed weight of one layout, from row `first` of the product on.

    planes: (rows, width / 8) each, two of int32 for 8 bits. `scale` is (rows, width / group): float16, or int32 for the
    halves of scale and minimum; of multiples, int8, uint8 or int16, and then `unit` (rows, width / 256) has the halves,
    int32 for two and float32 for one.
    """

    layout: Layout
    first: int
    rows: int
    width: int
    planes: tuple[torch.Tensor, ...]
    scale: torch.Tensor
    unit: torch.Tensor | None = None


def layout_of(encoding: Encoding | None) -> Layout | None:
    """How weights of an encoding are packed; None for those that are not."""
    return LAYOUTS[encoding.name] if isinstance(encoding, Ggml) else None


def packed_room(sources: Sequence[WeightSource], device: str) -> tuple[Segment, ...]:
    """Memory for packed weights, one behind the other; neighbours of one layout are one segment. Nothing is in it."""
    segments: list[Segment] = []
    first = 0
    for index, source in enumerate(sources):
        layout = layout_of(source.encoding)
        assert layout is not None
        rows = source.shape[0]
        if index and layout_of(sources[index - 1].encoding) == layout:
            rows += segments.pop().rows
        segments.append(empty_segment(layout, first + source.shape[0] - rows, rows, source.shape[1], device))
        first += source.shape[0]
    return tuple(segments)


def empty_segment(layout: Layout, first: int, rows: int, width: int, device: str) -> Segment:
    """Room for (rows, width) elements."""

    def room(columns: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=device)

    planes = tuple(room(width // OCT, _PLANE_TYPES[bits]) for bits in _split(layout.bits))
    groups = width // layout.group
    if not layout.multiples:
        halves = torch.int32 if layout.minimum else torch.float16
        return Segment(layout, first, rows, width, planes, room(groups, halves))
    integers = torch.int16 if layout.multiples == 2 else torch.uint8 if layout.minimum else torch.int8
    shared = torch.int32 if layout.minimum else torch.float32
    return Segment(layout, first, rows, width, planes, room(groups, integers), room(width // SHARED, shared))


def _split(bits: tuple[int, ...]) -> tuple[int, ...]:
    """Bits of each plane's tensor: eight are two int32 an oct."""
    return (4, 4) if bits == (8,) else bits


def put(segment: Segment, encoding: Ggml, blocks: torch.Tensor, at: int) -> None:
    """Pack blocks (n, block_bytes) uint8 into the segment's elements from `at` on, counted over its rows."""
    parts = take_apart(encoding, blocks)
    elements = parts.codes.numel()
    for plane, packed in zip(segment.planes, _pack(parts.codes.view(-1, OCT), segment.layout.bits), strict=True):
        plane.view(-1)[at // OCT : (at + elements) // OCT] = packed
    layout, size = segment.layout, segment.layout.group
    scales = segment.scale.view(-1)[at // size : (at + elements) // size]
    if segment.unit is None:
        scales.copy_(_halves(parts))
        return
    scales.copy_(_multiples(parts, layout.multiples))
    segment.unit.view(-1)[at // SHARED : (at + elements) // SHARED].copy_(_halves(parts))


def _halves(parts: Parts) -> torch.Tensor:
    """The blocks' halves, (n,): of the scale, or of scale and minimum as one int32."""
    if parts.minimum is None:
        return parts.scale.unit.reshape(-1)
    return torch.cat((parts.scale.unit, parts.minimum.unit), 1).view(torch.int32).view(-1)


def _multiples(parts: Parts, nbytes: int) -> torch.Tensor:
    """The groups' integers, (n * groups,), as `nbytes` each."""

    def of(steps: Steps) -> torch.Tensor:
        assert steps.multiples is not None
        return steps.multiples.reshape(-1)

    if parts.minimum is None:
        return of(parts.scale)
    scale, minimum = of(parts.scale), of(parts.minimum)
    return torch.stack((scale, minimum), 1).view(torch.int16).view(-1) if nbytes == 2 else scale | (minimum << 4)


def _pack(octs: torch.Tensor, bits: tuple[int, ...]) -> list[torch.Tensor]:
    """octs: (n, 8) uint8 codes -> the planes' n elements each."""
    if bits == (8,):
        return [octs[:, places].contiguous().view(torch.int32).view(-1) for places in _HALVES]
    octs = octs[:, _ORDER]
    planes, shift = [], 0
    for width in bits:
        fields = (octs >> shift) & ((1 << width) - 1)
        shift += width
        match width:
            case 4:
                packed = _joined(fields.view(-1, 4, 2), 4).view(torch.int32)
            case 2:
                packed = _joined(fields.view(-1, 2, 4), 2).view(torch.int16)
            case _:
                packed = _joined(fields.unsqueeze(1), 1)
        planes.append(packed.view(-1))
    return planes


def _joined(fields: torch.Tensor, width: int) -> torch.Tensor:
    """(n, k, 8 / width) uint8 -> (n, k): fields of a byte, lowest first."""
    joined = fields[:, :, 0].clone()
    for index in range(1, fields.shape[2]):
        joined.bitwise_or_(fields[:, :, index] << (index * width))
    return joined


def packed_bytes(encodings: Sequence[Encoding | None], shapes: Sequence[tuple[int, ...]]) -> int:
    """Bytes of these weights when packed."""
    layouts = [layout_of(encoding) for encoding in encodings]
    return sum(layout.nbytes(prod(shape)) for layout, shape in zip(layouts, shapes, strict=True) if layout is not None)
