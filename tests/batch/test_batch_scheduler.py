"""Admission and plans, without an engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_batch.kv import KvSpace
from poot_batch.request import GenerateRequest
from poot_batch.schedule import PromptBudget, Scheduler, Sequence
from poot_batch.schedule.scheduler import AT_ONCE
from poot_batch.schedule.waiting import OVERTAKEN

Make = Callable[..., GenerateRequest]


class FixedBudget(PromptBudget):
    """So many prompt tokens a step while rows decode."""

    def __init__(self, tokens: int, capacity: int) -> None:
        super().__init__(1.0, capacity)
        self.fixed, self.capacity = tokens, capacity

    def tokens(self, *, running: bool) -> int:
        return self.fixed if running else self.capacity


def scheduler_of(
    *, rows: int = 4, blocks: int = 100, budget: int = 16, capacity: int = 16, score_capacity: int = 0
) -> Scheduler:
    return Scheduler(rows, KvSpace(4, (blocks,), (25,)), FixedBudget(budget, capacity), capacity, score_capacity)


def sequence_of(
    name: int,
    prompt: int = 3,
    max_tokens: int = 5,
    credit: int | None = None,
    *,
    scored: int | None = None,
    token: int | None = None,
) -> Sequence:
    """With a prompt of one token again and again: its own, which no other prompt has, or `token`."""
    tokens = (1000 + name if token is None else token,) * prompt
    request = GenerateRequest(id=name, prompt=tokens, max_tokens=max_tokens, credit=credit, prompt_logprobs=scored)
    return Sequence(request, max_tokens, 0, 0.0)


def names(sequences: object) -> list[int]:
    return [sequence.request.id for sequence in sequences]  # type: ignore[attr-defined]


def test_a_later_one_that_fits_may_pass_one_that_does_not() -> None:
    scheduler = scheduler_of(blocks=25)
    first, large, small = sequence_of(1, 40, 8), sequence_of(2, 60, 20), sequence_of(3, 3, 5)
    for sequence in (first, large, small):
        scheduler.add(sequence)
    assert names(scheduler.admit()) == [1, 3]
    assert (scheduler.running, scheduler.waiting, large.passed) == (2, 1, 1)
    scheduler.finish(first)
    scheduler.finish(small)
    assert names(scheduler.admit()) == [2]


def test_nobody_passes_one_that_was_passed_often_enough() -> None:
    # The first holds 12 of 25 blocks, and the second wants 20.
    scheduler = scheduler_of(blocks=25, rows=4)
    running, large = sequence_of(0, 40, 8), sequence_of(1, 60, 20)
    scheduler.add(running)
    scheduler.add(large)
    admitted = []
    for name in range(2, 200):
        small = sequence_of(name)
        scheduler.add(small)
        if name % 2:
            # Two at a time, so that the bound is met in the middle of a turn.
            admitted += scheduler.admit()
            for sequence in admitted:
                if sequence not in (running, large) and not sequence.finished:
                    scheduler.finish(sequence)
    passed = [sequence for sequence in admitted if sequence not in (running, large)]
    assert names(passed) == list(range(2, 2 + OVERTAKEN))
    assert (large.passed, large.row) == (OVERTAKEN, -1)
    scheduler.finish(running)
    assert names(scheduler.admit()) == [1, 66, 67]


def test_a_crowd_comes_in_over_some_turns() -> None:
    """Whether or not anything was read meanwhile."""
    count = 2 * AT_ONCE + 3
    scheduler = scheduler_of(rows=count, blocks=count * 12, capacity=64)
    for name in range(count):
        scheduler.add(sequence_of(name, 40))
    assert [len(scheduler.admit()) for _ in range(4)] == [AT_ONCE, AT_ONCE, 3, 0]
    assert (scheduler.running, scheduler.waiting) == (count, 0)


def test_a_crowd_whose_prompts_fit_into_a_step_comes_in_at_once() -> None:
    count = 2 * AT_ONCE + 3
    scheduler = scheduler_of(rows=count, blocks=count * 12, capacity=3 * count)
    for name in range(count):
        scheduler.add(sequence_of(name, 3))
    assert len(scheduler.admit()) == count


def test_what_others_have_read_meanwhile_is_found() -> None:
    """A prompt is looked up when its row is given to it, not when it comes."""
    scheduler = scheduler_of(rows=1)
    first, second = sequence_of(1, 17, token=7), sequence_of(2, 17, token=7)
    scheduler.add(first)
    scheduler.add(second)
    assert names(scheduler.admit()) == [1]
    assert first.reservation is not None
    scheduler.kv.publish(first.reservation, first.tokens, 16)
    scheduler.finish(first)
    assert names(scheduler.admit()) == [2]
    assert second.cached == 16


def test_a_fork_waits_for_its_leader_and_holds_up_nobody() -> None:
    scheduler = scheduler_of()
    leader, fork, other = sequence_of(1), sequence_of(2), sequence_of(3)
    fork.leader = leader
    for sequence in (leader, fork, other):
        scheduler.add(sequence)
    assert names(scheduler.admit()) == [1, 3]
    assert fork.passed == 0
    assert names(scheduler.admit()) == []
    leader.committed = 1
    assert names(scheduler.admit()) == [2]


def test_a_fork_goes_on_alone_when_its_leader_ends() -> None:
    scheduler = scheduler_of()
    leader, fork = sequence_of(1), sequence_of(2)
    fork.leader = leader
    scheduler.add(leader)
    scheduler.add(fork)
    scheduler.finish(leader)
    assert names(scheduler.admit()) == [2]


def test_a_fork_shares_its_leaders_blocks_though_equal_ones_were_published_first() -> None:
    # A prompt that is scored leaves blocks, and nobody waits for them.
    scheduler = scheduler_of(blocks=25, score_capacity=16)
    kv = scheduler.kv
    twin = sequence_of(1, 13, 3, scored=0, token=7)
    leader, fork = (sequence_of(name, 13, 3, token=7) for name in (2, 3))
    fork.leader = leader
    for sequence in (twin, leader, fork):
        scheduler.add(sequence)
    assert names(scheduler.admit()) == [1, 2]
    for sequence in (twin, leader):
        assert sequence.reservation is not None
        kv.publish(sequence.reservation, sequence.tokens, 12)
    leader.committed = 1
    scheduler.finish(twin)
    # All but what the leader holds: the twin's blocks are evicted.
    filler = kv.reserve(21 * 4)
    assert filler is not None
    kv.release(filler)
    assert names(scheduler.admit()) == [3]
    assert fork.cached == 12


def test_prompts_to_score_take_turns_with_all_else() -> None:
    scheduler = scheduler_of(budget=4, capacity=16, score_capacity=6)
    decoding, scored, silent = sequence_of(1, 3, 9), sequence_of(2, 14, 3, scored=0), sequence_of(3, 5, 0, scored=2)
    for sequence in (decoding, scored, silent):
        scheduler.add(sequence)
    scheduler.admit()
    seen = []
    for plan in iter(scheduler.plan, None):
        run = plan.score
        chunk = (run.sequence.request.id, run.first, run.count) if run else None
        seen.append(
            (chunk, names(plan.decode), [run.sequence.request.id for run in plan.prompts], names(plan.sampling))
        )
        assert run is None or (not plan.decode and not plan.prompts and plan.runs == 1)
    assert seen[:9] == [
        ((2, 0, 6), [], [], []),
        (None, [], [1], [1]),
        ((2, 6, 6), [], [], []),
        (None, [1], [], [1]),
        ((2, 12, 2), [], [], [2]),
        (None, [1, 2], [], [1, 2]),
        ((3, 0, 5), [], [], []),
        (None, [1, 2], [], [1, 2]),
        (None, [1], [], [1]),
    ]
    assert all(chunk is None and decode == [1] for chunk, decode, _, _ in seen[9:])


def test_admission_reserves_all_that_a_sequence_may_ever_need() -> None:
    scheduler = scheduler_of()
    scheduler.add(sequence_of(1, 9, 8))
    scheduler.admit()
    assert scheduler.kv.used == 5  # 17 positions in blocks of 4
    while scheduler.plan() is not None:
        assert scheduler.kv.used == 5


def test_rows_bound_admission_and_go_back() -> None:
    scheduler = scheduler_of(rows=2)
    sequences = [sequence_of(n) for n in range(4)]
    for sequence in sequences:
        scheduler.add(sequence)
    assert names(scheduler.admit()) == [0, 1]
    scheduler.finish(sequences[0])
    assert names(scheduler.admit()) == [2]
    assert sequences[2].row == 0
    assert {sequences[1].row, sequences[2].row} == {0, 1}


def test_decode_rows_come_first_and_prompts_share_what_is_left() -> None:
    scheduler = scheduler_of(rows=4, budget=6, capacity=16)
    decoding = sequence_of(1, 3)
    scheduler.add(decoding)
    scheduler.admit()
    assert scheduler.plan() is not None
    for sequence in (sequence_of(2, 5), sequence_of(3, 20)):
        scheduler.add(sequence)
    scheduler.admit()
    plan = scheduler.plan()
    assert plan is not None
    assert names(plan.decode) == [1]
    assert [(run.sequence.request.id, run.first, run.count, run.samples) for run in plan.prompts] == [
        (2, 0, 5, True),
        (3, 0, 1, False),
    ]
    assert names(plan.sampling) == [1, 2]
    assert (plan.tokens, plan.prompt_tokens, plan.runs) == (7, 6, 3)
    plan = scheduler.plan()
    assert plan is not None
    assert names(plan.decode) == [1, 2]
    assert [(run.first, run.count) for run in plan.prompts] == [(1, 6)]


def test_a_prompt_alone_takes_the_whole_step() -> None:
    scheduler = scheduler_of(budget=2, capacity=16)
    scheduler.add(sequence_of(1, 40, 8))
    scheduler.admit()
    chunks = []
    for _ in range(3):
        plan = scheduler.plan()
        assert plan is not None
        chunks += [(run.first, run.count, run.samples) for run in plan.prompts]
    assert chunks == [(0, 16, False), (16, 16, False), (32, 8, True)]


def test_credit_pauses_a_row_and_its_grant_wakes_it() -> None:
    scheduler = scheduler_of()
    paused, free = sequence_of(1, 3, 20, credit=2), sequence_of(2, 3, 6)
    for sequence in (paused, free):
        scheduler.add(sequence)
    scheduler.admit()
    sampled = []
    while (plan := scheduler.plan()) is not None:
        sampled.append(names(plan.sampling))
    assert sampled == [[1, 2], [1, 2], [2], [2], [2], [2]]
    paused.grant(3)
    assert [names(plan.sampling) for plan in iter(scheduler.plan, None)] == [[1], [1], [1]]


def test_a_sequence_ends_once() -> None:
    scheduler = scheduler_of()
    running, waiting = sequence_of(1), sequence_of(2)
    scheduler.add(running)
    scheduler.admit()
    scheduler.add(waiting)
    for sequence in (running, waiting):
        scheduler.finish(sequence)
        with pytest.raises(ValueError, match="once"):
            scheduler.finish(sequence)
    assert (scheduler.running, scheduler.waiting, scheduler.kv.used) == (0, 0, 0)


def test_a_step_too_small_for_its_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="no room for 4 rows"):
        scheduler_of(rows=4, capacity=3)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12), st.none() | st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(4, 20),
)
def test_no_plan_goes_past_a_limit(
    asked: list[tuple[int, int, int | None]], rows: int, budget: int, capacity: int
) -> None:
    scheduler = scheduler_of(rows=rows, budget=budget, capacity=capacity, blocks=40)
    sequences = [sequence_of(n, *sizes) for n, sizes in enumerate(asked)]
    for sequence in sequences:
        scheduler.add(sequence)
    sampled = dict.fromkeys(range(len(sequences)), 0)
    read = dict.fromkeys(range(len(sequences)), 0)
    for _ in range(5000):
        scheduler.admit()
        plan = scheduler.plan()
        if plan is None:
            break
        assert 0 < plan.tokens <= capacity
        assert not plan.decode or plan.prompt_tokens <= budget
        for run in plan.prompts:
            name = run.sequence.request.id
            assert run.first == read[name]
            read[name] += run.count
        for sequence in plan.sampling:
            name = sequence.request.id
            sampled[name] += 1
            assert sampled[name] <= min(sequence.max_tokens, sequence.request.credit or 99)
            if sampled[name] == sequence.max_tokens:
                scheduler.finish(sequence)
            elif sampled[name] == sequence.request.credit:
                # Its client leaves.
                scheduler.finish(sequence)
    assert (scheduler.running, scheduler.waiting, scheduler.kv.used) == (0, 0, 0)
    assert [read[n] for n in range(len(asked))] == [sizes[0] for sizes in asked]


def test_the_budget_learns_tokens_that_fit_its_time() -> None:
    budget = PromptBudget(150.0, 512)
    assert budget.tokens(running=False) == 512
    assert budget.tokens(running=True) == 16
    for _ in range(40):
        budget.measured(0, 50.0)
        budget.measured(200, 50.0 + 200 * 1.0)
    # 150 ms less the 50 ms of a decode step, at a millisecond a token.
    assert budget.tokens(running=True) == pytest.approx(100, abs=2)
    assert budget.tokens(running=False) == 512


@given(st.lists(st.tuples(st.integers(0, 600), st.floats(0, 1e7)), max_size=30))
def test_the_budget_stays_within_a_step(steps: list[tuple[int, float]]) -> None:
    budget = PromptBudget(150.0, 512)
    for tokens, milliseconds in steps:
        budget.measured(tokens, milliseconds)
        assert 16 <= budget.tokens(running=True) <= 512
