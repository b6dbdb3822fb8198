"""Attention of rows that decode in CUDA C++, by emulation on the host, against softmax by the definition in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from cuda_attention import Case, Run, assert_near, attended, run_twice
from cuda_host_device import HostDevice
from cuda_on_host import Argument, compiler

from poot_executor.backends.cuda.attend_check import agrees
from poot_executor.backends.cuda.attend_rows import WIDTHS, Tiling, accepts, attend_rows, pair_groups, program, tiling
from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.backends.triton.kernels.plan import most_splits, queries
from poot_executor.ops import PagedAttention

emulated = pytest.mark.skipif(compiler() is None, reason="no g++ to compile kernels with")
SHARED = 232448  # bytes of shared memory that a block may have; its multiprocessor has 1,024 more
TILE = 4  # queries of an item of rows that decode


class Asked(HostDevice):
    """It keeps what it is asked to launch, and launches nothing."""

    def bind(
        self, program: Program, grid: tuple[int, int, int], threads: int, shared: int, arguments: Sequence[Argument],
        *, cluster: int = 1,
    ) -> Callable[[], None]:  # fmt: skip
        self.asked = program, grid, threads, shared
        return lambda: None


def rows(*firsts: int) -> tuple[Run, ...]:
    """One query each, behind so many keys."""
    return tuple((row, first, 1) for row, first in enumerate(firsts))


def decoding(runs: Sequence[Run], **more: Any) -> Case:
    return Case(tuple(runs), tile=TILE, **more)


def bound(it: Attended, *, processors: int = 3, backwards: bool = False) -> Callable[[], object]:
    how, device = tiling(it, SHARED), HostDevice()
    assert how is not None
    assert accepts(it)
    device.processors, device.backwards = processors, backwards
    return attend_rows(it, how, device)


def named(case: Case) -> str:
    """In few words: some have many runs."""
    longest = max(first + count for _, first, count in case.runs)
    return f"{len(case.runs)} runs of {longest}, {case.heads} over {case.kv_heads} of {case.width}"


CASES = [
    decoding(rows(189), heads=4, width=128),
    # One key and no more. The scale is that of noise, so weights of two keys differ.
    decoding(rows(0, 1), heads=3, kv_heads=3),
    # As many parts as there may be, of pages larger than a box.
    decoding(rows(1009), heads=8, kv_heads=2, parts=32, cut=32, page=32),
    # Items of three queries have more than eight pairs; the last of their keys are not seen by all.
    decoding([(0, 700, 3)], heads=8, kv_heads=2, parts=4, sinks=True),
    decoding(rows(640, 511), heads=16, kv_heads=2, width=128, sinks=True),
    # The table is a ring, and windows begin within a box. Parts are of no whole boxes.
    decoding([(0, 415, 1), (1, 7, 2), (2, 98, 4)], heads=12, kv_heads=3, width=128, window=100),
    decoding([(0, 997, 2)], heads=24, kv_heads=3, window=610, parts=7, cut=24, sinks=True),
    decoding([*rows(77, 16, 15), (3, 30, 4), (4, 40, 9)], heads=64, kv_heads=8, softcap=3.0),
    decoding(rows(*range(20, 53)), heads=64, kv_heads=8, width=128),
    decoding(rows(*range(0, 99, 3)), heads=1, width=128, parts=2, cut=16),
    decoding([(0, 540, 20), *rows(*range(44))], heads=3, kv_heads=3),
    decoding([(40, 9, 4), *rows(*range(100, 160, 2))[:29]], heads=6, kv_heads=2, window=33, softcap=2.0),
    decoding([(5, 70, 32), *rows(*range(32))], heads=8, kv_heads=2, width=128, page=32),
    # No half of five heads: a warp a head.
    decoding([(0, 300, 4), (1, 0, 2)], heads=40, kv_heads=5, parts=2, softcap=5.0, sinks=True),
    decoding([(0, 130, 4)], heads=128, kv_heads=8),
]


@emulated
@pytest.mark.parametrize("case", CASES, ids=named)
def test_attention(case: Case) -> None:
    it, wanted = attended(case)
    assert_near(run_twice(it, bound(it)), wanted)


CUT = decoding([(0, 700, 3), (1, 90, 1), (2, 388, 4)], heads=8, kv_heads=2, parts=4, sinks=True)


@emulated
def test_results_do_not_depend_on_who_comes_first_or_on_how_many_blocks_there_are() -> None:
    """One block has all units, or each has one of its own."""
    it, wanted = attended(CUT)
    first = run_twice(it, bound(it)).clone()
    assert_near(first, wanted)
    for processors in (1, 2, 5, 132):
        for backwards in (False, True):
            it.tensors[3].fill_(torch.nan)
            assert torch.equal(run_twice(it, bound(it, processors=processors, backwards=backwards)), first)


class Together(HostDevice):
    """Up to eight blocks run at the same time."""

    def bind(
        self, program: Program, grid: tuple[int, int, int], threads: int, shared: int, arguments: Sequence[Argument],
        *, cluster: int = 1,
    ) -> Callable[[], None]:  # fmt: skip
        together = max(n for n in range(1, 9) if grid[0] % n == 0 and n * threads <= 2048)
        return super().bind(program, grid, threads, shared, arguments, cluster=together)


@emulated
@pytest.mark.parametrize(
    "how", [Tiling(1, 8, 1, 1), Tiling(1, 4, 2, 3), Tiling(2, 2, 2, 2), Tiling(2, 1, 4, 3)], ids=str
)
def test_nothing_is_written_over_before_all_have_read_it(how: Tiling) -> None:
    """Slots, what ways leave for each other and who comes last, whatever warp is ahead of another."""
    runs = [(0, 300, 2), (1, 45, 1), (2, 130, 2)]
    it, wanted = attended(decoding(runs, heads=6, kv_heads=2, window=250, parts=3, cut=16))
    device, found = Together(), []
    for turns in range(1, 13):
        device.turns, device.processors = turns, turns % 4 + 1
        it.tensors[3].fill_(torch.nan)
        it.tensors[4].fill_(torch.nan)
        found.append(run_twice(it, attend_rows(it, how, device)).clone())
        assert torch.equal(found[0], found[-1])
    assert_near(found[0], wanted)


@emulated
def test_items_without_keys_are_passed_over() -> None:
    """No plan has one, but blocks must not wait for what nobody fetches."""
    it, wanted = attended(replace(CUT, parts=1))
    items, out = it.tensors[0].view(-1, 8), it.tensors[3]
    items[2, 4] = items[2, 5]
    for processors in (1, 132):
        out.fill_(torch.nan)
        bound(it, processors=processors)()
        assert_near(torch.cat((out[:3], out[4:])), torch.cat((wanted[:3], wanted[4:])))
        assert bool(out[3].isnan().all())
    items[0, 0] = 0
    out.fill_(7.0)
    assert run_twice(it, bound(it)).unique().tolist() == [7.0]


@emulated
def test_queries_lie_within_wider_rows() -> None:
    """As they do where one product makes queries, keys and values."""
    it, wanted = attended(CUT)
    wide = torch.randn(8, 13, 64).bfloat16()
    wide[:, 1:9] = it.q
    numbers = wide.stride(0), wide.stride(1), *it.numbers[2:]
    it = replace(it, q=wide[:, 1:9], numbers=numbers)
    assert_near(run_twice(it, bound(it)), wanted)


@emulated
def test_what_is_behind_the_last_key_is_not_seen() -> None:
    """Pages hold what others left there. Not what is no number: weights of zero are multiplied with it."""
    it, wanted = attended(CUT)
    for row, first, count in CUT.runs:
        page, at = divmod(first + count, CUT.page)
        left = slice(int(it.tensors[1][row, page]) * CUT.page + at, (int(it.tensors[1][row, page]) + 1) * CUT.page)
        it.k_pool[left], it.v_pool[left] = torch.nan, 3e38
    assert_near(run_twice(it, bound(it)), wanted)


def site(tokens: int, share: int, kv_heads: int, width: int) -> Attended:
    """Of the shape that the engine asks for, of tensors that nobody reads."""
    q, pool = (
        torch.empty(shape, dtype=torch.bfloat16) for shape in ((tokens, kv_heads * share, width), (64, kv_heads, width))
    )
    op = PagedAttention(0.1, 16, tile=queries(tokens, share), splits=most_splits(tokens))
    none = torch.empty(0)
    return Attended(op, q, pool, pool, (none,) * 6, (q.stride(0), q.stride(1), 4, op.scale, 1.0))


def test_every_tiling_is_that_of_a_case() -> None:
    there = product((1, 2, 3, 16, 33, 64), (1, 3, 4, 8), (1, 2, 3, 8), WIDTHS)
    of_cases = [(sum(run[2] for run in c.runs), c.heads // c.kv_heads, c.kv_heads, c.width) for c in CASES]
    used, tried = ([tiling(site(*shape), SHARED) for shape in shapes] for shapes in (there, of_cases))
    known = {(how.heads, how.ways, how.blocks) for how in tried if how is not None}
    assert {(how.heads, how.ways, how.blocks) for how in used if how is not None} <= known


@pytest.mark.parametrize("width", WIDTHS)
def test_every_tiling_is_within_a_multiprocessor(width: int) -> None:
    device, taken = Asked(), 0
    device.processors = 132
    for tokens, share, kv_heads in product((1, 2, 3, 4, 32, 33, 64), range(1, 10), (*range(1, 11), 16)):
        it = site(tokens, share, kv_heads, width)
        how = tiling(it, SHARED)
        if how is None:
            # Eight warps have too few heads for an item's pairs, or those of the model are no multiple of as many.
            assert not [n for n in range(pair_groups(it), 9) if kv_heads % n == 0]
            continue
        attend_rows(it, how, device)
        made, (x, y, z), threads, shared = device.asked
        assert how.blocks * (shared + 1024) <= SHARED + 1024
        assert how.stages >= 3
        assert threads == 32 * (how.heads * how.ways + 1) <= 288
        assert kv_heads % how.heads == 0
        # A lock is a KV head's of the query; those of an item's units are as many.
        assert pair_groups(it) <= how.heads
        assert (0 < x <= 132 * how.blocks, y, z) == (True, 1, 1)
        assert made == program(it, how, pdl=True)
        taken += 1
    assert taken > 400


def test_without_room_for_a_unit_there_is_no_tiling() -> None:
    it = site(16, 8, 8, 128)
    # Three slots, and what warps of one head leave for another; and not quite.
    least = 3 * (32768 + 16) + 16 + 18432
    assert tiling(it, least) == Tiling(4, 2, 1, 3)
    assert tiling(it, least - 1) is None


def test_without_heads_for_an_item_s_pairs_there_is_no_tiling() -> None:
    """An item has a lock for each KV head."""
    assert tiling(site(3, 8, 3, 128), SHARED) is not None
    assert tiling(site(16, 8, 2, 128), SHARED) is None
    assert tiling(site(1, 72, 1, 128), SHARED) is None


def odd(it: Attended) -> Attended:
    return replace(it, q=torch.zeros(it.tokens, 4, 65).bfloat16()[..., :64])


def between_pairs(it: Attended) -> Attended:
    return replace(it, q=torch.zeros(it.q.numel() + 1).bfloat16()[1:].view(it.q.shape))


def between_vectors(it: Attended) -> Attended:
    return replace(it, v_pool=torch.zeros(it.v_pool.numel() + 4).bfloat16()[4:].view(it.v_pool.shape))


def with_pools(it: Attended, k_pool: torch.Tensor, v_pool: torch.Tensor) -> Attended:
    return replace(it, k_pool=k_pool, v_pool=v_pool)


REFUSED: dict[str, Callable[[Attended], Attended]] = {
    "more tokens": lambda it: replace(it, q=torch.zeros(65, 4, 64).bfloat16()),
    "narrow heads": lambda it: with_pools(replace(it, q=it.q[..., :32]), it.k_pool[..., :32], it.v_pool[..., :32]),
    "wide heads": lambda it: replace(it, q=torch.zeros(1, 4, 256).bfloat16()),
    "every other element": lambda it: replace(it, q=torch.zeros(1, 4, 128).bfloat16()[..., ::2]),
    "odd rows": odd,
    "between pairs": between_pairs,
    "pages of 24": lambda it: replace(it, op=replace(it.op, block=24)),
    "pages of 8": lambda it: replace(it, op=replace(it.op, block=8)),
    "33 parts": lambda it: replace(it, op=replace(it.op, splits=33)),
    "no scale": lambda it: replace(it, op=replace(it.op, scale=0.0)),
    "a scale below zero": lambda it: replace(it, op=replace(it.op, scale=-0.1)),
    "other values": lambda it: replace(it, v_pool=torch.zeros(64, 1, 128).bfloat16()),
    "no keys": lambda it: with_pools(it, it.k_pool[:0], it.v_pool[:0]),
    "half": lambda it: replace(it, q=it.q.half()),
    "keys of float": lambda it: with_pools(it, it.k_pool.float(), it.v_pool.float()),
    "strided keys": lambda it: replace(it, k_pool=torch.zeros(32, 2, 64).bfloat16()[:, :1]),
    "between vectors": between_vectors,
}


@pytest.mark.parametrize("changed", REFUSED)
def test_what_it_does_not_take_is_left_to_others(changed: str) -> None:
    it, _ = attended(decoding(rows(20)))
    assert accepts(it)
    assert not accepts(REFUSED[changed](it))


CHECKED = [
    decoding(rows(189), heads=4, width=128),  # an item has one query, and the check more than one
    decoding([(0, 700, 3), (1, 30, 2)], heads=8, kv_heads=2, parts=4, sinks=True),
    decoding(rows(*range(33)), heads=6, kv_heads=2, window=90, softcap=2.0),
]


@emulated
@pytest.mark.parametrize("case", CHECKED, ids=named)
def test_a_program_is_checked_before_it_is_used(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    it, _ = attended(case)
    how, device = tiling(it, SHARED), HostDevice()
    assert how is not None

    def wrong(small: Attended) -> Callable[[], object]:
        launch = attend_rows(small, how, device)

        def both() -> None:
            launch()
            small.tensors[3][-1, -1, :2] += 40.0  # of one head of one query

        return both

    assert agrees(it, lambda small: attend_rows(small, how, device))
    assert not caplog.records
    assert not agrees(it, wrong)
    assert f"attention of {it.tokens} tokens is off by" in caplog.text


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 9])
def test_what_is_checked_is_what_is_used(tokens: int) -> None:
    it, how, device = site(tokens, 4, 2, 64), Tiling(2, 4, 1, 4), Asked()
    agrees(it, lambda small: attend_rows(small, how, device))
    assert device.asked[0] == program(it, how, pdl=True)
