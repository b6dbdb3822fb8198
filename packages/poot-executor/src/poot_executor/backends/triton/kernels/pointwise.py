"""Elementwise kernels and gated activations."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import TRITON_KERNELS, TritonKernel, begin_kernel, live_index, view
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import Add, Clamp, GatedActivation, Mul, Scale, SoftCap
from poot_executor.ops.pointwise import Activation

_ADD, _MUL, _SCALE, _SOFTCAP, _CLAMP = range(5)
# Activations of a gate, as kernels know them; 0 is none.
GATES = {None: 0, "silu": 1, "gelu_tanh": 2}


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _elementwise(
    x,
    y,
    out,
    live,
    x_pitch,
    y_pitch,
    width,
    factor,
    LIVE: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    begin_kernel(PDL)
    row = tl.program_id(0)
    if row < tl.load(live + LIVE):
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = at < width
        a = tl.load(x + row * x_pitch + at, mask=mask).to(tl.float32)
        if KIND == 0:
            a = a + tl.load(y + row * y_pitch + at, mask=mask).to(tl.float32)
        elif KIND == 1:
            a = a * tl.load(y + row * y_pitch + at, mask=mask).to(tl.float32)
        elif KIND == 2:
            a = a * factor
        elif KIND == 3:
            a = _tanh(a / factor) * factor
        else:
            a = tl.minimum(tl.maximum(a, -factor), factor)
        tl.store(out + row * width + at, a, mask=mask)


class _Elementwise(TritonKernel):
    kind = _ADD

    def accepts(self, site: Site) -> str | None:
        return None if len(site.inputs[0].shape) == 2 else "it has more than two dimensions"

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        x, out = view(operands.input(0)), view(operands.outputs[0])
        y = view(operands.input(1)) if len(operands.inputs) > 1 else x
        op, factor = site.op, 1.0
        if isinstance(op, Scale):
            factor = op.factor
        elif isinstance(op, SoftCap | Clamp):
            factor = op.cap if isinstance(op, SoftCap) else op.limit
        rows, width = x.shape
        block = min(1024, triton.next_power_of_2(width))
        grid = (rows, triton.cdiv(width, block))
        index, live, kind = live_index(site.inputs[0]), device.live, self.kind
        return lambda: _elementwise[grid](
            x,
            y,
            out,
            live,
            x.stride(0),
            y.stride(0),
            width,
            factor,
            LIVE=index,
            KIND=kind,
            BLOCK=block,
            **device.launch,
        )


@TRITON_KERNELS.register(Add)
class AddKernel(_Elementwise):
    kind = _ADD


@TRITON_KERNELS.register(Mul)
class MulKernel(_Elementwise):
    kind = _MUL


@TRITON_KERNELS.register(Scale)
class ScaleKernel(_Elementwise):
    kind = _SCALE


@TRITON_KERNELS.register(SoftCap)
class SoftCapKernel(_Elementwise):
    kind = _SOFTCAP


@TRITON_KERNELS.register(Clamp)
class ClampKernel(_Elementwise):
    kind = _CLAMP


@triton.jit
def gated(value, up, GATE: tl.constexpr):
    """SiLU or, if GATE is 2, the tanh form of GELU, times `up`."""
    inner = value
    if GATE == 2:
        inner = 1.5957691216057308 * (value + 0.044715 * value * value * value)
    return value * tl.sigmoid(inner) * up


@triton.jit
def _gated(x, out, live, pitch, width, LIVE: tl.constexpr, GATE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0)
    count = tl.load(live + LIVE)
    begin_kernel(PDL)
    if row < count:
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = at < width
        gate = tl.load(x + row * pitch + at, mask=mask).to(tl.float32)
        up = tl.load(x + row * pitch + width + at, mask=mask).to(tl.float32)
        tl.store(out + row * width + at, gated(gate, up, GATE), mask=mask)


def gate_rows(
    activation: Activation, x: torch.Tensor, out: torch.Tensor, index: int, device: Any
) -> Callable[[], object]:
    """activation(gate) * up over live rows x = [gate | up]; `index` is the place of their count in `device.live`."""
    rows, width = prod(out.shape[:-1]), out.shape[-1]
    block = min(1024, triton.next_power_of_2(width))
    grid = (rows, triton.cdiv(width, block))
    pitch, live, gate = x.stride(0), device.live, GATES[activation]
    return lambda: _gated[grid](x, out, live, pitch, width, LIVE=index, GATE=gate, BLOCK=block, **device.launch)


@TRITON_KERNELS.register(GatedActivation)
class GatedActivationKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, GatedActivation)
        x, out = view(operands.input(0)), view(operands.outputs[0])
        return gate_rows(op.activation, x, out, live_index(site.inputs[0]), device)
