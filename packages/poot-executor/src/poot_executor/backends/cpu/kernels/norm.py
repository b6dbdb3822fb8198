"""Root mean square norms and layer norms."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, CpuKernel, typed, view
from poot_executor.backends.cpu.weights import f32_form
from poot_executor.devices.protocol import Launch, Live
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operands, Site, WeightForm
from poot_executor.ops import AddRmsNorm, LayerNorm, RmsNorm


class _NormKernel(CpuKernel):
    def accepts(self, site: Site) -> str | None:
        op = site.op
        assert isinstance(op, RmsNorm | AddRmsNorm)
        return None if op.offset in (0.0, 1.0) else f"the weight's offset is {op.offset}, not 0 or 1"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return (f32_form(site, (len(site.inputs) - 1,)),)

    def workspace(self, site: Site) -> int:
        return 4 * prod(site.inputs[0].shape[:-1])


def norm_rows(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, *, eps: float, offset: float
) -> Callable[[], object]:
    """Normalise x (..., D) into `out`, through which its squares pass, so it is not x. `scale` (..., 1) is scratch."""
    least = torch.tensor(eps)

    def run() -> None:
        torch.mul(x, x, out=out)
        torch.mean(out, -1, keepdim=True, out=scale)
        scale.add_(least).rsqrt_()
        torch.mul(x, scale, out=out)
        if offset:
            out.addcmul_(out, weight)
        else:
            out.mul_(weight)

    return run


def _norm(op: RmsNorm | AddRmsNorm, x: torch.Tensor, out: torch.Tensor, operands: Operands) -> Callable[[], object]:
    assert operands.workspace is not None
    scale = typed(operands.workspace, (*x.shape[:-1], 1), None, DType.F32)
    return norm_rows(x, operands.held[0], out, scale, eps=op.eps, offset=op.offset)


@CPU_KERNELS.register(RmsNorm)
class RmsNormKernel(_NormKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, RmsNorm)

        def launch(live: Live) -> Callable[[], object]:
            return _norm(op, view(operands.input(0), live), view(operands.outputs[0], live), operands)

        return launch


@CPU_KERNELS.register(AddRmsNorm)
class AddRmsNormKernel(_NormKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, AddRmsNorm)

        def launch(live: Live) -> Callable[[], object]:
            x, residual = view(operands.input(0), live), view(operands.input(1), live)
            normed, total = (view(output, live) for output in operands.outputs)
            norm = _norm(op, total, normed, operands)

            def run() -> None:
                torch.add(x, residual, out=total)
                norm()

            return run

        return launch


@CPU_KERNELS.register(LayerNorm)
class LayerNormKernel(CpuKernel):
    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return tuple(f32_form(site, (index,)) for index in range(1, len(site.inputs)))

    def workspace(self, site: Site) -> int:
        return 4 * prod(site.inputs[0].shape[:-1])

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op, held = site.op, operands.held
        assert isinstance(op, LayerNorm) and operands.workspace is not None
        workspace, weight, bias = operands.workspace, held[0] if op.weight else None, held[-1] if op.bias else None
        width = site.inputs[0].shape[-1]

        def launch(live: Live) -> Callable[[], object]:
            x, out = view(operands.input(0), live), view(operands.outputs[0], live)
            scale = typed(workspace, (*x.shape[:-1], 1), None, DType.F32)

            def run() -> None:
                torch.mean(x, -1, keepdim=True, out=scale)
                torch.sub(x, scale, out=out)
                torch.linalg.vector_norm(out, dim=-1, keepdim=True, out=scale)
                scale.square_().div_(width).add_(op.eps).rsqrt_()
                out.mul_(scale)
                if weight is not None:
                    out.mul_(weight)
                if bias is not None:
                    out.add_(bias)

            return run

        return launch
