"""Whether a program of attention gives what the definition does, on this very GPU: asked before it is used.

Instructions of one architecture behave as its manual says or not at all, and no other device can tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from poot_executor.backends.triton.kernels.items import Attended

_log = logging.getLogger(__name__)

_FIRST = 200  # position of the first query
_MOST_OFF = 2e-2  # of the norm: weights and results are rounded to bfloat16


def agrees(it: Attended, attend: Callable[[Attended], Callable[[], object]]) -> bool:
    """Run the attention of a site's op on noise: two items of a prompt, and queries whose keys are cut in two."""
    small, wanted = _example(it)
    attend(small)()
    found = small.tensors[3].float()
    off = float((found - wanted).norm() / wanted.norm())
    if off < _MOST_OFF:  # not so for what is not a number
        return True
    _log.warning("attention of prompts is off by %.3g in CUDA C++, Triton's is slower and used", off)
    return False


def _example(it: Attended) -> tuple[Attended, torch.Tensor]:
    op, (_, heads, width) = it.op, it.q.shape
    tile, device = min(op.tile, it.tokens), it.q.device
    cut = 2 if op.splits > 1 else 1
    counts = [tile + 5, min(3, tile)]
    tokens, blocks = sum(counts), -(-(_FIRST + tile + 5) // op.block)
    noise = torch.Generator(device).manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=noise, device=device)

    table = torch.randperm(2 * blocks, generator=noise, device=device).int().view(2, blocks)
    k, v = (normal(2 * blocks * op.block, it.kv_heads, width).to(it.q.dtype) for _ in range(2))
    q = (normal(tokens, heads, width) / (op.scale * width**0.5)).to(it.q.dtype)
    sinks = normal(heads) if op.sinks else q  # the model's may still be on their way
    items, queries, flat = [], [], 0
    for row, count in enumerate(counts):
        for start in range(0, count, tile):
            position, here = _FIRST + start, min(tile, count - start)
            begin, end = max(0, position - op.window + 1) if op.window else 0, position + here
            edges = [begin, begin + 128, end] if row and cut > 1 and begin + 128 < end else [begin, end]
            parts = list(pairwise(edges))
            items += [(row, flat + start, here, position, *part, i, len(parts)) for i, part in enumerate(parts)]
        queries += [(row, _FIRST + i) for i in range(count)]
        flat += count
    plan = torch.tensor([[len(items), *([0] * 7)], *items], dtype=torch.int32, device=device)
    out = torch.zeros_like(q)
    parts_ = torch.zeros(tokens * heads * op.splits * (width + 2), device=device)
    locks = torch.zeros(tokens * it.kv_heads, dtype=torch.int32, device=device)
    numbers = q.stride(0), q.stride(1), blocks, *it.numbers[3:]
    small = replace(it, q=q, k_pool=k, v_pool=v, tensors=(plan, table, sinks, out, parts_, locks), numbers=numbers)
    return small, _definition(small, queries)


def _definition(it: Attended, queries: list[tuple[int, int]]) -> torch.Tensor:
    """Attention of queries, each of a row and a position, in float32: (tokens, heads, width)."""
    op, table, sinks = it.op, it.tensors[1].long(), it.tensors[2]
    results: list[Any] = []
    for i, (row, position) in enumerate(queries):
        first = max(0, position - op.window + 1) if op.window else 0
        at = torch.arange(first, position + 1, device=table.device)
        slots = table[row][at // op.block % table.shape[1]] * op.block + at % op.block
        k, v = (pool[slots].float().repeat_interleave(it.share, 1) for pool in (it.k_pool, it.v_pool))
        scores = torch.einsum("hd,khd->hk", it.q[i].float(), k) * op.scale
        if op.softcap is not None:
            scores = op.softcap * torch.tanh(scores / op.softcap)
        if op.sinks:
            scores = torch.cat((scores, sinks.float()[:, None]), 1)
        results.append(torch.einsum("hk,khd->hd", torch.softmax(scores, 1)[:, : len(at)], v))
    return torch.stack(results)
