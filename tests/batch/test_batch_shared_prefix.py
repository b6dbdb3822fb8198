"""Prompts that begin alike and come together: what they share is computed once, and nobody waits for nothing."""

from __future__ import annotations

from random import Random

import pytest

from poot_batch.kv import KvSpace
from poot_batch.request import GenerateRequest
from poot_batch.schedule import PromptBudget, Scheduler, Sequence, StepPlan

BLOCK = 4


def scheduler_of(rows: int = 4, blocks: int = 100, *, caching: bool = True) -> Scheduler:
    return Scheduler(rows, KvSpace(BLOCK, (blocks,), (25,), caching=caching), PromptBudget(1.0, 16), 16)


def sequence_of(name: int, shared: int, own: int = 2, *, max_tokens: int = 3, **fields: str) -> Sequence:
    """With a prompt of so many tokens that others have too, and so many that only it has."""
    prompt = (*range(100, 100 + shared), *(1000 * (name + 1) + n for n in range(own)))
    return Sequence(GenerateRequest(id=name, prompt=prompt, max_tokens=max_tokens, **fields), max_tokens, 0, 0.0)


def names(sequences: tuple[Sequence, ...]) -> list[int]:
    return [sequence.request.id for sequence in sequences]


def added(scheduler: Scheduler, *sequences: Sequence) -> list[int]:
    for sequence in sequences:
        scheduler.add(sequence)
    return names(scheduler.admit())


def publish(scheduler: Scheduler, sequence: Sequence, positions: int) -> None:
    assert sequence.reservation is not None
    scheduler.kv.publish(sequence.reservation, sequence.tokens, positions)


def run(scheduler: Scheduler) -> StepPlan:
    """A step, of which the blocks are published and nothing is sampled."""
    plan = scheduler.plan()
    assert plan is not None
    for sequence, positions in plan.fills:
        publish(scheduler, sequence, positions)
    return plan


def test_one_reads_what_others_need_and_they_have_a_row_meanwhile() -> None:
    scheduler = scheduler_of(rows=4)
    first, second, third, other = sequence_of(0, 10), sequence_of(1, 10), sequence_of(2, 10), sequence_of(3, 0, 9)
    # All are given rows, and two no blocks: 15 and 12 positions take 4 and 3.
    assert added(scheduler, first, second, third, other) == [0, 1, 2, 3]
    assert [sequence.row for sequence in (first, second, third, other)] == [0, 1, 2, 3]
    assert (second.reservation, third.reservation, scheduler.kv.used) == (None, None, 4 + 3)
    assert (scheduler.running, scheduler.waiting) == (4, 0)
    assert [(chunk.sequence.request.id, chunk.count) for chunk in run(scheduler).prompts] == [(0, 12), (3, 4)]
    # Of 10 tokens two blocks are full; the third has tokens of its own.
    assert names(scheduler.admit()) == [1, 2]
    assert (first.cached, second.cached, third.cached) == (0, 8, 8)
    assert [second.row, third.row] == [1, 2]
    # Blocks 4 and 3 as before, and two of four of the others are shared.
    assert scheduler.kv.used == 4 + 3 + 2 + 2


def test_nobody_waits_who_shares_no_whole_block() -> None:
    scheduler = scheduler_of()
    sequences = [sequence_of(n, 3, 9) for n in range(4)]
    assert added(scheduler, *sequences) == [0, 1, 2, 3]
    assert all(sequence.reservation is not None for sequence in sequences)


def test_a_prompts_last_token_is_no_reason_to_wait() -> None:
    """The same 8 tokens: the second block would have to run again so that its last token samples."""
    scheduler = scheduler_of()
    first, second = sequence_of(0, 8, 0), sequence_of(1, 8, 0)
    added(scheduler, first, second)
    assert second.reservation is None
    publish(scheduler, first, 4)
    assert names(scheduler.admit()) == [1]
    assert second.cached == 4


@pytest.mark.parametrize(
    ("caching", "ours", "theirs", "held"),
    [
        (True, {"cache_salt": "a"}, {"cache_salt": "b"}, False),
        (True, {"cache_salt": "a"}, {}, False),
        (True, {"cache_salt": "a"}, {"cache_salt": "a"}, True),
        (True, {"adapter": "a"}, {"adapter": "b"}, False),
        (False, {}, {}, False),
    ],
)
def test_only_who_may_share_waits(caching: bool, ours: dict[str, str], theirs: dict[str, str], held: bool) -> None:
    scheduler = scheduler_of(caching=caching)
    first, second = sequence_of(0, 20, **ours), sequence_of(1, 20, **theirs)
    assert added(scheduler, first, second) == [0, 1]
    assert (second.reservation is None) == held


@pytest.mark.parametrize("read", [0, 4, 8])
def test_who_waits_goes_on_when_the_other_ends(read: int) -> None:
    """With what it had read; the first of those who waited reads the rest for the others."""
    scheduler = scheduler_of()
    first, second, third = (sequence_of(n, 12) for n in range(3))
    added(scheduler, first, second, third)
    publish(scheduler, first, read)
    assert scheduler.admit() == ()
    scheduler.finish(first)
    assert names(scheduler.admit()) == [1]
    assert (second.cached, third.reservation) == (read, None)
    publish(scheduler, second, 12)
    assert names(scheduler.admit()) == [2]
    assert third.cached == 12


def test_who_waits_goes_on_when_what_was_read_is_in_doubt() -> None:
    scheduler = scheduler_of()
    first, second = sequence_of(0, 12), sequence_of(1, 12)
    added(scheduler, first, second)
    publish(scheduler, first, 8)
    assert first.reservation is not None
    scheduler.kv.retract(first.reservation)
    assert names(scheduler.admit()) == [1]
    assert second.cached == 0


def test_who_is_held_and_ends_gives_its_row_back() -> None:
    scheduler = scheduler_of(rows=2)
    first, second, third = sequence_of(0, 12), sequence_of(1, 12), sequence_of(2, 0)
    assert added(scheduler, first, second, third) == [0, 1]
    assert (scheduler.running, scheduler.waiting) == (2, 1)
    scheduler.finish(second)
    assert (scheduler.running, names(scheduler.admit()), third.row) == (1, [2], 1)
    for sequence in (first, third):
        scheduler.finish(sequence)
    assert (scheduler.running, scheduler.waiting, scheduler.kv.used) == (0, 0, 0)


def test_waits_follow_each_other_along_a_prompt() -> None:
    """1 shares 2 blocks with 0, and 2 shares 4 with 1, which 1 reads for it."""
    scheduler = scheduler_of()
    first, second, third = sequence_of(0, 8), sequence_of(1, 16), sequence_of(2, 16)
    added(scheduler, first, second, third)
    assert (second.reservation, third.reservation) == (None, None)
    publish(scheduler, first, 8)
    assert names(scheduler.admit()) == [1]
    assert (second.cached, third.reservation) == (8, None)
    publish(scheduler, second, 12)
    assert scheduler.admit() == ()
    publish(scheduler, second, 16)
    assert names(scheduler.admit()) == [2]
    assert third.cached == 16


def test_a_held_one_without_room_keeps_its_row_and_its_turn() -> None:
    # Of 25 blocks the first takes 5 and the large one 19: what is held needs 3 beside what it shares.
    scheduler = scheduler_of(rows=3, blocks=25)
    first, held, large = sequence_of(0, 12, max_tokens=6), sequence_of(1, 12, 9, max_tokens=3), sequence_of(2, 0, 70)
    assert added(scheduler, first, held, large) == [0, 1, 2]
    publish(scheduler, first, 12)
    assert scheduler.admit() == ()
    assert (held.row, scheduler.running, scheduler.waiting) == (1, 3, 0)
    scheduler.finish(large)
    late = sequence_of(3, 0, 50)
    assert added(scheduler, late) == [1, 3]


def test_forks_of_one_that_is_held_wait_for_it() -> None:
    scheduler = scheduler_of()
    first, leader, fork = sequence_of(0, 12), sequence_of(1, 12, 6), sequence_of(2, 12, 6)
    fork.request = leader.request
    fork.tokens, fork.prompt_length, fork.leader = leader.tokens[:], leader.prompt_length, leader
    assert added(scheduler, first, leader, fork) == [0, 1]
    publish(scheduler, first, 12)
    assert scheduler.admit() == (leader,)
    assert scheduler.admit() == ()
    publish(scheduler, leader, 16)
    leader.committed = 1
    assert scheduler.admit() == (fork,)
    assert fork.cached == 16


@pytest.mark.parametrize("depth", [1, 2])
def test_a_burst_computes_its_system_prompt_once(harness, request_of, depth: int) -> None:
    """32 prompts of 1,500 tokens that they share and 100 of their own, on 32 rows in steps of 2,048.

    1,500 tokens are 375 blocks of 4. The first computes its 1,600 tokens and each of the others 100: 4,700 in all,
    where everybody alone would compute 51,200.
    """
    h = harness(depth=depth, rows=32, blocks=32 * 402, max_seq=1608, capacity=2048)
    opened: list[int] = []
    h.engine.on_open = opened.append
    shared = tuple(2 + n % 50 for n in range(1500))
    for name in range(32):
        h.submit(request_of(name, (*shared, *(2 + (name + n) % 58 for n in range(100))), max_tokens=4, ignore_eos=True))
    h.step()
    # The others follow while the first step runs: a crowd is not taken in at once.
    assert (len(h.driver.opened), opened, h.engine.stats().queue_depth) == (1, list(range(16)), 16)
    h.run()
    assert opened == list(range(32))
    stats = h.engine.stats()
    assert (stats.prompt_tokens, stats.prefix_hit_tokens, stats.prefix_query_tokens) == (4700, 31 * 1500, 32 * 1600)
    assert [h.outputs[name][0].cached_tokens for name in range(32)] == [0, *[1500] * 31]
    assert [h.outputs[name][-1].cache_miss for name in range(32)] == [
        "not seen before",
        *["first 375 of 399 blocks only"] * 31,
    ]
    # Everybody got a row at the first or the second turn, and waited for nothing else.
    assert stats.queue_wait_ms is not None
    assert stats.queue_wait_ms.count == 32
    h.assert_idle()


def test_a_fault_leaves_those_who_are_held_alone(harness, request_of) -> None:
    h = harness(capacity=8, fails={"collect": {2}})
    for name in range(3):
        h.submit(request_of(name, 18, seed=name, max_tokens=2, ignore_eos=True))
    h.run()
    assert [h.finish(name) for name in range(3)] == ["error", "length", "length"]
    # Two blocks were read by a good step. The next one reads the rest: four are full before the last token.
    assert [h.outputs[name][-1].cached_tokens for name in range(3)] == [0, 8, 16]
    h.assert_idle()


@pytest.mark.parametrize("seed", range(6))
def test_256_prompts_end_as_they_would_alone(harness, request_of, fake_model, seed: int) -> None:
    """The same prompt, begun alike or not at all, some forked or salted; clients leave at any moment."""
    random = Random(seed)
    h = harness(depth=1 + seed % 2, rows=16, blocks=(40, 80)[seed // 2 % 2], max_seq=64, capacity=20)
    asked = {}
    for name in range(256):
        alike = 0 if seed == 0 else random.choice((0, 0, 5, 24))
        prompt = (*range(2, 30), *(40 + n for n in range(4))) if alike == 0 else (*range(2, 2 + alike), 2 + name % 50)
        asked[name] = request_of(
            name, prompt, seed=name, max_tokens=3, ignore_eos=True, cache_salt=random.choice((None, None, "a")),
            fork_of=random.randrange(name) if name and random.random() < 0.1 else None,
        )  # fmt: skip
    gone = set()
    for name in range(256):
        h.submit(asked[name])
        if random.random() < 0.3:
            h.step()
        if random.random() < 0.2:
            gone.add(left := random.randrange(name + 1))
            h.take(h.engine.cancel(left))
    h.run()
    for name, request in asked.items():
        alone = tuple(fake_model.token_at(name, len(request.prompt) + n) for n in range(3))
        if h.finish(name) == "abort":
            assert name in gone
            assert alone[: len(h.tokens(name))] == h.tokens(name)
        else:
            assert (h.finish(name), h.tokens(name)) == ("length", alone)
    h.assert_idle()
