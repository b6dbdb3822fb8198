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
    """Run the attention of a site's op on noise: two items of a prompt, and queries whose keys are cut in two."""
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
    counts = [tile + 5, min(3, tile)]
    tokens, blocks = sum(counts), -(-(_FIRST + tile + 5) // op.block)
    noise = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=noise)

    table = torch.randperm(2 * blocks, generator=noise).int().view(2, blocks)
    k, v = (normal(2 * blocks * op.block, it.kv_heads, width).to(it.q.dtype) for _ in range(2))
    q = (normal(tokens, heads, width) / (op.scale * width**0.5)).to(it.q.dtype)
    # The model's may still be on their way. These are as much as all keys: else one that counts twice is not seen.
    sinks = (normal(heads) + 5,) if op.sinks else ()
    runs = torch.tensor([[row, _FIRST, count, 0] for row, count in enumerate(counts)])
    (plan,) = AttentionPlan(tokens, tile, op.window, op.splits).reference(runs)
    (wanted,) = op.reference(q, k, v, plan, table, *sinks)
    if op.splits > 1:
        _cut_last(plan)
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


def _cut_last(plan: torch.Tensor) -> None:
    """Cut the keys of a plan's last item in two, if they are more than 128."""
    last, begin, end = int(plan[0, 0]), PlanLayout.KV_BEGIN, PlanLayout.KV_END
    if plan[last, end] - plan[last, begin] > _CUT:
        plan[0, 0] += 1
        plan[last + 1] = plan[last]
        plan[last, end] = plan[last + 1, begin] = plan[last, begin] + _CUT
        plan[last + 1, PlanLayout.SPLIT] = 1
        plan[last : last + 2, PlanLayout.SPLITS] = 2
