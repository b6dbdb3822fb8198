"""Products by the library (cuBLAS) over dense weights, and the embedding gather."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import (
    PACKED,
    TRITON_KERNELS,
    TritonKernel,
    begin_kernel,
    dense_form,
    is_packed,
    live_index,
    view,
)
from poot_executor.kernels.kernel import Operands, Site, WeightForm
from poot_executor.ops import Embed, Linear


@TRITON_KERNELS.register(Linear)
class LinearKernel(TritonKernel):
    """The whole capacity is multiplied: rows past the live count hold numbers that nobody reads."""

    name = "torch mm"

    def accepts(self, site: Site) -> str | None:
        return PACKED if is_packed(site) else None

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        op = site.op
        assert isinstance(op, Linear)
        weights = dense_form(site, tuple(range(1, 1 + op.weights)))
        return (weights, dense_form(site, tuple(range(1 + op.weights, 1 + 2 * op.weights)))) if op.bias else (weights,)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, Linear)
        x, out, weight = view(operands.input(0)), view(operands.outputs[0]), operands.held[0].t()
        product: Callable[[], object] = device.product(x, weight, out)
        if not op.bias:
            return product
        bias = operands.held[1]

        def run() -> None:
            product()
            out.add_(bias)

        return run


@triton.jit
def _embed(ids, table, out, live, width, scale, LIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin_kernel(PDL)
    row = tl.program_id(0)
    if row < tl.load(live + LIVE):
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = at < width
        token = tl.load(ids + row).to(tl.int64)
        value = tl.load(table + token * width + at, mask=mask).to(tl.float32)
        tl.store(out + row * width + at, value * scale, mask=mask)


@TRITON_KERNELS.register(Embed)
class EmbedKernel(TritonKernel):
    def accepts(self, site: Site) -> str | None:
        return PACKED if is_packed(site) else None

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return (dense_form(site, (1,)),)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, Embed)
        ids, out, table = view(operands.input(0)), view(operands.outputs[0]), operands.held[0]
        rows, width = out.shape
        block, live, index, scale = (
            min(1024, triton.next_power_of_2(width)),
            device.live,
            live_index(site.inputs[0]),
            op.scale,
        )
        grid = (rows, triton.cdiv(width, block))
        return lambda: _embed[grid](ids, table, out, live, width, scale, LIVE=index, BLOCK=block, **device.launch)
