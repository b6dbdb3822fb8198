"""Whether a program of attention gives what the definition does, on this very GPU: asked before it is used.

Instructions of one architecture behave as its manual says or not at all, and no other device can tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.ops import AttentionPlan
from poot_executor.ops.attention import PlanLayout

_log = logging.getLogger(__name__)

_FIRST = 200  # position of the first query
_CUT = 128  # keys of the first of two parts
_MOST_OFF = 2e-2  # of the norm: weights and results are rounded to bfloat16


def agrees(it: Attended, attend: Callable[[Attended], Callable[[], object]]) -> bool:
    """Run the attention of a site's op on noise: two items of a prompt; a few queries, and one, of cut keys."""
    small, wanted = _example(it)
    attend(small)()
    found = small.tensors[3].float()
    off = float((found - wanted).norm() / wanted.norm())
    if off < _MOST_OFF:  # not so for what is not a number
        return True
    _log.warning("attention of %d tokens is off by %.3g in CUDA C++, Triton's is slower and used", it.tokens, off)
    return False


def _example(it: Attended) -> tuple[Attended, torch.Tensor]:
    op, (_, heads, width) = it.op, it.q.shape
    tile, device = min(op.tile, it.tokens), it.q.device
    counts = [tile + 5, min(3, tile), 1]
    tokens, blocks = sum(counts), -(-(_FIRST + tile + 5) // op.block)
    noise = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=noise)

    table = torch.randperm(len(counts) * blocks, generator=noise).int().view(len(counts), blocks)
    k, v = (normal(table.numel() * op.block, it.kv_heads, width).to(it.q.dtype) for _ in range(2))
    q = (normal(tokens, heads, width) / (op.scale * width**0.5)).to(it.q.dtype)
    # The model's may still be on their way. These are as much as all keys: else one that counts twice is not seen.
    sinks = (normal(heads) + 5,) if op.sinks else ()
    runs = torch.tensor([[row, _FIRST, count, 0] for row, count in enumerate(counts)])
    (plan,) = AttentionPlan(tokens, tile, op.window, op.splits).reference(runs)
    (wanted,) = op.reference(q, k, v, plan, table, *sinks)
    if op.splits > 1:
        plan = _cut(plan, 2)
    out = torch.zeros_like(q)
    parts = torch.zeros(tokens * heads * op.splits * (width + 2))
    locks = torch.zeros(tokens * it.kv_heads, dtype=torch.int32)
    tensors = tuple(tensor.to(device) for tensor in (plan, table, sinks[0] if sinks else q, out, parts, locks))
    numbers = q.stride(0), q.stride(1), blocks, *it.numbers[3:]
    # A step of fewer tokens than a tile has smaller items, and so another program.
    op = replace(op, tile=tile)
    pools = k.to(device), v.to(device)
    small = replace(it, op=op, q=q.to(device), k_pool=pools[0], v_pool=pools[1], tensors=tensors, numbers=numbers)
    return small, wanted.to(device)


def _cut(plan: torch.Tensor, last: int) -> torch.Tensor:
    """The plan with the keys of its last items cut in two where they are more than 128."""
    begin, end, items = PlanLayout.KV_BEGIN, PlanLayout.KV_END, []
    count = int(plan[0, 0])
    for index, item in enumerate(plan[1 : 1 + count]):
        if index < count - last or item[end] - item[begin] <= _CUT:
            items.append(item)
            continue
        for part in range(2):
            half = item.clone()
            half[PlanLayout.SPLIT], half[PlanLayout.SPLITS] = part, 2
            half[begin if part else end] = item[begin] + _CUT
            items.append(half)
    head = torch.zeros_like(plan[:1])
    head[0, 0] = len(items)
    return torch.cat([head, torch.stack(items)])
