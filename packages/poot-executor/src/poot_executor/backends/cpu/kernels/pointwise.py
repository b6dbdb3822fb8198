"""Elementwise kernels: one torch call each, into the output's storage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, CpuKernel, view
from poot_executor.devices.protocol import Launch, Live
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import Add, GatedActivation, Mul, Scale, SoftCap


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
