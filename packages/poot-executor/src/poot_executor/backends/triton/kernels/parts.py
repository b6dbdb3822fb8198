"""Products of many rows by the library in parts of their columns, which the next norm's kernel adds up.

The library cuts long rows itself, but then adds up the parts in a kernel of its own, rounds, and leaves the residual
and the norm to another one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.few_rows import FEW_ROWS_KERNELS
from poot_executor.backends.triton.kernels.kernel import (
    PACKED,
    TritonKernel,
    begin_kernel,
    dense_form,
    is_packed,
    live_index,
    place,
    typed,
    view,
)
from poot_executor.backends.triton.kernels.products import MOST_ROWS
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operands, Site, WeightForm
from poot_executor.ops import LinearAddRmsNorm

# With more rows a product fills the device as it is, and float32 parts are much to write.
_MOST = 256
_SPLITS = (2, 4, 1)
_ALIGNMENT = 16  # bytes at which a part begins
_WIDEST = 16384


@triton.jit
def _sum_norm(
    parts, residual, weight, out, total, live, size, width, eps, offset,
    SPLITS: tl.constexpr, LIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row; parts are `size` elements apart."""
    row = tl.program_id(0)
    count = tl.load(live + LIVE)
    at = tl.arange(0, BLOCK)
    mask = at < width
    w = tl.load(weight + at, mask=mask, other=0.0) + offset
    begin_kernel(PDL)
    if row < count:
        value = tl.load(residual + row * width + at, mask=mask, other=0.0).to(tl.float32)
        for i in tl.static_range(SPLITS):
            value += tl.load(parts + i * size + row * width + at, mask=mask, other=0.0)
        tl.store(total + row * width + at, value, mask=mask)
        # The norm is that of the sum as it is kept.
        value = value.to(total.dtype.element_ty).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(value * value) / width + eps)
        tl.store(out + row * width + at, value * scale * w, mask=mask)


@FEW_ROWS_KERNELS.register(LinearAddRmsNorm)
class PartsKernel(TritonKernel):
    """The device tells in how many parts the product is the fastest."""

    name = "torch bmm in parts, then norm"

    def accepts(self, site: Site) -> str | None:
        if is_packed(site):
            return PACKED
        (rows, width), size = site.inputs[0].shape, site.inputs[0].dtype.size
        if not MOST_ROWS < rows <= _MOST:
            return f"not {MOST_ROWS + 1} to {_MOST} rows"
        if site.outputs[0].shape[1] > _WIDEST:
            return f"rows are longer than {_WIDEST}"
        return None if width * size % _ALIGNMENT == 0 else f"rows are not multiples of {_ALIGNMENT} bytes"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return dense_form(site, (1,)), dense_form(site, (3,))

    def workspace(self, site: Site) -> int:
        rows, n = site.outputs[0].shape
        return 4 * max(_splits(site)) * rows * n

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        ways = {f"{splits} parts": partial(_call, site, operands, device, splits) for splits in _splits(site)}
        return ways[device.fastest((*place(site, operands), *ways), ways)]()


def _splits(site: Site) -> tuple[int, ...]:
    """Numbers of parts that leave each part whole lines."""
    width, size = site.inputs[0].shape[1], site.inputs[0].dtype.size
    return tuple(n for n in _SPLITS if width % n == 0 and width // n * size % _ALIGNMENT == 0)


def _call(site: Site, operands: Operands, device: Any, splits: int) -> Callable[[], object]:
    op = site.op
    assert isinstance(op, LinearAddRmsNorm) and operands.workspace is not None
    x, residual = view(operands.input(0)), view(operands.input(2))
    out, total = (view(output) for output in operands.outputs)
    weight, norm = operands.held
    (rows, width), n = x.shape, out.shape[1]
    parts = typed(operands.workspace, (splits, rows, n), None, DType.F32)
    of_x = x.view(rows, splits, width // splits).transpose(0, 1)
    of_w = weight.view(n, splits, width // splits).permute(1, 2, 0)
    product = device.product(of_x, of_w, parts)
    live, index, block = device.live, live_index(site.inputs[0]), triton.next_power_of_2(n)

    def run() -> None:
        product()
        _sum_norm[(rows,)](
            parts, residual, norm, out, total, live, rows * n, n, op.eps, op.offset,
            SPLITS=splits, LIVE=index, BLOCK=block, num_warps=max(1, min(16, block // 512)), **device.launch,
        )  # fmt: skip

    return run
