"""The prefix cache in the loop: hits, misses and their reasons, forks, and what a failure leaves behind."""

from __future__ import annotations

import pytest

from poot_batch.errors import RequestError


@pytest.mark.parametrize("depth", [1, 2])
def test_a_second_request_runs_only_what_is_new(harness, request_of, depth: int) -> None:
    h = harness(depth=depth)
    for name in range(2):
        h.submit(request_of(name, 14, max_tokens=6, ignore_eos=True))
        h.run()
    runs = [(run.first, run.count) for plan in h.driver.plans for run in plan.prompts]
    assert runs == [(0, 14), (12, 2)]
    assert h.tokens(0) == h.tokens(1)
    first, last = h.outputs[1][0], h.outputs[1][-1]
    assert (first.cached_tokens, last.cached_tokens, last.cache_miss) == (12, 12, None)
    assert (h.outputs[0][0].cached_tokens, h.outputs[0][0].cache_miss) == (0, "not seen before")
    assert [output.cached_tokens for output in h.outputs[1][1:-1]] == [0] * 4
    stats = h.engine.stats()
    assert (stats.prefix_hit_tokens, stats.prefix_query_tokens, stats.prompt_tokens) == (12, 28, 16)
    h.assert_idle()


@pytest.mark.parametrize(
    ("prompt", "fields", "reason"),
    [
        (4, {}, "shorter than a block"),
        (5, {}, None),
        (9, {"cache_salt": "other"}, "not seen before"),
        ((*range(2, 10), 50, 51, 52, 53, 54), {}, "first 2 of 3 blocks only"),
    ],
)
def test_a_miss_says_why(harness, request_of, prompt: object, fields: dict[str, str], reason: str | None) -> None:
    h = harness()
    h.submit(request_of(0, 12, max_tokens=1))
    h.run()
    h.submit(request_of(1, prompt, max_tokens=1, **fields))
    h.run()
    assert h.outputs[1][-1].cache_miss == reason


def test_an_answers_blocks_are_found_in_the_next_turn(harness, request_of) -> None:
    h = harness()
    h.submit(request_of(0, 6, max_tokens=10, ignore_eos=True))
    h.run()
    # 15 positions were run: the last token was not. Three full blocks.
    h.submit(request_of(1, (*range(2, 8), *h.tokens(0), 40, 41), max_tokens=1))
    h.run()
    assert h.outputs[1][-1].cached_tokens == 12


@pytest.mark.parametrize("depth", [1, 2])
def test_forks_wait_and_then_share(harness, request_of, depth: int) -> None:
    h = harness(depth=depth, rows=3, capacity=5)
    for name in range(6):
        h.submit(request_of(name, 13, max_tokens=3, seed=name, ignore_eos=True, fork_of=0 if name else None))
    h.submit(request_of(9, 2, max_tokens=1))
    h.step()
    assert {sequence.request.id for sequence in h.driver.opened.values()} == {0, 9}
    h.run()
    assert [h.outputs[name][-1].cached_tokens for name in range(6)] == [0, *[12] * 5]
    assert all(len(h.tokens(name)) == 3 for name in range(6))
    h.assert_idle()


def test_forks_of_a_leader_that_leaves_go_on(harness, request_of) -> None:
    h = harness(capacity=4)
    for name in range(3):
        h.submit(request_of(name, 13, max_tokens=3, ignore_eos=True, fork_of=0 if name else None))
    h.step()
    h.take(h.engine.cancel(0))
    h.run()
    assert [h.finish(name) for name in range(3)] == ["abort", "length", "length"]
    # The one chunk that was read is there; the first of them reads the rest for the other.
    assert [h.outputs[name][-1].cached_tokens for name in (1, 2)] == [4, 12]
    h.assert_idle()


def test_a_row_that_is_not_finite_leaves_nothing(harness, request_of) -> None:
    h = harness(flagged={0}, capacity=4)
    for name in range(2):
        h.submit(request_of(name, 13, max_tokens=3))
        h.run()
    assert h.finish(0) == "error"
    assert (h.finish(1), h.outputs[1][-1].cached_tokens) == ("length", 0)


def test_a_step_that_fails_leaves_nothing_of_itself(harness, request_of) -> None:
    h = harness(fails={"collect": {2}}, capacity=4)
    for name in range(2):
        h.submit(request_of(name, 13, max_tokens=3, ignore_eos=True))
        h.run()
    assert (h.finish(0), h.finish(1)) == ("error", "length")
    # Its first chunk was read by a good step.
    assert h.outputs[1][-1].cached_tokens == 4


def test_blocks_are_evicted_when_their_room_is_needed(harness, request_of) -> None:
    h = harness(blocks=16, max_seq=64)
    h.submit(request_of(0, 30, max_tokens=2))
    h.run()
    h.submit(request_of(1, tuple(range(20, 59)), max_tokens=25, ignore_eos=True))
    h.run()
    h.submit(request_of(2, 30, max_tokens=2))
    h.run()
    assert h.outputs[2][-1].cached_tokens == 0
    assert h.engine.stats().kv_blocks_used == 0


def test_default_max_tokens_stand_in_for_none(harness, request_of) -> None:
    h = harness()
    h.engine._default_max_tokens = 5
    h.submit(request_of(0, 3, ignore_eos=True))
    h.submit(request_of(1, 61, ignore_eos=True))
    h.submit(request_of(2, 3, ignore_eos=True, max_tokens=7))
    h.submit(request_of(3, 3, ignore_eos=True, min_tokens=6))
    h.run()
    assert [len(h.tokens(name)) for name in range(4)] == [5, 3, 7, 6]


def test_without_a_program_for_them_prompts_are_not_scored(harness, request_of) -> None:
    h = harness()
    with pytest.raises(RequestError, match="no log-probabilities of prompts"):
        h.submit(request_of(0, 3, prompt_logprobs=1))
    assert not h.engine.busy
