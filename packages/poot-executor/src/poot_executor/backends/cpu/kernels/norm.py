"""Root mean square norms and rotary embedding."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, CpuKernel, typed, view
from poot_executor.backends.cpu.weights import f32_form
from poot_executor.devices.protocol import Launch, Live
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operand, Operands, Site, WeightForm
from poot_executor.ops import AddRmsNorm, RmsNorm, Rotary, RotaryTable


class _NormKernel(CpuKernel):
    def accepts(self, site: Site) -> str | None:
        op = site.op
        assert isinstance(op, RmsNorm | AddRmsNorm)
        return None if op.offset in (0.0, 1.0) else f"the weight's offset is {op.offset}, not 0 or 1"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return (f32_form(site, (len(site.inputs) - 1,)),)

    def workspace(self, site: Site) -> int:
        return 4 * prod(site.inputs[0].shape[:-1])


def _norm(op: RmsNorm | AddRmsNorm, x: torch.Tensor, out: torch.Tensor, operands: Operands) -> Callable[[], object]:
    """Normalise x into `out`, through which the squares pass: it must not be x."""
    assert operands.workspace is not None
    weight, eps = operands.held[0], torch.tensor(op.eps)
    work = typed(operands.workspace, (*x.shape[:-1], 1), None, DType.F32)

    def run() -> None:
        torch.mul(x, x, out=out)
        torch.mean(out, -1, keepdim=True, out=work)
        work.add_(eps).rsqrt_()
        torch.mul(x, work, out=out)
        if op.offset:
            out.addcmul_(out, weight)
        else:
            out.mul_(weight)

    return run


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


@CPU_KERNELS.register(RotaryTable)
class RotaryTableKernel(CpuKernel):
    def workspace(self, site: Site) -> int:
        return 4 * site.inputs[0].shape[0] * site.outputs[0].shape[1]

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, RotaryTable)
        frequencies = torch.tensor(op.spec.inverse_frequencies, dtype=torch.float32)
        half = len(frequencies)

        def launch(live: Live) -> Callable[[], object]:
            positions, table = view(operands.input(0), live)[:, None], view(operands.outputs[0], live)
            assert operands.workspace is not None
            angles = typed(operands.workspace, (len(positions), half), None, DType.F32)
            cos, sin = table[:, :half], table[:, half:]

            def run() -> None:
                torch.mul(positions, frequencies, out=angles)
                torch.cos(angles, out=cos)
                torch.sin(angles, out=sin)
                if op.spec.magnitude != 1.0:
                    table.mul_(op.spec.magnitude)

            return run

        return launch


@CPU_KERNELS.register(Rotary)
class RotaryKernel(CpuKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, Rotary)

        def launch(live: Live) -> Callable[[], object]:
            return _rotate(op, operands.input(0), operands.input(1), operands.outputs[0], live)

        return launch


def _rotate(op: Rotary, source: Operand, table_of: Operand, target: Operand, live: Live) -> Callable[[], None]:
    x, table, out = view(source, live), view(table_of, live)[:, None], view(target, live)
    dim = table.shape[-1]
    cos, sin = table[..., : dim // 2], table[..., dim // 2 :]
    step = slice(None, dim // 2), slice(dim // 2, dim)
    if op.style == "interleaved":
        step = slice(0, dim, 2), slice(1, dim, 2)
    xa, xb = x[..., step[0]], x[..., step[1]]
    oa, ob = out[..., step[0]], out[..., step[1]]
    tail = (x[..., dim:], out[..., dim:]) if dim < x.shape[-1] else None

    def run() -> None:
        torch.mul(xa, cos, out=oa)
        oa.addcmul_(xb, sin, value=-1)
        torch.mul(xb, cos, out=ob)
        ob.addcmul_(xa, sin)
        if tail:
            tail[1].copy_(tail[0])

    return run
