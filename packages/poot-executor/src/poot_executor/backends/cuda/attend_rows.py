"""Paged attention of rows that decode on Hopper, by a kernel in CUDA C++ (`source/attend_rows.cu`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from poot_executor.backends.cuda.boxes import COLUMNS, Boxes
from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.backends.triton.kernels.plan import FEW
from poot_executor.backends.triton.kernels.plan import most_splits as triton_splits

WIDTHS = 64, 128  # of heads
_KEYS = 16  # of a box
_PAIRS = 8  # (query, head) pairs of a unit
_WARPS = 8  # that compute, at most
_MOST_SPLITS = 32  # that the kernel adds up
_FEW_ROWS = 64
_MANY_ROWS = range(161, 225)  # somewhat more than Triton's programs run at once, so that its last few run alone
_MANY_BLOCKS = 3  # of a multiprocessor, with less slots
_LEAST_STAGES, _MOST_STAGES = 3, 4
_RESERVED = 1024  # bytes of shared memory that a block takes by itself


@dataclass(frozen=True, slots=True)
class Tiling:
    """KV heads of a unit, warps of each, blocks of a multiprocessor, and slots."""

    heads: int
    ways: int
    blocks: int
    stages: int


def tiling(it: Attended, shared: int) -> Tiling | None:
    """The fastest found on an H200 over 1 to 256 rows, contexts of 190 to 32,768; None where no unit fits."""
    pairs = pair_groups(it)
    heads = next((n for n in range(1, _WARPS + 1) if it.kv_heads % n == 0 and n >= pairs), None)
    if heads is None:
        return None
    ways = 4 if it.tokens <= FEW else 2
    while ways * heads > _WARPS:
        ways //= 2
    few = it.tokens <= _FEW_ROWS
    for blocks in (_WARPS // (heads * ways) if few else _MANY_BLOCKS, 1):
        stages = stages_within(shared, heads, ways, blocks, it.q.shape[2])
        if stages >= _LEAST_STAGES:
            return Tiling(heads, ways, blocks, min(stages, _MOST_STAGES if few else _LEAST_STAGES))
    return None


def most_splits(tokens: int) -> int:
    """Into how many items the keys of a row may be cut: to add up more takes longer than they save."""
    return min(16, triton_splits(tokens))


def pair_groups(it: Attended) -> int:
    """Units that an item's (query, head) pairs of one KV head are at most."""
    return -(-min(it.op.tile, it.tokens) * it.share // _PAIRS)


def stage_bytes(heads: int, ways: int, width: int) -> int:
    return heads * ways * _KEYS * width * 2


def room_bytes(heads: int, ways: int, width: int) -> int:
    """Where warps of one head leave what they have for another."""
    return 32 * 4 * (width // 4 + 4) * heads * (ways // 2)


def stages_within(shared: int, heads: int, ways: int, blocks: int, width: int) -> int:
    """Slots of so many blocks within a multiprocessor's shared memory, `shared` being what one block may have."""
    room = (shared + _RESERVED) // blocks - _RESERVED - room_bytes(heads, ways, width) - 16
    return max(0, room // (stage_bytes(heads, ways, width) + 16))


def accepts(it: Attended) -> bool:
    """Whether a site's attention is one for this kernel, given a tiling."""
    q, pools = it.q, (it.k_pool, it.v_pool)
    return (
        (it.tokens <= _FEW_ROWS or it.tokens in _MANY_ROWS)
        and q.shape[2] in WIDTHS
        and q.stride(2) == 1
        and all(stride % 2 == 0 for stride in q.stride()[:2])
        and q.data_ptr() % 4 == 0
        and it.op.block % _KEYS == 0
        and it.op.splits <= _MOST_SPLITS
        and it.k_pool.shape == it.v_pool.shape
        and len(it.k_pool) > 0
        and it.op.scale > 0
        and all(tensor.dtype == torch.bfloat16 for tensor in (q, *pools))
        and all(pool.is_contiguous() and pool.data_ptr() % 16 == 0 for pool in pools)
    )


def program(it: Attended, how: Tiling, *, pdl: bool) -> Program:
    """The kernel of a site's attention."""
    known = it.constants
    names = "HEADS", "KV_HEADS", "DIM", "TILE", "PAGE", "WINDOW", "CAPPED", "SINKS", "SPLITS"
    macros = {name: known[name] for name in names}
    macros |= {"UNIT_HEADS": how.heads, "WAYS": how.ways, "STAGES": how.stages, "BLOCKS": how.blocks}
    macros["PDL"] = pdl
    given = tuple((name, int(value)) for name, value in macros.items())
    return Program("attend_rows.cu", "attend_rows", given, own=True)


def attend_rows(it: Attended, how: Tiling, device: Any) -> Callable[[], object]:
    """The launch. Its locks are zero between runs."""
    width = it.q.shape[2]
    shared = how.stages * (stage_bytes(how.heads, how.ways, width) + 16) + 16 + room_bytes(how.heads, how.ways, width)
    pools = (Boxes(pool.view(len(pool), -1), _KEYS, how.heads * width // COLUMNS) for pool in (it.k_pool, it.v_pool))
    q_pitch, q_head, table_pitch, scale, softcap = it.numbers
    arguments = (
        *(it.q, *pools, *it.tensors),
        *(int(q_pitch), int(q_head), int(table_pitch), float(scale), float(softcap)),
    )
    units = it.tokens * it.op.splits * it.kv_heads // how.heads * pair_groups(it)
    grid = min(units, how.blocks * device.processors), 1, 1
    threads = 32 * (how.heads * how.ways + 1)
    bound: Callable[[], object] = device.bind(program(it, how, pdl=device.pdl), grid, threads, shared, arguments)
    return bound
