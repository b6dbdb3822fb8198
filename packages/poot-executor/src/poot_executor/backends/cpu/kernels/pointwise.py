"""Elementwise kernels: one torch call each, into the output's storage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, CpuKernel, typed, view
from poot_executor.devices.protocol import Launch, Live
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import Add, Clamp, GatedActivation, Gelu, Mul, Scale, SoftCap, XIelu


class _BinaryKernel(CpuKernel):
    """One torch function of both inputs."""

    function: Callable[..., torch.Tensor]

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        def launch(live: Live) -> Callable[[], object]:
            x, y = view(operands.input(0), live), view(operands.input(1), live)
            return partial(self.function, x, y, out=view(operands.outputs[0], live))

        return launch


@CPU_KERNELS.register(Add)
class AddKernel(_BinaryKernel):
    function = staticmethod(torch.add)


@CPU_KERNELS.register(Mul)
class MulKernel(_BinaryKernel):
    function = staticmethod(torch.mul)


@CPU_KERNELS.register(Scale)
class ScaleKernel(CpuKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, Scale)

        def launch(live: Live) -> Callable[[], object]:
            return partial(torch.mul, view(operands.input(0), live), op.factor, out=view(operands.outputs[0], live))

        return launch


@CPU_KERNELS.register(SoftCap)
class SoftCapKernel(CpuKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, SoftCap)

        def launch(live: Live) -> Callable[[], object]:
            x, out = view(operands.input(0), live), view(operands.outputs[0], live)

            def run() -> None:
                torch.mul(x, 1.0 / op.cap, out=out)
                out.tanh_().mul_(op.cap)

            return run

        return launch


@CPU_KERNELS.register(Clamp)
class ClampKernel(CpuKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, Clamp)

        def launch(live: Live) -> Callable[[], object]:
            x, out = view(operands.input(0), live), view(operands.outputs[0], live)
            return partial(torch.clamp, x, -op.limit, op.limit, out=out)

        return launch


@CPU_KERNELS.register(Gelu)
class GeluKernel(CpuKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, Gelu)
        form = "tanh" if op.form == "tanh" else "none"

        def launch(live: Live) -> Callable[[], object]:
            x, out = view(operands.input(0), live), view(operands.outputs[0], live)
            return partial(torch.ops.aten.gelu.out, x, approximate=form, out=out)

        return launch


@CPU_KERNELS.register(XIelu)
class XIeluKernel(CpuKernel):
    """Workspace holds what is below zero, made for all elements, and which of them are above."""

    def workspace(self, site: Site) -> int:
        return 5 * site.inputs[0].elements

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op, workspace = site.op, operands.workspace
        assert isinstance(op, XIelu) and workspace is not None

        def launch(live: Live) -> Callable[[], object]:
            x, out = view(operands.input(0), live), view(operands.outputs[0], live)
            bytes_ = typed(workspace, (5 * x.numel(),), None, DType.U8)
            below = bytes_[: 4 * x.numel()].view(torch.float32).view(x.shape)
            above = bytes_[4 * x.numel() :].view(torch.bool).view(x.shape)

            def run() -> None:
                torch.clamp(x, max=op.eps, out=below)
                below.expm1_().sub_(x).mul_(op.alpha_n)
                torch.mul(x, x, out=out)
                out.mul_(op.alpha_p)
                torch.gt(x, 0.0, out=above)
                torch.where(above, out, below, out=out)
                out.add_(x, alpha=op.beta)

            return run

        return launch


@CPU_KERNELS.register(GatedActivation)
class GatedActivationKernel(CpuKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, GatedActivation)

        def launch(live: Live) -> Callable[[], object]:
            gate, up = view(operands.input(0), live).chunk(2, dim=-1)
            out = view(operands.outputs[0], live)
            if op.activation == "silu":
                activate = partial(torch.ops.aten.silu.out, gate, out=out)
            else:
                activate = partial(torch.ops.aten.gelu.out, gate, approximate="tanh", out=out)

            def run() -> None:
                activate()
                out.mul_(up)

            return run

        return launch
