"""Kernels of ops over packed weights: products, gated products and the embedding gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels import packed_few, packed_tiles
from poot_executor.backends.triton.kernels.arrange import Quantised, spread
from poot_executor.backends.triton.kernels.codes import constants, plane_tensors
from poot_executor.backends.triton.kernels.few_rows import FEW_ROWS_KERNELS
from poot_executor.backends.triton.kernels.kernel import (
    TRITON_KERNELS,
    TritonKernel,
    begin_kernel,
    dense_form,
    is_packed,
    live_index,
    typed,
    view,
)
from poot_executor.backends.triton.kernels.packed_many import octs_of, packed_many, piece_rows
from poot_executor.backends.triton.kernels.pointwise import gate_rows
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import OCT, Segment, packed_bytes
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operands, Site, WeightForm
from poot_executor.ops import Embed, GatedLinear, Linear, NormedGatedLinear, NormedLinear, ResidualLinear
from poot_executor.ops.pointwise import Activation

_ALIGNMENT = 256
_MOST_OCTS = 2**31  # kernels count octs in 32 bits


def packed_form(site: Site, inputs: Sequence[int]) -> WeightForm:
    """Weights side by side as planes."""
    nbytes = packed_bytes([site.encodings[i] for i in inputs], [site.inputs[i].shape for i in inputs])
    return WeightForm("packed", tuple(str(site.names[i]) for i in inputs), nbytes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _is_few(site: Site) -> bool:
    """Rows that may be quantised: not those that are asked for in full precision."""
    return site.inputs[0].shape[0] <= packed_few.MOST_ROWS and site.activation is not DType.F32


class _Packed(TritonKernel):
    """A product. Which way it goes depends on the rows alone.

    `first` is the index of the first weight among the inputs, `most` the rows up to which the op is there.
    """

    name = "packed weights"
    first = 1
    most = 2**31

    def weights(self, site: Site) -> range:
        """The inputs that are side by side as one weight."""
        return range(self.first, self.first + 1)

    def around(self, site: Site, operands: Operands) -> Around:
        """What is done around the product."""
        raise TypeError(f"{type(self).__name__} does not say what is around its product")

    def accepts(self, site: Site) -> str | None:
        x = site.inputs[0]
        if not is_packed(site):
            return "the weights are not packed"
        if len(x.shape) != 2 or x.shape[0] > self.most:
            return f"it has more than two dimensions or {self.most} rows"
        octs = sum(site.inputs[i].elements for i in self.weights(site)) // OCT
        return None if octs < _MOST_OCTS else "the weights have too many elements"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return (packed_form(site, self.weights(site)),)

    def workspace(self, site: Site) -> int:
        (rows, k), size = site.inputs[0].shape, site.activation.size
        n = sum(site.inputs[i].shape[0] for i in self.weights(site))
        if _is_few(site):
            return max(Quantised.nbytes(rows, k), packed_tiles.parts_bytes(rows, n, k))
        if rows <= packed_tiles.MOST_ROWS:
            return _aligned(rows * k * size) + packed_tiles.parts_bytes(rows, n, k)
        return _aligned(piece_rows(n, k) * k * size)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        return _in_turn(self.products(site, operands, self.around(site, operands), device))

    def own_products(
        self, site: Site, operands: Operands, around: Around, device: Any
    ) -> list[Callable[[], object]] | None:
        """The launches of the product by kernels of the device's own, if it has them."""
        x, scratch = view(operands.input(0)), operands.workspace
        if len(x) > packed_tiles.MOST_ROWS:
            return None
        assert scratch is not None
        n = sum(segment.rows for segment in operands.held[0])
        parts = typed(scratch, (packed_tiles.parts_bytes(len(x), n, x.shape[1]) // 4,), None, DType.F32)
        own = [device.packed_product(x, segment, around, parts) for segment in operands.held[0]]
        return None if None in own else own

    def products(self, site: Site, operands: Operands, around: Around, device: Any) -> list[Callable[[], object]]:
        """The launches of the product."""
        x, scratch = view(operands.input(0)), operands.workspace
        segments: tuple[Segment, ...] = operands.held[0]
        assert scratch is not None
        rows, k = x.shape
        if (own := self.own_products(site, operands, around, device)) is not None:
            return own
        if _is_few(site):
            quantised = Quantised.room(scratch, rows, k)
            few = [packed_few.packed_few(quantised, segment, around, device) for segment in segments]
            return [quantised.fill(x, device), *few]
        n = sum(segment.rows for segment in segments)
        if rows <= packed_tiles.MOST_ROWS:
            by_place = typed(scratch, (OCT, rows, k // OCT), None, site.activation)
            at = _aligned(x.numel() * x.element_size())
            parts = typed(scratch, (packed_tiles.parts_bytes(rows, n, k) // 4,), None, DType.F32, at)
            tiles = [packed_tiles.packed_tiles(by_place, segment, around, parts, device) for segment in segments]
            return [spread(x, by_place, device), *tiles]
        whole = typed(scratch, (piece_rows(n, k) * k,), None, site.activation)
        many = [call for segment in segments for call in packed_many(x, segment, around.out, whole, device)]
        bias = around.bias
        return many if bias is None else [*many, lambda: around.out.add_(bias)]


class _PackedGated(_Packed):
    """The activation is part of the product, or follows it where rows are many or gate and up are packed otherwise."""

    def weights(self, site: Site) -> range:
        return range(self.first, self.first + 2)

    def activation(self, site: Site) -> Activation:
        op = site.op
        assert isinstance(op, GatedLinear | NormedGatedLinear)
        return op.activation

    def workspace(self, site: Site) -> int:
        return super().workspace(site) + 2 * prod(site.outputs[0].shape) * site.activation.size

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        around, scratch = self.around(site, operands), operands.workspace
        assert scratch is not None
        out = around.out
        if len(operands.held[0]) == 1:
            if len(out) <= packed_tiles.MOST_GATED:
                return _in_turn(self.products(site, operands, around, device))
            if (own := self.own_products(site, operands, around, device)) is not None:
                return _in_turn(own)
        product = typed(scratch, (len(out), 2 * out.shape[1]), None, site.activation, super().workspace(site))
        calls = self.products(site, operands, replace(around, out=product, gate=None), device)
        return _in_turn([*calls, gate_rows(self.activation(site), product, out, live_index(site.inputs[0]), device)])


def _in_turn(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    def run() -> None:
        for call in calls:
            call()

    return run


@TRITON_KERNELS.register(Linear, preferred=True)
class PackedLinearKernel(_Packed):
    def weights(self, site: Site) -> range:
        op = site.op
        assert isinstance(op, Linear | NormedLinear)
        return range(self.first, self.first + op.weights)

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        op, end = site.op, self.weights(site).stop
        assert isinstance(op, Linear | NormedLinear)
        biases = (dense_form(site, tuple(range(end, end + op.weights))),) if op.bias else ()
        return (*super().forms(site), *biases)

    def around(self, site: Site, operands: Operands) -> Around:
        return Around(view(operands.outputs[0]), operands.held[1] if len(operands.held) > 1 else None)


@FEW_ROWS_KERNELS.register(NormedLinear)
class PackedNormedLinearKernel(PackedLinearKernel):
    first = 2
    most = packed_tiles.MOST_NORMED

    def around(self, site: Site, operands: Operands) -> Around:
        op = site.op
        assert isinstance(op, NormedLinear)
        return replace(super().around(site, operands), squares=view(operands.input(1)), eps=op.eps)


@TRITON_KERNELS.register(GatedLinear, preferred=True)
class PackedGatedLinearKernel(_PackedGated):
    def around(self, site: Site, operands: Operands) -> Around:
        return Around(view(operands.outputs[0]), gate=self.activation(site))


@FEW_ROWS_KERNELS.register(NormedGatedLinear)
class PackedNormedGatedLinearKernel(PackedGatedLinearKernel):
    first = 2
    most = packed_tiles.MOST_NORMED

    def around(self, site: Site, operands: Operands) -> Around:
        op = site.op
        assert isinstance(op, NormedGatedLinear)
        return replace(super().around(site, operands), squares=view(operands.input(1)), eps=op.eps)


@FEW_ROWS_KERNELS.register(ResidualLinear)
class PackedResidualLinearKernel(_Packed):
    most = packed_tiles.MOST_NORMED

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return (*super().forms(site), dense_form(site, (3,)))

    def around(self, site: Site, operands: Operands) -> Around:
        op = site.op
        assert isinstance(op, ResidualLinear)
        total, scaled, sums = (view(output) for output in operands.outputs)
        return Around(
            total, residual=view(operands.input(2)), gain=operands.held[1], offset=op.offset, scaled=scaled, sums=sums
        )


@triton.jit
def _packed_embed(
    ids, low, high, scale, unit, out, live, octs, factor,
    LIVE: tl.constexpr, OCTS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, GROUP: tl.constexpr,
    OFFSET: tl.constexpr, MINIMUM: tl.constexpr, MULTIPLES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin_kernel(PDL)
    row = tl.program_id(0)
    if row < tl.load(live + LIVE):
        of_oct = tl.program_id(1) * OCTS + tl.arange(0, OCTS)
        mask = of_oct < octs
        at = tl.load(ids + row) * octs + of_oct
        values = octs_of(low, high, scale, unit, at, mask, LOW, HIGH, GROUP, OFFSET, MINIMUM, MULTIPLES)
        where = (row * octs + of_oct)[:, None] * 8 + tl.arange(0, 8)[None, :]
        tl.store(out + where, values * factor, mask=mask[:, None])


@TRITON_KERNELS.register(Embed, preferred=True)
class PackedEmbedKernel(TritonKernel):
    name = "packed weights"

    def accepts(self, site: Site) -> str | None:
        if not is_packed(site):
            return "the table is not packed"
        return None if site.inputs[1].elements // OCT < _MOST_OCTS else "the table has too many elements"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return (packed_form(site, (1,)),)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, Embed)
        ids, out, (table,) = view(operands.input(0)), view(operands.outputs[0]), operands.held[0]
        rows, octs = out.shape[0], table.width // OCT
        block = min(128, triton.next_power_of_2(octs))
        grid = (rows, triton.cdiv(octs, block))
        planes, live, index = plane_tensors(table), device.live, live_index(site.inputs[0])
        return lambda: _packed_embed[grid](
            ids, *planes, out, live, octs, op.scale, LIVE=index, OCTS=block, **constants(table), **device.launch
        )
