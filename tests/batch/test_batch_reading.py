"""Which prompts a step reads: short ones do not wait for long ones, and nobody is the worse for it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_batch.kv import KvSpace, Reservation
from poot_batch.request import GenerateRequest
from poot_batch.schedule import PromptBudget, Scheduler, Sequence
from poot_batch.schedule.reading import shares

Rule = Callable[[list[Sequence], int], dict[Sequence, int]]


def sequence_of(name: int, prompt: int, awaited: int = 0) -> Sequence:
    """With a prompt of its own, of which others wait for the first `awaited` positions."""
    sequence = Sequence(GenerateRequest(id=name, prompt=(name,) * prompt, max_tokens=1), 1, 0, 0.0)
    sequence.reservation = Reservation((), awaited=awaited)
    return sequence


def in_order(reading: list[Sequence], room: int) -> dict[Sequence, int]:
    """What is compared with: one prompt after another."""
    given = {}
    for sequence in reading:
        if room:
            given[sequence] = min(sequence.prompt_left, room)
            room -= given[sequence]
    return given


def step(reading: list[Sequence], room: int, rule: Rule = shares) -> dict[int, int]:
    """Tokens of a step by the names of those who get any."""
    given = rule(reading, room)
    for sequence, count in given.items():
        assert 0 < count <= sequence.prompt_left
        sequence.scheduled += count
    return {sequence.request.id: count for sequence, count in given.items()}


@pytest.mark.parametrize(
    ("left", "room", "tokens"),
    [
        # All that fits, and a prompt alone.
        ([5, 3], 16, {0: 5, 1: 3}),
        ([12, 4], 16, {0: 12, 1: 4}),
        ([100], 16, {0: 16}),
        # A short one ends in this step; what it leaves of its half is the long one's.
        ([100, 6], 16, {1: 6, 0: 10}),
        # The shortest first, in order of arrival among equals: 3 and 3 of 8, and 2 for the next one.
        ([100, 7, 3, 3, 9], 16, {2: 3, 3: 3, 1: 2, 0: 8}),
        # Of about one length, up to the next power of two, the earliest.
        ([100, 7, 5, 9, 8], 16, {1: 7, 2: 1, 0: 8}),
        # Half as much is short, and more is not.
        ([100, 60, 51], 16, {0: 16}),
        ([100, 60, 50], 16, {2: 8, 0: 8}),
        # The long one is the one on which the first half ends.
        ([4, 100, 6], 16, {0: 4, 2: 6, 1: 6}),
        ([8, 8, 8, 2], 16, {0: 8, 3: 2, 1: 6}),
        # A long one that ends leaves the rest to those behind it.
        ([10, 9, 8], 16, {0: 10, 1: 6}),
        # An odd token is the long one's.
        ([100, 6], 3, {1: 1, 0: 2}),
        ([100, 6], 1, {0: 1}),
        ([100, 6], 0, {}),
    ],
)
def test_tokens_of_a_step(left: list[int], room: int, tokens: dict[int, int]) -> None:
    assert step([sequence_of(name, count) for name, count in enumerate(left)], room) == tokens


def test_a_short_prompt_larger_than_its_half_is_read_over_steps() -> None:
    reading = [sequence_of(0, 100), sequence_of(1, 20)]
    assert [step(reading, 16) for _ in range(2)] == [{1: 8, 0: 8}] * 2
    assert step(reading, 16) == {1: 4, 0: 12}


def test_what_others_wait_for_is_as_short_as_that() -> None:
    reading = [sequence_of(0, 100), sequence_of(1, 90, awaited=10)]
    assert [step(reading, 16) for _ in range(3)] == [{1: 8, 0: 8}, {1: 2, 0: 14}, {0: 16}]
    # The step is full although the first of them ends in it.
    assert step([sequence_of(0, 10), sequence_of(1, 90, awaited=4)], 16) == {1: 6, 0: 10}


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=12), st.integers(0, 200))
def test_steps_are_full_and_the_first_keeps_half_its_speed(sizes: list[tuple[int, int]], room: int) -> None:
    reading = [sequence_of(name, prompt, min(awaited, prompt - 1)) for name, (prompt, awaited) in enumerate(sizes)]
    first, whole = reading[0].prompt_left, sum(sequence.prompt_left for sequence in reading)
    tokens = step(reading, room)
    assert sum(tokens.values()) == min(room, whole)
    assert tokens.get(0, 0) >= min(first, -(-room // 2))


@given(st.integers(1, 80), st.integers(1, 100), st.integers(1, 12), st.integers(0, 79))
def test_prompts_of_one_length_are_read_in_order(length: int, room: int, count: int, begun: int) -> None:
    """Whatever the first has had already."""
    ours, theirs = ([sequence_of(name, length) for name in range(count)] for _ in range(2))
    ours[0].scheduled = theirs[0].scheduled = min(begun, length - 1)
    while ours:
        assert step(ours, room) == step(theirs, room, in_order)
        ours, theirs = ([each for each in reading if each.prompt_left] for reading in (ours, theirs))


def read_all(lengths: list[int], room: int, rule: Rule) -> tuple[int, int, list[int]]:
    """Steps until all are read, the most prompts that were partly read between two, and for each prompt the steps until
    its first token."""
    reading = [sequence_of(name, length) for name, length in enumerate(lengths)]
    steps, partly, answered = 0, 0, [0] * len(lengths)
    while reading:
        steps += 1
        given = step(reading, room, rule)
        assert sum(given.values()) == room or len(given) == len(reading)
        for sequence in reading:
            if not sequence.prompt_left:
                answered[sequence.request.id] = steps
        reading = [sequence for sequence in reading if sequence.prompt_left]
        partly = max(partly, sum(sequence.scheduled > 0 for sequence in reading))
    return steps, partly, answered


def test_a_burst_of_one_length_takes_the_same_steps() -> None:
    """256 prompts of 1,024: two a step in 128 steps; with a smaller budget, one is partly read at a time."""
    steps, partly, answered = read_all([1024] * 256, 2048, shares)
    assert (steps, partly, answered) == (128, 0, [1 + name // 2 for name in range(256)])
    assert read_all([1024] * 256, 1500, shares) == read_all([1024] * 256, 1500, in_order)
    assert read_all([1024] * 256, 1500, shares)[:2] == (175, 1)


def test_a_mixed_burst_is_answered_sooner_in_as_many_steps() -> None:
    random = Random(5)
    lengths = [random.choice((20, 60, 200, 1000, 4000)) for _ in range(256)]
    steps, _, answered = read_all(lengths, 2048, shares)
    before, _, in_turn = read_all(lengths, 2048, in_order)
    assert steps == before == -(-sum(lengths) // 2048)
    assert sum(answered) < 0.8 * sum(in_turn)
    # Whoever is passed by short ones is read at half the speed at worst.
    assert all(ours <= 2 * theirs for ours, theirs in zip(answered, in_turn, strict=True))


def test_a_short_chat_beside_a_long_prompt_and_rows_that_answer() -> None:
    """3,000 tokens at 32 a step take 94 steps; a chat of 20 comes in the third and takes the half of two of them."""

    class Budget(PromptBudget):
        def tokens(self, *, running: bool) -> int:
            return 32 if running else 64

    scheduler = Scheduler(3, KvSpace(16, (300,), (256,)), Budget(1.0, 64), 64)
    row, long, chat = (
        Sequence(GenerateRequest(id=name, prompt=(name,) * prompt, max_tokens=most), most, 0, 0.0)
        for name, prompt, most in ((1, 5, 500), (2, 3000, 5), (3, 20, 5))
    )
    for sequence in (row, long):
        scheduler.add(sequence)
    scheduler.admit()
    seen = []
    for number in range(6):
        if number == 2:
            scheduler.add(chat)
            scheduler.admit()
        plan = scheduler.plan()
        assert plan is not None
        seen.append({run.sequence.request.id: run.count for run in plan.prompts})
    assert seen == [{1: 5, 2: 59}, {2: 32}, {3: 16, 2: 16}, {3: 4, 2: 28}, {2: 32}, {2: 32}]
    assert chat.scheduled == 20 + 2


@pytest.mark.parametrize("depth", [1, 2])
def test_a_chat_is_answered_while_a_long_prompt_is_read(harness, request_of, fake_model, depth: int) -> None:
    """60 tokens at 8 a step are 8 steps. The chat's 5 take 4 of the second step and 1 of the third."""
    h = harness(depth=depth, capacity=8)
    h.submit(request_of(0, tuple(range(60)), seed=1, max_tokens=2, ignore_eos=True))
    h.step()
    h.submit(request_of(1, (9, 9, 9, 9, 9), seed=2, max_tokens=1, ignore_eos=True))
    h.run()
    chunks = [{run.sequence.request.id: run.count for run in plan.prompts} for plan in h.driver.plans]
    assert chunks[:4] == [{0: 8}, {1: 4, 0: 4}, {1: 1, 0: 7}, {0: 8}]
    assert [h.tokens(name) for name in range(2)] == [
        (fake_model.token_at(1, 60), fake_model.token_at(1, 61)),
        (fake_model.token_at(2, 5),),
    ]
    first, last = (h.outputs[name][-1].times for name in range(2))
    assert last.prefill_ms < first.prefill_ms / 2
    h.assert_idle()
