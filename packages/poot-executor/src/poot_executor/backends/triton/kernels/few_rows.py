"""Kernels for ops that are products of a few rows (see `products`): plain, gated, with norms put off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from poot_executor.backends.triton.kernels.kernel import (
    PACKED,
    TritonKernel,
    dense_form,
    is_packed,
    place,
    typed,
    view,
)
from poot_executor.backends.triton.kernels.linear import LinearKernel
from poot_executor.backends.triton.kernels.products import MOST_ROWS, Around, Product, Tiling, tiling, workspace_bytes
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import KernelTable, Operands, Site, WeightForm
from poot_executor.ops import GatedLinear, Linear, NormedGatedLinear, NormedLinear, ResidualLinear
from poot_executor.ops.pointwise import Activation

# For devices with a tensor copy engine: to be preferred to those that run anywhere.
FEW_ROWS_KERNELS = KernelTable("triton")

# The copy engine wants rows that begin at multiples of 16 bytes.
_ALIGNMENT = 16
_LEAST_ROWS = 2  # one row has kernels of its own


def _weights(site: Site) -> range:
    """The inputs that are side by side as one weight."""
    match site.op:
        case Linear(weights=weights):
            return range(1, 1 + weights)
        case NormedLinear(weights=weights):
            return range(2, 2 + weights)
        case GatedLinear():
            return range(1, 3)
        case NormedGatedLinear():
            return range(2, 4)
        case ResidualLinear():
            return range(1, 2)
        case op:
            raise TypeError(f"{op} is no product")


def _gate(site: Site) -> Activation | None:
    op = site.op
    return op.activation if isinstance(op, GatedLinear | NormedGatedLinear) else None


def _forms(site: Site) -> tuple[WeightForm, ...]:
    """The weight; then the biases, or the weight of the next norm."""
    op, weights = site.op, _weights(site)
    forms = [dense_form(site, tuple(weights))]
    if isinstance(op, Linear | NormedLinear) and op.bias:
        forms.append(dense_form(site, tuple(range(weights.stop, weights.stop + len(weights)))))
    if isinstance(op, ResidualLinear):
        forms.append(dense_form(site, (3,)))
    return tuple(forms)


def _around(site: Site, operands: Operands) -> Around:
    """What is done around the product, given what `_forms` asks for."""
    op, out = site.op, view(operands.outputs[0])
    if isinstance(op, ResidualLinear):
        total, scaled, sums = (view(output) for output in operands.outputs)
        residual, gain = view(operands.input(2)), operands.held[1]
        return Around(total, residual=residual, gain=gain, offset=op.offset, scaled=scaled, sums=sums)
    bias = operands.held[1] if len(operands.held) > 1 else None
    if isinstance(op, NormedLinear | NormedGatedLinear):
        return Around(out, bias, _gate(site), view(operands.input(1)), op.eps)
    return Around(out, bias, _gate(site))


@FEW_ROWS_KERNELS.register(GatedLinear)
@FEW_ROWS_KERNELS.register(NormedLinear)
@FEW_ROWS_KERNELS.register(NormedGatedLinear)
@FEW_ROWS_KERNELS.register(ResidualLinear)
class FewRowsKernel(TritonKernel):
    name = "few rows"

    def accepts(self, site: Site) -> str | None:
        if is_packed(site):
            return PACKED
        x = site.inputs[0]
        if len(x.shape) != 2 or not _LEAST_ROWS <= x.shape[0] <= MOST_ROWS:
            return f"not {_LEAST_ROWS} to {MOST_ROWS} rows"
        return None if x.shape[1] * x.dtype.size % _ALIGNMENT == 0 else f"rows are not multiples of {_ALIGNMENT} bytes"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return _forms(site)

    def workspace(self, site: Site) -> int:
        return workspace_bytes(*site.outputs[0].shape)

    def how(self, site: Site, device: Any) -> Tiling:
        (rows, n), x = site.outputs[0].shape, site.inputs[0]
        gated = _gate(site) is not None
        return tiling(
            rows, n, x.shape[1], gated=gated, size=x.dtype.size, processors=device.processors, shared=device.shared
        )

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        parts: torch.Tensor | None = None
        if operands.workspace is not None:
            parts = typed(operands.workspace, (operands.workspace.type.shape[0] // 4,), None, DType.F32)
        product = Product(view(operands.input(0)), operands.held[0], _around(site, operands), parts)
        return product.bind(self.how(site, device), device)


@FEW_ROWS_KERNELS.register(Linear)
class FewRowsLinearKernel(FewRowsKernel):
    """The device tells whether this or the library's product is the faster one."""

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        ways = {
            self.name: partial(super().call, site, operands, device),
            LinearKernel.name: partial(LinearKernel().call, site, operands, device),
        }
        return ways[device.fastest((*place(site, operands), self.how(site, device)), ways)]()
