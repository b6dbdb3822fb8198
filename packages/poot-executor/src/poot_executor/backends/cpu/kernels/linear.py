"""Products in float32 over dense weights, and embedding rows read from the mapped checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, CpuKernel, typed, view
from poot_executor.backends.cpu.weights import f32_form
from poot_executor.devices.protocol import Launch, Live
from poot_executor.encodings.dequantise import dequantise_rows
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operand, Operands, Site, WeightForm
from poot_executor.ops import Embed, Linear


@CPU_KERNELS.register(Linear)
class LinearKernel(CpuKernel):
    name = "torch mm, float32 weights"

    def accepts(self, site: Site) -> str | None:
        return None if len(site.inputs[0].shape) == 2 else f"{site.inputs[0]} is no matrix"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        op = site.op
        assert isinstance(op, Linear)
        weights = f32_form(site, range(1, 1 + op.weights))
        if not op.bias:
            return (weights,)
        return (weights, f32_form(site, range(1 + op.weights, 1 + 2 * op.weights)))

    def workspace(self, site: Site) -> int:
        tokens, inner = site.inputs[0].shape
        few = min(tokens, _few(inner))
        return 4 * max(2, few) * (inner + site.outputs[0].shape[1]) if few else 0

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        weight = operands.held[0]
        bias = operands.held[1] if len(operands.held) > 1 else None

        def launch(live: Live) -> Callable[[], object]:
            x, out = view(operands.input(0), live), view(operands.outputs[0], live)
            if 0 < len(x) <= _few(x.shape[1]):
                assert operands.workspace is not None
                return _across(x, weight, bias, out, operands.workspace)
            if bias is None:
                return partial(torch.mm, x, weight.t(), out=out)
            return partial(torch.addmm, bias, x, weight.t(), out=out)

        return launch


def _few(inner: int) -> int:
    """The most tokens for which weight @ x^T is the faster order.

    A matrix-vector product of narrow rows reads memory at half the speed of a thin matrix product, and BLAS treats
    x @ weight^T as the former for few tokens (measured with MKL: 2 to 4 times slower at 576 columns, even at 2048).
    """
    if inner <= 1024:
        return 4
    return 2 if inner <= 2048 else 0


def _across(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, workspace: Operand
) -> Callable[[], object]:
    """(weight @ x^T)^T. One token is doubled, or the product would be one with a vector after all."""
    tokens, inner = x.shape
    columns = max(2, tokens)
    flat = typed(workspace, (columns * (inner + len(weight)),), None, DType.F32)
    pair, product = flat[: columns * inner].view(columns, inner), flat[columns * inner :].view(len(weight), columns)
    source = (pair if tokens == 1 else x).t()
    found = product.t()[:tokens]

    def run() -> None:
        if tokens == 1:
            pair.copy_(x)
        torch.mm(weight, source, out=product)
        if bias is None:
            out.copy_(found)
        else:
            torch.add(found, bias, out=out)

    return run


@CPU_KERNELS.register(Embed)
class EmbedKernel(CpuKernel):
    name = "rows of the mapped checkpoint"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return (WeightForm("mapped", (str(site.names[1]),), 0),)

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op, table = site.op, operands.held[0]
        assert isinstance(op, Embed)

        def launch(live: Live) -> Callable[[], object]:
            ids, out = view(operands.input(0), live), view(operands.outputs[0], live)

            def run() -> None:
                dequantise_rows(table, ids, out)
                if op.scale != 1.0:
                    out.mul_(op.scale)

            return run

        return launch
