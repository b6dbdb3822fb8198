"""Kernels for ops that are products of a few rows (see `products`): plain, gated, with norms put off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poot_executor.backends.triton.kernels.kernel import PACKED, TritonKernel, dense_form, is_packed, typed, view
from poot_executor.backends.triton.kernels.linear import LinearKernel
from poot_executor.backends.triton.kernels.products import MOST_ROWS, Around, Product, Tiling, tiling, workspace_bytes
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import KernelTable, Operands, Site, WeightForm
from poot_executor.ops import GatedLinear, Linear, NormedGatedLinear, NormedLinear, ResidualLinear

# For devices with a tensor copy engine: to be preferred to those that run anywhere.
FEW_ROWS_KERNELS = KernelTable("triton")

# The copy engine wants rows that begin at multiples of 16 bytes.
_ALIGNMENT = 16


class _FewRows(TritonKernel):
    """`first` is the index of the first weight among the inputs, `least` the fewest rows."""

    name = "few rows"
    first = 1
    least = 2  # one row has kernels of its own

    def accepts(self, site: Site) -> str | None:
        if is_packed(site):
            return PACKED
        x = site.inputs[0]
        if len(x.shape) != 2 or not self.least <= x.shape[0] <= MOST_ROWS:
            return f"not {self.least} to {MOST_ROWS} rows"
        return None if x.shape[1] * x.dtype.size % _ALIGNMENT == 0 else f"rows are not multiples of {_ALIGNMENT} bytes"

    def weights(self, site: Site) -> int:
        """How many weights are side by side."""
        return 1

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return (dense_form(site, tuple(range(self.first, self.first + self.weights(site)))),)

    def workspace(self, site: Site) -> int:
        return workspace_bytes(*site.outputs[0].shape)

    def how(self, site: Site, device: Any) -> Tiling:
        (rows, n), x = site.outputs[0].shape, site.inputs[0]
        gated = isinstance(site.op, GatedLinear | NormedGatedLinear)
        return tiling(
            rows, n, x.shape[1], gated=gated, size=x.dtype.size, processors=device.processors, shared=device.shared
        )

    def parts(self, operands: Operands) -> torch.Tensor | None:
        if operands.workspace is None:
            return None
        return typed(operands.workspace, (operands.workspace.type.shape[0] // 4,), None, DType.F32)


def _biases(site: Site, first: int, count: int) -> tuple[WeightForm, ...]:
    return (dense_form(site, tuple(range(first + count, first + 2 * count))),)


@FEW_ROWS_KERNELS.register(Linear)
class FewRowsLinearKernel(_FewRows):
    """The device tells whether this or the library's product is the faster one."""

    def weights(self, site: Site) -> int:
        op = site.op
        assert isinstance(op, Linear)
        return op.weights

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return LinearKernel().forms(site)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        x, out = view(operands.input(0)), view(operands.outputs[0])
        bias = operands.held[1] if len(operands.held) > 1 else None
        own = Product(x, operands.held[0], Around(out, bias), self.parts(operands)).bind(self.how(site, device), device)
        library = LinearKernel().call(site, operands, device)
        return (own, library)[device.fastest((site.op, x.shape, out.shape), (own, library))]


@FEW_ROWS_KERNELS.register(GatedLinear)
class FewRowsGatedLinearKernel(_FewRows):
    def weights(self, site: Site) -> int:
        return 2

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, GatedLinear)
        x, out = view(operands.input(0)), view(operands.outputs[0])
        product = Product(x, operands.held[0], Around(out, gate=op.activation), self.parts(operands))
        return product.bind(self.how(site, device), device)


@FEW_ROWS_KERNELS.register(NormedLinear)
class NormedLinearKernel(_FewRows):
    first = 2

    def weights(self, site: Site) -> int:
        op = site.op
        assert isinstance(op, NormedLinear)
        return op.weights

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        op = site.op
        assert isinstance(op, NormedLinear)
        return super().forms(site) + (_biases(site, 2, op.weights) if op.bias else ())

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, NormedLinear)
        x, squares, out = view(operands.input(0)), view(operands.input(1)), view(operands.outputs[0])
        bias = operands.held[1] if op.bias else None
        around = Around(out, bias, squares=squares, eps=op.eps)
        product = Product(x, operands.held[0], around, self.parts(operands))
        return product.bind(self.how(site, device), device)


@FEW_ROWS_KERNELS.register(NormedGatedLinear)
class NormedGatedLinearKernel(_FewRows):
    first = 2

    def weights(self, site: Site) -> int:
        return 2

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, NormedGatedLinear)
        x, squares, out = view(operands.input(0)), view(operands.input(1)), view(operands.outputs[0])
        around = Around(out, gate=op.activation, squares=squares, eps=op.eps)
        product = Product(x, operands.held[0], around, self.parts(operands))
        return product.bind(self.how(site, device), device)


@FEW_ROWS_KERNELS.register(ResidualLinear)
class ResidualLinearKernel(_FewRows):
    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return dense_form(site, (1,)), dense_form(site, (3,))

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, ResidualLinear)
        x, residual = view(operands.input(0)), view(operands.input(2))
        total, scaled, sums = (view(output) for output in operands.outputs)
        weight, gain = operands.held
        around = Around(total, residual=residual, gain=gain, offset=op.offset, scaled=scaled, sums=sums)
        product = Product(x, weight, around, self.parts(operands))
        return product.bind(self.how(site, device), device)
