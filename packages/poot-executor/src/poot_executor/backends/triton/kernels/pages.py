"""Paged attention where the device has a tensor copy engine: whole pages come by it, so that a program is one warp.

The items and the sum of their parts are those of `items`. No thread computes addresses of keys and values, and
many small programs, none of whose warps waits for another, keep the memory busy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from poot_executor.backends.triton.kernels.attention import WARP_KEEPS, PagedAttentionKernel
from poot_executor.backends.triton.kernels.few_rows import FEW_ROWS_KERNELS
from poot_executor.backends.triton.kernels.items import (
    Attended,
    finish_item,
    load_item,
    load_queries,
    matrix_rows,
    page_of,
)
from poot_executor.backends.triton.kernels.kernel import begin_kernel
from poot_executor.backends.triton.kernels.plan import FEW
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import PagedAttention

# The fastest found on an H200 over 48 to 256 rows of 200 to 8,192 keys, 32 heads over 8 KV heads of 128: pages under
# way at once, and programs a multiprocessor at most. Turns of two pages were slower.
_STAGES, _PROGRAMS = 3, 16


@triton.jit
def _attend_pages(
    q, k_tiles, v_tiles, plan, table, sinks, out, parts, locks, q_pitch, q_head, table_pitch, scale, softcap,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, SPLITS: tl.constexpr,
    TOGETHER: tl.constexpr, LINES: tl.constexpr, SINKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Units are (item, KV head); a matrix row is a query and one of the heads that share the KV head."""
    begin_kernel(PDL)
    units = tl.load(plan) * KV_HEADS
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        head = unit % KV_HEADS
        row, start, queries, position, begin, end, split, splits = load_item(plan, unit // KV_HEADS)
        a, query, of_head, inside, most = load_queries(
            q, sinks, start, queries, head, split, q_pitch, q_head,
            HEADS, KV_HEADS, DIM, DIM, TILE, ROWS, SINKS,
        )  # fmt: skip
        total = tl.where(most == float("-inf"), 0.0, 1.0)
        sums = tl.zeros((ROWS, DIM), tl.float32)
        pages = table + row * table_pitch
        first = begin // PAGE * PAGE
        # Each query sees the keys from `lower` up to, but not, `upper`.
        upper = tl.minimum(position + query + 1, end)
        lower = tl.maximum(position + query - WINDOW + 1, begin)
        page = tl.load(pages + page_of(first, table_pitch, PAGE, WINDOW))
        for base in tl.range(first, end, PAGE, num_stages=STAGES):
            k = k_tiles.load([page * PAGE, head * DIM])
            v = v_tiles.load([page * PAGE, head * DIM])
            # The next page is looked up while this one is on its way; after the last there is none, and that will do.
            page = tl.load(pages + page_of(tl.minimum(base + PAGE, end - 1), table_pitch, PAGE, WINDOW))
            key = base + tl.arange(0, PAGE)
            scores = tl.dot(a, tl.trans(k), input_precision="ieee") * scale
            if CAPPED:
                scores = (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0) * softcap
            seen = key[None, :] < upper[:, None]
            if WINDOW > 0:
                seen = seen & (key[None, :] >= lower[:, None])
            scores = tl.where(seen, scores, float("-inf"))
            peak = tl.maximum(most, tl.max(scores, 1))
            safe = tl.where(peak == float("-inf"), 0.0, peak)
            weight = tl.exp(scores - safe[:, None])
            fade = tl.exp(most - safe)
            total = total * fade + tl.sum(weight, 1)
            # Where no key is, the weight is zero and the value an old one: pools hold finite values.
            sums = tl.dot(weight.to(v.dtype), v, sums * fade[:, None], input_precision="ieee")
            most = peak
        finish_item(
            out, parts, locks, sums, total, most, (start + query) * HEADS + of_head, inside, start, queries, head,
            split, splits, HEADS, KV_HEADS, DIM, DIM, SPLITS, TOGETHER, LINES,
        )  # fmt: skip


@FEW_ROWS_KERNELS.register(PagedAttention)
class PagesAttentionKernel(PagedAttentionKernel):
    name = "persistent, split keys, copied pages"

    def accepts(self, site: Site) -> str | None:
        op = site.op
        assert isinstance(op, PagedAttention)
        tokens, heads, width = site.inputs[0].shape
        if tokens <= FEW:
            return f"{FEW} rows or fewer"
        if matrix_rows(op, tokens, heads // site.inputs[1].shape[1]) * width > WARP_KEEPS:
            return "results are too large for one warp"
        if width & (width - 1) or not 16 <= width <= 256:
            return "heads are not 16, 32, 64, 128 or 256 wide"
        if op.block & (op.block - 1) or op.block < 16:
            return "blocks are no power of two of 16 keys or more"
        return super().accepts(site)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        it = Attended.of(site, operands)
        if (own := device.attend_rows(it)) is not None:
            return own  # type: ignore[no-any-return]
        block = [it.op.block, it.q.shape[2]]
        pools = [TensorDescriptor.from_tensor(pool.view(len(pool), -1), block) for pool in (it.k_pool, it.v_pool)]
        programs = min(it.tokens * it.kv_heads, _PROGRAMS * device.processors)
        # The more values a program holds, the fewer fit on a multiprocessor. Where one round is nearly full that is
        # welcome, since it spreads them evenly.
        together = it.together(1, 128 if 4 < programs / device.processors <= 8 else 32)
        return lambda: _attend_pages[(programs,)](
            it.q, *pools, *it.tensors, *it.numbers, **it.constants, STAGES=_STAGES, TOGETHER=together, num_warps=1,
            num_stages=_STAGES, **device.launch,
        )  # fmt: skip
