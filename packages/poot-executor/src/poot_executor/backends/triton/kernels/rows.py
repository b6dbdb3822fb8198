"""Row table kernels: one program a run or a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import (
    LIVE_INDEX,
    TRITON_KERNELS,
    TritonKernel,
    begin_kernel,
    live_index,
    view,
)
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import (
    CommitTokens,
    GatherRows,
    KeepLast,
    LastRows,
    OpenRow,
    RowLayout,
    SlotMap,
    UnpackStep,
    WriteHistory,
)

# The layout's numbers as the kernels' own constants.
_HEADER: tl.constexpr = tl.constexpr(RowLayout.HEADER)
_LENGTH: tl.constexpr = tl.constexpr(RowLayout.LENGTH)
_RECALL_HEADER: tl.constexpr = tl.constexpr(RowLayout.RECALL_HEADER)


@triton.jit
def _copy_row(block, state, at, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin_kernel(PDL)
    row = tl.load(block)
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(block + at + i, mask=i < width)
        tl.store(state + row * width + i, value, mask=i < width)


@TRITON_KERNELS.register(OpenRow)
class OpenRowKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        block = view(operands.input(0))
        states = [view(output).view(block.dtype) for output in operands.outputs]

        def run() -> None:
            at = 1
            for state in states:
                _copy_row[(1,)](block, state, at, state.shape[1], BLOCK=256, **device.launch)
                at += state.shape[1]

        return run


@triton.jit
def _recall(block, history, pitch, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin_kernel(PDL)
    row, first, count = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(block + _RECALL_HEADER + i, mask=i < count, other=0)
    tl.store(history + row.to(tl.int64) * pitch + first + i, token, mask=i < count)


@TRITON_KERNELS.register(WriteHistory)
class WriteHistoryKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        block, history = view(operands.input(0)), view(operands.outputs[0])
        grid = (triton.cdiv(len(block) - RowLayout.RECALL_HEADER, 256),)
        return lambda: _recall[grid](block, history, history.stride(0), BLOCK=256, **device.launch)


@triton.jit
def _unpack(
    block, ids, positions, of_row, runs, ints, history, live, history_pitch, rows,
    INTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0)
    count = tl.load(live + 1)
    begin_kernel(PDL)
    # Read before the run is known to be live, which its reads then need not wait for; the block has room for all runs.
    base = block + _HEADER
    row = tl.load(base + run * 4)
    first = tl.load(base + run * 4 + 1)
    length = tl.load(base + run * 4 + 2)
    flags = tl.load(base + run * 4 + 3)
    before = tl.arange(0, ROWS)
    lengths = tl.load(base + before * 4 + 2, mask=before < run, other=0)
    if run >= count:
        tl.store(runs + run * 4 + tl.arange(0, 4), tl.zeros((4,), tl.int32))
        return
    at = tl.sum(lengths)
    if first < 0:
        first = tl.load(ints + row * INTS + _LENGTH)
    given = base + rows * 4 + at
    kept = history + row.to(tl.int64) * history_pitch + first
    for start in range(0, length, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < length
        if flags & 1:
            token = tl.load(given + i, mask=mask)
            tl.store(kept + i, token, mask=mask)
        else:
            token = tl.load(kept + i, mask=mask)
        tl.store(ids + at + i, token, mask=mask)
        tl.store(positions + at + i, first + i, mask=mask)
        tl.store(of_row + at + i, tl.zeros_like(i) + row, mask=mask)
    tl.store(runs + run * 4, row)
    tl.store(runs + run * 4 + 1, first)
    tl.store(runs + run * 4 + 2, length)
    tl.store(runs + run * 4 + 3, flags)
    tl.store(ints + row * INTS + _LENGTH, first + length)


@TRITON_KERNELS.register(UnpackStep)
class UnpackStepKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        block, live = view(operands.input(0)), device.live
        ids, positions, of_row, runs, ints, history = (view(output) for output in operands.outputs)
        rows = len(ints)
        return lambda: _unpack[(rows,)](
            block, ids, positions, of_row, runs, ints, history, live, history.stride(0), rows,
            INTS=RowLayout.INTS, ROWS=triton.next_power_of_2(rows), BLOCK=256, num_warps=1, **device.launch,
        )  # fmt: skip


@triton.jit
def _slot_map(
    positions,
    of_row,
    table,
    slots,
    live,
    width,
    LIVE: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    start, count = tl.program_id(0) * BLOCK, tl.load(live + LIVE)
    if start >= count:
        return
    begin_kernel(PDL)
    i = start + tl.arange(0, BLOCK)
    mask = i < count
    position = tl.load(positions + i, mask=mask, other=0)
    row = tl.load(of_row + i, mask=mask, other=0)
    page = tl.load(table + row * width + (position // PAGE) % width, mask=mask, other=0)
    tl.store(slots + i, page * PAGE + position % PAGE, mask=mask)


@TRITON_KERNELS.register(SlotMap)
class SlotMapKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, SlotMap)
        positions, of_row, table = (view(operands.input(i)) for i in range(3))
        slots, live, index, page = view(operands.outputs[0]), device.live, live_index(site.inputs[0]), op.block
        grid, width = (triton.cdiv(len(slots), 128),), table.shape[1]
        return lambda: _slot_map[grid](
            positions,
            of_row,
            table,
            slots,
            live,
            width,
            LIVE=index,
            PAGE=page,
            BLOCK=128,
            **device.launch,
        )


@triton.jit
def _last_rows(
    x, runs, out, live, width, pitch,
    ROWS: tl.constexpr, KEEP: tl.constexpr, TAKEN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """To the run's own place, or with KEEP to its row's. What is TAKEN already stands in the run's place."""
    run = tl.program_id(0)
    if run >= tl.load(live + 1):
        return
    begin_kernel(PDL)
    last = run
    if not TAKEN:
        upto = tl.arange(0, ROWS)
        last = tl.sum(tl.load(runs + upto * 4 + 2, mask=upto <= run, other=0)) - 1
    to = run
    if KEEP:
        to = tl.load(runs + run * 4)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    tl.store(out + to * width + at, tl.load(x + last.to(tl.int64) * pitch + at, mask=mask), mask=mask)


def _of_last_rows(operands: Operands, device: Any, *, keep: bool, taken: bool) -> Callable[[], object]:
    x, runs, out, live = view(operands.input(0)), view(operands.input(1)), view(operands.outputs[0]), device.live
    width, rows = out[0].numel(), len(runs)
    block = min(1024, triton.next_power_of_2(width))
    grid = (rows, triton.cdiv(width, block))
    return lambda: _last_rows[grid](
        x, runs, out, live, width, x.stride(0),
        ROWS=triton.next_power_of_2(rows), KEEP=keep, TAKEN=taken, BLOCK=block, **device.launch,
    )  # fmt: skip


@TRITON_KERNELS.register(KeepLast)
class KeepLastKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, KeepLast)
        return _of_last_rows(operands, device, keep=True, taken=op.taken)


@TRITON_KERNELS.register(LastRows)
class LastRowsKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        return _of_last_rows(operands, device, keep=False, taken=False)


@triton.jit
def _gather(x, index, out, live, width, LIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0)
    if row >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    source = tl.load(index + row)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    tl.store(out + row * width + at, tl.load(x + source * width + at, mask=mask), mask=mask)


@TRITON_KERNELS.register(GatherRows)
class GatherRowsKernel(TritonKernel):
    def accepts(self, site: Site) -> str | None:
        return None if len(site.inputs[0].shape) == 2 else "it has more than two dimensions"

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        x, index, out, live = view(operands.input(0)), view(operands.input(1)), view(operands.outputs[0]), device.live
        width, place = x.shape[1], live_index(site.inputs[1])
        block = min(1024, triton.next_power_of_2(width))
        grid = (len(out), triton.cdiv(width, block))
        return lambda: _gather[grid](x, index, out, live, width, LIVE=place, BLOCK=block, **device.launch)


@triton.jit
def _commit(
    tokens,
    rows,
    ints,
    history,
    live,
    pitch,
    INTS: tl.constexpr,
    LIVE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    start, count = tl.program_id(0) * BLOCK, tl.load(live + LIVE)
    if start >= count:
        return
    begin_kernel(PDL)
    i = start + tl.arange(0, BLOCK)
    mask = i < count
    row = tl.load(rows + i, mask=mask, other=0)
    length = tl.load(ints + row * INTS + _LENGTH, mask=mask, other=0)
    tl.store(history + row.to(tl.int64) * pitch + length, tl.load(tokens + i, mask=mask, other=0), mask=mask)


@TRITON_KERNELS.register(CommitTokens)
class CommitTokensKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        tokens, rows, ints = (view(operands.input(i)) for i in range(3))
        history, live, index = view(operands.outputs[0]), device.live, LIVE_INDEX["rows"]
        # One block size for all capacities: one kernel to compile.
        return lambda: _commit[(triton.cdiv(len(tokens), 64),)](
            tokens,
            rows,
            ints,
            history,
            live,
            history.stride(0),
            INTS=RowLayout.INTS,
            LIVE=index,
            BLOCK=64,
            num_warps=2,
            **device.launch,
        )
