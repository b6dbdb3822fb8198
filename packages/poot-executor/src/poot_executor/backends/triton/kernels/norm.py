"""Root mean square norms, with the residual's addition, and layer norms."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

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
from poot_executor.ops import AddRmsNorm, LayerNorm, RmsNorm

_WIDEST = 16384


@triton.jit
def _rms_norm(
    x, residual, weight, out, total, live, pitch, head_pitch, width, eps, offset,
    HEADS: tl.constexpr, ADD: tl.constexpr, LIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row = program // HEADS
    count = tl.load(live + LIVE)
    at = tl.arange(0, BLOCK)
    mask = at < width
    w = tl.load(weight + at, mask=mask, other=0.0) + offset
    begin_kernel(PDL)
    if row < count:
        a = tl.load(x + row * pitch + program % HEADS * head_pitch + at, mask=mask, other=0.0).to(tl.float32)
        if ADD:
            a += tl.load(residual + program * width + at, mask=mask, other=0.0).to(tl.float32)
            tl.store(total + program * width + at, a, mask=mask)
            # The norm is that of the sum as it is kept.
            a = a.to(total.dtype.element_ty).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(a * a) / width + eps)
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
def _layer_norm(
    x, weight, bias, out, live, pitch, head_pitch, width, eps,
    HEADS: tl.constexpr, APART: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, LIVE: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """APART: each head has weights of its own."""
    program = tl.program_id(0)
    row, head = program // HEADS, program % HEADS
    count = tl.load(live + LIVE)
    at = tl.arange(0, BLOCK)
    mask = at < width
    first = head * width if APART else 0
    if WEIGHT:
        w = tl.load(weight + first + at, mask=mask, other=0.0)
    if BIAS:
        b = tl.load(bias + first + at, mask=mask, other=0.0)
    begin_kernel(PDL)
    if row < count:
        a = tl.load(x + row * pitch + head * head_pitch + at, mask=mask, other=0.0).to(tl.float32)
        a = tl.where(mask, a - tl.sum(a) / width, 0.0)
        a = a * (1.0 / tl.sqrt(tl.sum(a * a) / width + eps))
        if WEIGHT:
            a = a * w
        if BIAS:
            a = a + b
        tl.store(out + program * width + at, a, mask=mask)


@TRITON_KERNELS.register(LayerNorm)
class LayerNormKernel(TritonKernel):
    """One program a row, or a head of a row."""

    def accepts(self, site: Site) -> str | None:
        if len(site.inputs[0].shape) > 3:
            return "it has more than three dimensions"
        return None if site.inputs[0].shape[-1] <= _WIDEST else f"rows are longer than {_WIDEST}"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        """Each in float32, also where heads have weights of their own."""
        weights = zip(site.names[1:], site.inputs[1:], strict=True)
        return tuple(WeightForm("vector", (str(name),), 4 * prod(type_.shape)) for name, type_ in weights)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, LayerNorm)
        x, out, held = view(operands.input(0)), view(operands.outputs[0]), operands.held
        weight, bias = held[0] if op.weight else x, held[-1] if op.bias else x
        heads, head_pitch = (x.shape[1], x.stride(1)) if x.ndim == 3 else (1, 0)
        apart = any(len(type_.shape) > 1 for type_ in site.inputs[1:])
        width, live, index = x.shape[-1], device.live, live_index(site.inputs[0])
        block = triton.next_power_of_2(width)
        warps = max(1, min(16, block // 512))
        return lambda: _layer_norm[(x.shape[0] * heads,)](
            x, weight, bias, out, live, x.stride(0), head_pitch, width, op.eps, HEADS=heads, APART=apart,
            WEIGHT=op.weight, BIAS=op.bias, LIVE=index, BLOCK=block, num_warps=warps, **device.launch)  # fmt: skip
