"""Products of a single row, where reading the weights is all there is to do: no tiles, no matrix units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.gated import GatedLinearKernel
from poot_executor.backends.triton.kernels.kernel import PACKED, TRITON_KERNELS, begin_kernel, is_packed, view
from poot_executor.backends.triton.kernels.linear import LinearKernel
from poot_executor.backends.triton.kernels.pointwise import GATES, gated
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import GatedLinear, Linear


@triton.jit
def _sums(source, x, k, inside, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Products of rows, each of any length, with x, not yet summed."""
    at = tl.arange(0, BLOCK)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, k, BLOCK):
        more = at < k - start
        part = tl.load(source + start, mask=inside[:, None] & more[None, :], other=0.0).to(tl.float32)
        sums += part * tl.load(x + start + at, mask=more, other=0.0).to(tl.float32)[None, :]
    return sums


@triton.jit
def _one_row(
    x, w, bias, out, n, k,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, EVEN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """ROWS rows of the weight (of gate and up: n apart). The first weights are on their way before x is there."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = row < n
    source = w + row.to(tl.int64)[:, None] * k + at[None, :]
    up = source + n.to(tl.int64) * k
    if EVEN:
        first = tl.load(source, eviction_policy="evict_first")
        if GATE > 0:
            first_up = tl.load(up, eviction_policy="evict_first")
        begin_kernel(PDL)
        of_x = tl.load(x + at).to(tl.float32)[None, :]
        sums = first.to(tl.float32) * of_x
        if GATE > 0:
            up_sums = first_up.to(tl.float32) * of_x
        for start in range(BLOCK, k, BLOCK):
            of_x = tl.load(x + start + at).to(tl.float32)[None, :]
            sums += tl.load(source + start, eviction_policy="evict_first").to(tl.float32) * of_x
            if GATE > 0:
                up_sums += tl.load(up + start, eviction_policy="evict_first").to(tl.float32) * of_x
    else:
        begin_kernel(PDL)
        sums = _sums(source, x, k, inside, ROWS, BLOCK)
        if GATE > 0:
            up_sums = _sums(up, x, k, inside, ROWS, BLOCK)
    value = tl.sum(sums, 1)
    if GATE > 0:
        value = gated(value, tl.sum(up_sums, 1), GATE)
    if BIAS:
        value += tl.load(bias + row, mask=inside, other=0.0)
    tl.store(out + row, value, mask=inside)


def _launch(
    site: Site, operands: Operands, device: Any, bias: torch.Tensor | None, gate: str | None
) -> Callable[[], object]:
    x, out, weight = view(operands.input(0)), view(operands.outputs[0]), operands.held[0]
    n, k, rows = out.shape[1], weight.shape[1], 1 if gate else 2
    block = min(2048, triton.next_power_of_2(k))
    even = n % rows == 0 and k % block == 0
    given = weight if bias is None else bias
    return lambda: _one_row[(triton.cdiv(n, rows),)](
        x, weight, given, out, n, k, ROWS=rows, BLOCK=block, BIAS=bias is not None, GATE=GATES[gate], EVEN=even,
        num_warps=8, **device.launch,
    )  # fmt: skip


def _refusal(site: Site) -> str | None:
    if is_packed(site):
        return PACKED
    return None if site.inputs[0].shape[0] == 1 else "more than one row"


@TRITON_KERNELS.register(Linear, preferred=True)
class OneRowLinearKernel(LinearKernel):
    name = "matrix-vector"

    def accepts(self, site: Site) -> str | None:
        return _refusal(site)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        bias = operands.held[1] if len(operands.held) > 1 else None
        return _launch(site, operands, device, bias, None)


@TRITON_KERNELS.register(GatedLinear, preferred=True)
class OneRowGatedLinearKernel(GatedLinearKernel):
    name = "matrix-vector"

    def accepts(self, site: Site) -> str | None:
        return _refusal(site)

    def workspace(self, site: Site) -> int:
        return 0

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, GatedLinear)
        return _launch(site, operands, device, None, op.activation)
