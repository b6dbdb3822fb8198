"""Paged attention on the CPU: two batched products and a softmax for each item of the plan.

The plan is read many times a step (once a layer), so it is also kept as Python objects beside its buffer. Keys of a row
whose blocks follow each other in the pool are read in place; others are gathered into workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, CpuKernel, typed, view
from poot_executor.backends.cpu.weights import f32_form
from poot_executor.devices.protocol import Launch, Live
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operand, Operands, Site, WeightForm
from poot_executor.ops import AttentionPlan, PagedAttention

# Scores of one product never take more than this; longer tiles are cut.
_SCORE_BYTES = 16 * 2**20
# Steps of at most this many tokens attend in one thread.
_ALONE = 8


Slots = slice | torch.Tensor


class PlanItem(NamedTuple):
    """One item of a plan (see PlanLayout)."""

    row: int
    start: int
    queries: int
    position: int
    begin: int
    end: int


class HostPlan:
    """This step's items, and where their keys lie once a layer has looked that up in its table."""

    def __init__(self) -> None:
        self._items: list[PlanItem] = []
        self._slots: dict[int, list[Slots]] = {}

    def set(self, items: list[PlanItem]) -> None:
        self._items = items
        self._slots.clear()

    def items(self, table: npt.NDArray[np.int32], block: int) -> Iterator[tuple[PlanItem, Slots]]:
        """Each item with its slots. Layers that share a table share the look-up."""
        slots = self._slots.get(table.ctypes.data)
        if slots is None:
            slots = self._slots[table.ctypes.data] = [_slots(item, table, block) for item in self._items]
        return zip(self._items, slots, strict=True)


def _plan_of(operand: Operand, device: Any) -> HostPlan:
    """The plan kept beside this buffer: attention launches share the buffer with the plan's own launch."""
    plans: dict[tuple[int, int], HostPlan] = device.plans
    return plans.setdefault((id(operand.allocation), operand.offset), HostPlan())


@CPU_KERNELS.register(AttentionPlan)
class AttentionPlanKernel(CpuKernel):
    name = "python"

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, AttentionPlan)
        runs, plan = view(operands.input(0)).numpy(), _plan_of(operands.outputs[0], device)
        return lambda live: lambda: plan.set(list(_items(runs[: live.runs], op)))


def _items(runs: npt.NDArray[np.int32], op: AttentionPlan) -> Iterator[PlanItem]:
    flat = 0
    for row, first, length, _ in runs.tolist():
        if op.last:
            first, length = first + length - 1, 1  # noqa: PLW2901
        for start in range(0, length, op.tile):
            queries, position = min(op.tile, length - start), first + start
            begin = max(0, position - op.window + 1) if op.window else 0
            yield PlanItem(row, flat + start, queries, position, begin, position + queries)
        flat += length


@CPU_KERNELS.register(PagedAttention)
class PagedAttentionKernel(CpuKernel):
    name = "bmm, softmax, bmm"

    def single(
        self, op: PagedAttention, k_pool: torch.Tensor, v_pool: torch.Tensor, scratch: Scratch
    ) -> Callable[[torch.Tensor, Slots, torch.Tensor], None] | None:
        """A faster way for items of one query, (query, slots, result): there is none in torch."""
        return None

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        op = site.op
        assert isinstance(op, PagedAttention)
        return (f32_form(site, (5,)),) if op.sinks else ()

    def workspace(self, site: Site) -> int:
        return 4 * sum(Scratch.sizes(site))

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, PagedAttention)
        scratch = Scratch(site, operands)
        table, plan = view(operands.input(4)).numpy(), _plan_of(operands.input(3), device)
        k_pool, v_pool = view(operands.input(1)), view(operands.input(2))
        single = self.single(op, k_pool, v_pool, scratch)
        sinks = operands.held[0] if op.sinks else None

        def launch(live: Live) -> Callable[[], object]:
            q, out = view(operands.input(0), live), view(operands.outputs[0], live)

            def run() -> None:
                for item, slots in plan.items(table, op.block):
                    if single is not None and item.queries == 1:
                        single(q[item.start], slots, out[item.start])
                        continue
                    if isinstance(slots, slice):
                        keys, values = k_pool[slots], v_pool[slots]
                    else:
                        keys, values = scratch.gather(slots, k_pool, v_pool)
                    for first in range(0, item.queries, scratch.queries):
                        _attend(op, _Part(item, first, q, out, sinks), keys, values, scratch)

            return partial(_alone, run) if live.tokens <= _ALONE else run

        return launch


def _alone(run: Callable[[], None]) -> None:
    """Run in this thread only: handing a product of microseconds to others costs more than it saves, and far more
    when they have to wait for a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run()
    finally:
        torch.set_num_threads(threads)


class Scratch:
    """Workspace of one attention node: gathered keys and values, packed queries, scores and weights, results."""

    def __init__(self, site: Site, operands: Operands) -> None:
        assert operands.workspace is not None
        sizes = self.sizes(site)
        flat = typed(operands.workspace, (sum(sizes),), None, DType.F32)
        self._keys, self._values, self.packed, self.scores, self.weights, self.results = torch.split(flat, sizes)
        self.queries = self.tile(site)

    @staticmethod
    def tile(site: Site) -> int:
        """Queries that one product takes."""
        tokens, heads, _ = site.inputs[0].shape
        return max(1, min(tokens, 128, _SCORE_BYTES // (4 * heads * Scratch.longest(site))))

    @staticmethod
    def longest(site: Site) -> int:
        """Keys that a query may see."""
        op = site.op
        assert isinstance(op, PagedAttention)
        return int(site.inputs[4].shape[1]) * op.block

    @staticmethod
    def sizes(site: Site) -> list[int]:
        """Elements of each part."""
        heads, width = site.inputs[0].shape[1:]
        longest, tile = Scratch.longest(site), Scratch.tile(site)
        keys, values = (longest * prod(site.inputs[i].shape[1:]) for i in (1, 2))
        scores = heads * tile * longest
        return [keys, values, tile * heads * width, scores, scores, tile * heads * site.inputs[2].shape[2]]

    def gather(
        self, slots: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found = []
        for pool, part in ((k_pool, self._keys), (v_pool, self._values)):
            shape = (len(slots), *pool.shape[1:])
            found.append(torch.index_select(pool, 0, slots, out=part[: prod(shape)].view(shape)))
        return found[0], found[1]


def _slots(item: PlanItem, table: npt.NDArray[np.int32], block: int) -> slice | torch.Tensor:
    """The slots of keys begin..end: a slice where the row's blocks follow each other."""
    first = item.begin // block
    blocks = table[item.row, np.arange(first, -(-item.end // block)) % table.shape[1]].astype(np.int64)
    skip, length = item.begin - first * block, item.end - item.begin
    if np.all(np.diff(blocks) == 1):
        start = int(blocks[0]) * block + skip
        return slice(start, start + length)
    slots = (blocks[:, None] * block + np.arange(block)).reshape(-1)
    return torch.from_numpy(slots[skip : skip + length])


class _Part(NamedTuple):
    """Queries of an item from its `first` on, the step's queries and results, and each head's sink, if it has one."""

    item: PlanItem
    first: int
    q: torch.Tensor
    out: torch.Tensor
    sinks: torch.Tensor | None


def _attend(op: PagedAttention, part: _Part, keys: torch.Tensor, values: torch.Tensor, scratch: Scratch) -> None:
    """At most `scratch.queries` queries, with all heads of a KV head in one product."""
    item, first, q, out, sinks = part
    queries = min(scratch.queries, item.queries - first)
    begin = item.start + first
    length = item.position + first + queries - item.begin  # keys past the last query are not seen by any
    heads, kv_heads = q.shape[1], keys.shape[1]
    share, width = heads // kv_heads, values.shape[2]
    rows = share * queries
    q_part = q[begin : begin + queries]
    if queries == 1:
        packed = q_part.view(kv_heads, share, q.shape[2])
        target = results = out[begin].view(kv_heads, share, width)
    else:
        shape = (kv_heads, share, queries, q.shape[2])
        folded = scratch.packed[: prod(shape)].view(shape)
        folded.copy_(q_part.view(queries, kv_heads, share, q.shape[2]).permute(1, 2, 0, 3))
        packed = folded.view(kv_heads, rows, q.shape[2])
        results = scratch.results[: kv_heads * rows * width].view(kv_heads, rows, width)
        target = out[begin : begin + queries].view(queries, kv_heads, share, width).permute(1, 2, 0, 3)
    scores = scratch.scores[: kv_heads * rows * length].view(kv_heads, rows, length)
    weights = scratch.weights[: kv_heads * rows * length].view(kv_heads, rows, length)
    torch.baddbmm(scores, packed, keys[:length].permute(1, 2, 0), beta=0, alpha=op.scale, out=scores)
    if op.softcap:
        scores.mul_(1.0 / op.softcap).tanh_().mul_(op.softcap)
    if item.queries > 1:
        behind = item.position + first - op.window - item.begin if op.window else None
        _mask(scores.view(kv_heads, share, queries, length), behind)
    torch.softmax(scores, -1, out=weights)
    if sinks is not None:
        # The sink's share of the whole is what the other keys lose.
        of_row = sinks.view(kv_heads, share, 1, 1).expand(-1, -1, queries, -1).reshape(kv_heads, rows, 1)
        weights.mul_(torch.sigmoid(torch.logsumexp(scores, -1, keepdim=True) - of_row))
    torch.bmm(weights, values[:length].permute(1, 0, 2), out=results)
    if queries > 1:
        target.copy_(results.view(kv_heads, share, queries, width))


def _mask(scores: torch.Tensor, behind: int | None) -> None:
    """Minus infinity at keys ahead of a query, which lie in the last columns, and at those left behind the window.

    `behind` is the last column behind the first query's window; the next query's is one further.
    """
    queries, length = scores.shape[-2:]
    if queries > 1:
        ahead = torch.ones(queries, queries, dtype=torch.bool).triu(1)
        scores[..., length - queries :].masked_fill_(ahead, float("-inf"))
    if behind is not None and behind + queries > 0:
        columns = min(length, behind + queries)
        mask = torch.ones(queries, columns, dtype=torch.bool).tril(behind)
        scores[..., :columns].masked_fill_(mask, float("-inf"))
