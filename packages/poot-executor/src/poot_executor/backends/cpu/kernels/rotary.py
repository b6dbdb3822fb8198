"""Rotary embedding: a step's cosines and sines, queries turned, keys turned and stored with their values."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, CpuKernel, typed, view
from poot_executor.backends.cpu.kernels.norm import norm_rows
from poot_executor.backends.cpu.weights import f32_form
from poot_executor.devices.protocol import Launch, Live
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operands, Site, WeightForm
from poot_executor.ops import RotaryKvWrite, RotaryTable


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


@CPU_KERNELS.register(RotaryKvWrite)
class RotaryKvWriteKernel(CpuKernel):
    """Workspace holds the turned keys; where heads are normed also their scales and the normed queries or keys."""

    def accepts(self, site: Site) -> str | None:
        op = site.op
        assert isinstance(op, RotaryKvWrite)
        return None if op.offset in (0.0, 1.0) else f"the weights' offset is {op.offset}, not 0 or 1"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        op = site.op
        assert isinstance(op, RotaryKvWrite)
        return () if op.eps is None else (f32_form(site, (7, 8)),)

    def workspace(self, site: Site) -> int:
        return 4 * sum(_sizes(site))

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op, workspace = site.op, operands.workspace
        assert isinstance(op, RotaryKvWrite) and workspace is not None
        sizes = _sizes(site)
        turned, normed, scales = torch.split(typed(workspace, (sum(sizes),), None, DType.F32), sizes)
        k_pool, v_pool = (view(output).numpy() for output in operands.outputs[1:])
        weights = operands.held[0].chunk(2) if operands.held else ()

        def launch(live: Live) -> Callable[[], object]:
            q, k, v, table, slots = (view(operands.input(i), live) for i in range(5))
            keys = turned[: k.numel()].view(k.shape)
            steps: list[Callable[[], object]] = []
            for index, (x, out) in enumerate(((q, view(operands.outputs[0], live)), (k, keys))):
                source = x
                if op.eps is not None:
                    source, scale = normed[: x.numel()].view(x.shape), scales[: x.numel() // x.shape[2]]
                    scale = scale.view(*x.shape[:2], 1)
                    steps.append(norm_rows(x, weights[index], source, scale, eps=op.eps, offset=op.offset))
                steps.append(_rotate(op, source, table, out))
            values, new, at = v.numpy(), keys.numpy(), slots.numpy()

            def run() -> None:
                for step in steps:
                    step()
                k_pool[at] = new
                v_pool[at] = values

            return run

        return launch


def _sizes(site: Site) -> list[int]:
    """Elements of each part of the workspace."""
    op, (q, k) = site.op, site.inputs[:2]
    assert isinstance(op, RotaryKvWrite)
    if op.eps is None:
        return [k.elements, 0, 0]
    return [k.elements, max(q.elements, k.elements), max(prod(q.shape[:2]), prod(k.shape[:2]))]


def _rotate(op: RotaryKvWrite, x: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
    dim = table.shape[-1]
    cos, sin = table[:, None, : dim // 2], table[:, None, dim // 2 :]
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
