"""The gate-and-up product with its activation."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from poot_executor.backends.triton.kernels.kernel import (
    PACKED,
    TRITON_KERNELS,
    TritonKernel,
    dense_form,
    is_packed,
    live_index,
    typed,
    view,
)
from poot_executor.backends.triton.kernels.pointwise import gate_rows
from poot_executor.kernels.kernel import Operands, Site, WeightForm
from poot_executor.ops import GatedLinear


@TRITON_KERNELS.register(GatedLinear)
class GatedLinearKernel(TritonKernel):
    """Both products as one, over the whole capacity, in workspace; then the activation over the live rows."""

    name = "torch mm, then gate"

    def accepts(self, site: Site) -> str | None:
        if is_packed(site):
            return PACKED
        return None if len(site.inputs[0].shape) == 2 else "it has more than two dimensions"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return (dense_form(site, (1, 2)),)

    def workspace(self, site: Site) -> int:
        return 2 * prod(site.outputs[0].shape) * site.activation.size

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, GatedLinear) and operands.workspace is not None
        x, out, weight = view(operands.input(0)), view(operands.outputs[0]), operands.held[0].t()
        product = typed(operands.workspace, (len(x), weight.shape[1]), None, site.activation)
        multiply = device.product(x, weight, product)
        gate = gate_rows(op.activation, product, out, live_index(site.inputs[0]), device)

        def run() -> None:
            multiply()
            gate()

        return run
