"""Root mean square norms, with the residual's addition, and rotary embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import (
    TRITON_KERNELS,
    TritonKernel,
    begin_kernel,
    dense_form,
    live_index,
    view,
)
from poot_executor.kernels.kernel import Operands, Site, WeightForm
from poot_executor.ops import AddRmsNorm, RmsNorm, Rotary, RotaryTable

_WIDEST = 16384


@triton.jit
def _rms_norm(
    x, residual, weight, out, total, live, pitch, head_pitch, width, eps, offset,
    HEADS: tl.constexpr, ADD: tl.constexpr, LIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin_kernel(PDL)
    program = tl.program_id(0)
    row = program // HEADS
    if row < tl.load(live + LIVE):
        at = tl.arange(0, BLOCK)
        mask = at < width
        a = tl.load(x + row * pitch + program % HEADS * head_pitch + at, mask=mask, other=0.0).to(tl.float32)
        if ADD:
            a += tl.load(residual + program * width + at, mask=mask, other=0.0).to(tl.float32)
            tl.store(total + program * width + at, a, mask=mask)
            # The norm is that of the sum as it is kept.
            a = a.to(total.dtype.element_ty).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(a * a) / width + eps)
        w = tl.load(weight + at, mask=mask, other=0.0) + offset
        tl.store(out + program * width + at, a * scale * w, mask=mask)


class _Norm(TritonKernel):
    def accepts(self, site: Site) -> str | None:
        return None if site.inputs[0].shape[-1] <= _WIDEST else f"rows are longer than {_WIDEST}"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return (dense_form(site, (len(site.inputs) - 1,)),)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, RmsNorm | AddRmsNorm)
        x, out, weight = view(operands.input(0)), view(operands.outputs[0]), operands.held[0]
        add = isinstance(op, AddRmsNorm)
        residual, total = (view(operands.input(1)), view(operands.outputs[1])) if add else (x, out)
        heads = x.shape[1] if x.ndim == 3 else 1
        width, live, index = x.shape[-1], device.live, live_index(site.inputs[0])
        block = triton.next_power_of_2(width)
        warps = max(1, min(16, block // 512))
        head_pitch = x.stride(1) if x.ndim == 3 else 0
        return lambda: _rms_norm[(x.shape[0] * heads,)](
            x, residual, weight, out, total, live, x.stride(0), head_pitch, width, op.eps, op.offset,
            HEADS=heads, ADD=add, LIVE=index, BLOCK=block, num_warps=warps, **device.launch)  # fmt: skip


@TRITON_KERNELS.register(RmsNorm)
class RmsNormKernel(_Norm):
    """One program a row, or a head of a row."""


@TRITON_KERNELS.register(AddRmsNorm)
class AddRmsNormKernel(_Norm):
    def accepts(self, site: Site) -> str | None:
        return super().accepts(site) if len(site.inputs[0].shape) == 2 else "it has more than two dimensions"


@triton.jit
def _rotary_table(
    positions,
    frequencies,
    table,
    live,
    magnitude,
    LIVE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    begin_kernel(PDL)
    row = tl.program_id(0)
    if row < tl.load(live + LIVE):
        at = tl.arange(0, BLOCK)
        mask = at < HALF
        angle = tl.load(positions + row).to(tl.float32) * tl.load(frequencies + at, mask=mask)
        tl.store(table + row * 2 * HALF + at, tl.cos(angle) * magnitude, mask=mask)
        tl.store(table + row * 2 * HALF + HALF + at, tl.sin(angle) * magnitude, mask=mask)


@TRITON_KERNELS.register(RotaryTable)
class RotaryTableKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, RotaryTable)
        positions, table, live = view(operands.input(0)), view(operands.outputs[0]), device.live
        frequencies = torch.tensor(op.spec.inverse_frequencies, dtype=torch.float32, device=table.device)
        half, index = len(frequencies), live_index(site.inputs[0])
        block, magnitude = triton.next_power_of_2(half), op.spec.magnitude
        return lambda: _rotary_table[(len(positions),)](
            positions,
            frequencies,
            table,
            live,
            magnitude,
            LIVE=index,
            HALF=half,
            BLOCK=block,
            **device.launch,
        )


@triton.jit
def _rotary(
    x, table, out, live, pitch, head_pitch, heads, width,
    LIVE: tl.constexpr, HALF: tl.constexpr, STEP: tl.constexpr, APART: tl.constexpr,
    BLOCK: tl.constexpr, HEADS: tl.constexpr, TAIL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin_kernel(PDL)
    row = tl.program_id(0)
    if row < tl.load(live + LIVE):
        head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
        at = tl.arange(0, BLOCK)[None, :]
        mask = (at < HALF) & (head < heads)
        cos = tl.load(table + row * 2 * HALF + at, mask=at < HALF)
        sin = tl.load(table + row * 2 * HALF + HALF + at, mask=at < HALF)
        source = x + row * pitch + head * head_pitch
        target = out + (row * heads + head) * width
        a = tl.load(source + at * STEP, mask=mask).to(tl.float32)
        b = tl.load(source + at * STEP + APART, mask=mask).to(tl.float32)
        tl.store(target + at * STEP, a * cos - b * sin, mask=mask)
        tl.store(target + at * STEP + APART, b * cos + a * sin, mask=mask)
        if TAIL > 0:
            rest = tl.arange(0, TAIL)[None, :] + 2 * HALF
            more = (rest < width) & (head < heads)
            tl.store(target + rest, tl.load(source + rest, mask=more), mask=more)


@TRITON_KERNELS.register(Rotary)
class RotaryKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, Rotary)
        x, table, out = view(operands.input(0)), view(operands.input(1)), view(operands.outputs[0])
        rows, heads, width = x.shape
        half, live, index = table.shape[1] // 2, device.live, live_index(site.inputs[0])
        step, apart = (1, half) if op.style == "half" else (2, 1)
        block, together = triton.next_power_of_2(half), min(8, triton.next_power_of_2(heads))
        tail = triton.next_power_of_2(width - 2 * half) if width > 2 * half else 0
        return lambda: _rotary[(rows, triton.cdiv(heads, together))](
            x, table, out, live, x.stride(0), x.stride(1), heads, width,
            LIVE=index, HALF=half, STEP=step, APART=apart, BLOCK=block, HEADS=together, TAIL=tail,
            **device.launch,
        )  # fmt: skip
