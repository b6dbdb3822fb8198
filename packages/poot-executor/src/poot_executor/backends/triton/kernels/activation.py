"""Activations of feed-forward parts that have no gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import TRITON_KERNELS, TritonKernel, begin_kernel, live_index, view
from poot_executor.backends.triton.kernels.pointwise import GATES, gated
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import Gelu, XIelu

_TANH, _ERF, _XIELU = range(3)


@triton.jit
def _beyond_line(x):
    """exp(x) - 1 - x of x <= 0: near zero, where the difference has no digits left, its series."""
    series = x * x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0)))))
    return tl.where(x > -0.35, series, tl.exp(x) - 1.0 - x)


@triton.jit
def _activation(
    x, out, live, pitch, width, alpha_p, alpha_n, beta, eps,
    LIVE: tl.constexpr, KIND: tl.constexpr, GATE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    count = tl.load(live + LIVE)
    begin_kernel(PDL)
    if row < count:
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = at < width
        a = tl.load(x + row * pitch + at, mask=mask, other=0.0).to(tl.float32)
        if KIND == 0:
            a = gated(a, 1.0, GATE)
        elif KIND == 1:
            a = 0.5 * a * (1.0 + tl.erf(a * 0.7071067811865476))
        else:
            # exp(low) - 1 - a, without a difference of numbers near one.
            low = tl.minimum(a, eps)
            below = (_beyond_line(low) + (low - a)) * alpha_n
            a = tl.where(a > 0.0, alpha_p * a * a, below) + beta * a
        tl.store(out + row * width + at, a, mask=mask)


class _Activation(TritonKernel):
    def accepts(self, site: Site) -> str | None:
        return None if len(site.inputs[0].shape) == 2 else "it has more than two dimensions"

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, Gelu | XIelu)
        x, out = view(operands.input(0)), view(operands.outputs[0])
        kind, slopes = _XIELU, (0.0, 0.0, 0.0, 0.0)
        if isinstance(op, XIelu):
            slopes = op.alpha_p, op.alpha_n, op.beta, op.eps
        else:
            kind = _TANH if op.form == "tanh" else _ERF
        rows, width = x.shape
        block = min(1024, triton.next_power_of_2(width))
        grid = (rows, triton.cdiv(width, block))
        pitch, live, index, gate = x.stride(0), device.live, live_index(site.inputs[0]), GATES["gelu_tanh"]
        return lambda: _activation[grid](
            x, out, live, pitch, width, *slopes, LIVE=index, KIND=kind, GATE=gate, BLOCK=block, **device.launch
        )


@TRITON_KERNELS.register(Gelu)
class GeluKernel(_Activation):
    """Over live rows, a program a row and at most 1,024 columns."""


@TRITON_KERNELS.register(XIelu)
class XIeluKernel(_Activation):
    """Over live rows, a program a row and at most 1,024 columns."""
