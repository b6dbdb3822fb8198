"""The engine over a fake model: what each request gets, and when."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import astuple

from poot_batch.errors import ContextLengthError, EngineFaultError, InvalidTokenError, RequestError
from poot_batch.request import GenerateRequest, SamplingParams

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def spelt(text: str) -> Callable[[int, int], int]:
    """A model that says these letters after a prompt of three tokens, whatever the seed; "." is an end token."""
    return lambda seed, position: 1 if text[position - 3] == "." else ord(text[position - 3]) - 97 + 26


@DEPTHS
def test_max_tokens_end_a_row_and_are_never_passed(harness, request_of, fake_model, depth):
    h = harness(depth=depth, says=lambda seed, position: position)
    h.submit(request_of(1, 3, max_tokens=5))
    h.run()
    assert h.tokens(1) == (3, 4, 5, 6, 7)
    assert h.finish(1) == "length"
    assert sum(len(plan.sampling) for plan in h.driver.plans) == 5
    h.assert_idle()


def test_without_max_tokens_a_row_runs_to_the_end_of_its_positions(harness, request_of):
    h = harness(max_seq=20, says=lambda seed, position: 9)
    h.submit(request_of(1, 3))
    h.run()
    assert len(h.tokens(1)) == 17
    assert h.finish(1) == "length"


@DEPTHS
def test_an_end_token_ends_a_row_and_what_comes_later_is_trimmed(harness, request_of, depth):
    h = harness(depth=depth, says=spelt("ab.cdefgh"))
    h.submit(request_of(1, 3, max_tokens=9))
    h.run()
    assert [token - 26 for token in h.tokens(1)] == [0, 1]
    assert h.finish(1) == "stop"
    # With two steps in flight, one token too many was computed; it is not counted either.
    assert sum(len(plan.sampling) for plan in h.driver.plans) == 2 + depth
    assert h.engine.stats().completion_tokens == 2
    h.assert_idle()


def test_ignore_eos_and_stop_token_ids(harness, request_of):
    h = harness(says=spelt("a.bcdefghi"))
    h.submit(request_of(1, 3, max_tokens=6, ignore_eos=True))
    h.submit(request_of(2, 3, max_tokens=6, ignore_eos=True, stop_token_ids=(26 + 2,)))
    h.submit(request_of(3, 3, max_tokens=6, stop_token_ids=(26 + 2,)))
    h.run()
    assert (h.tokens(1), h.finish(1)) == ((26, 1, 27, 28, 29, 30), "length")
    assert (h.tokens(2), h.finish(2)) == ((26, 1, 27), "stop")
    assert (h.tokens(3), h.finish(3)) == ((26,), "stop")


@DEPTHS
def test_a_stop_token_is_kept_where_what_stops_is_asked_for(harness, request_of, depth):
    h = harness(depth=depth, says=spelt("abc.efghi"))
    c, logged = 26 + 2, SamplingParams(seed=1, logprobs=0)
    kept = {"max_tokens": 6, "include_stop": True, "stop_token_ids": (c,), "sampling": logged}
    h.submit(request_of(1, 3, **kept))
    h.submit(request_of(2, 3, **kept, stop=("zz",)))
    h.submit(request_of(3, 3, **{**kept, "include_stop": False}, stop=("zz",)))
    h.submit(request_of(4, 3, **{**kept, "stop_token_ids": ()}))
    # Named by the request too, the model's own end token stays out.
    h.submit(request_of(5, 3, **{**kept, "stop_token_ids": (1,)}))
    h.submit(request_of(6, 3, **{**kept, "max_tokens": 3}))
    # What might have begun a stop string is text once the token ends the row; a whole one ends it first.
    h.submit(request_of(7, 3, **kept, stop=("cz",)))
    h.submit(request_of(8, 3, **kept, stop=("bc",)))
    h.submit(request_of(9, 3, **{**kept, "min_tokens": 3}))
    h.run()
    assert [h.tokens(name) for name in (1, 2, 6, 7, 8)] == [(26, 27, c)] * 5
    assert (h.tokens(3), h.tokens(4), h.tokens(5)) == ((26, 27), (26, 27, c), (26, 27, c))
    assert {h.finish(name) for name in range(1, 10)} == {"stop"}
    assert [h.text(name) for name in (2, 3, 7, 8)] == ["abc", "ab", "abc", "abc"]
    assert h.tokens(9) == (26, 27, c)
    for name, told, end in ((1, [26, 27, c], None), (2, [26, 27, c], None), (3, [26, 27], c), (5, [26, 27, c], 1)):
        assert [entry.token for output in h.outputs[name] for entry in output.logprobs or ()] == told
        last = h.outputs[name][-1].end_logprob
        assert (last.token if last else None) == end
    h.assert_idle()


def test_min_tokens_outlast_end_tokens_stop_tokens_and_stop_strings(harness, request_of):
    h = harness(says=spelt("a.b.cabcdefgh"))
    h.submit(request_of(1, 3, max_tokens=12, min_tokens=2))
    h.submit(request_of(2, 3, max_tokens=12, min_tokens=4))
    h.submit(request_of(3, 3, max_tokens=12, min_tokens=1, ignore_eos=True, stop_token_ids=(26,)))
    h.submit(request_of(4, 3, max_tokens=12, min_tokens=3, ignore_eos=True, stop=("a",)))
    h.run()
    assert h.tokens(1) == (26, 1, 27)
    assert (h.tokens(2), h.finish(2)) == ((26, 1, 27, 1, 28, 26, 27, 28, 29, 30, 31, 32), "length")
    assert h.tokens(3) == (26, 1, 27, 1, 28)
    assert (h.text(4), h.finish(4)) == ("abbbc", "stop")


@DEPTHS
def test_stop_strings_over_token_borders(harness, request_of, depth):
    h = harness(depth=depth, says=spelt("abcabdxyz"))
    h.submit(request_of(1, 3, max_tokens=9, stop=("abd", "zz")))
    h.submit(request_of(2, 3, max_tokens=9, stop=("abd",), include_stop=True))
    h.submit(request_of(3, 3, max_tokens=5, stop=("abd",)))
    h.run()
    assert (h.text(1), h.finish(1)) == ("abc", "stop")
    assert (h.text(2), h.finish(2)) == ("abcabd", "stop")
    # What was held back in case it became a stop string is text once the row ends.
    assert (h.text(3), h.finish(3)) == ("abcab", "length")
    assert len(h.tokens(1)) == 6
    h.assert_idle()


def test_text_is_given_only_where_there_are_stop_strings(harness, request_of):
    h = harness(says=spelt("abcdefghi"))
    h.submit(request_of(1, 3, max_tokens=4))
    h.submit(request_of(2, 3, max_tokens=4, stop=("q",)))
    h.run()
    assert all(output.text is None for output in h.outputs[1])
    assert [output.text for output in h.outputs[2]] == ["a", "b", "c", "d"]


def test_prompt_tokens_are_told_first_and_last(harness, request_of):
    h = harness(says=spelt("abcdefghi"))
    h.submit(request_of(1, 3, max_tokens=3))
    h.run()
    assert [output.prompt_tokens for output in h.outputs[1]] == [3, 0, 3]


def test_log_probabilities_go_to_the_rows_that_asked(harness, request_of):
    h = harness(says=lambda seed, position: position)
    h.submit(request_of(1, 3, max_tokens=3, sampling=SamplingParams(seed=1, logprobs=2)))
    h.submit(request_of(2, 3, max_tokens=3, sampling=SamplingParams(seed=1, logprobs=0)))
    h.submit(request_of(3, 3, max_tokens=3))
    h.run()
    entries = [entry for output in h.outputs[1] for entry in output.logprobs]
    assert [(entry.token, entry.logprob) for entry in entries] == [(3, -3.0), (4, -4.0), (5, -5.0)]
    assert entries[0].top == ((0, 0.0), (1, -1.0))
    assert [output.logprobs[0].top for output in h.outputs[2]] == [(), (), ()]
    assert all(output.logprobs is None for output in h.outputs[3])


@DEPTHS
def test_credit_pauses_a_row_until_it_is_granted_more(harness, request_of, depth):
    h = harness(depth=depth, says=lambda seed, position: position)
    h.submit(request_of(1, 3, max_tokens=20, credit=4))
    h.submit(request_of(2, 3, max_tokens=9))
    h.run()
    assert len(h.tokens(1)) == 4
    assert (len(h.tokens(2)), h.finish(2)) == (9, "length")
    assert not h.engine.busy
    assert h.engine.stats().inflight == 1
    h.engine.grant(1, 3)
    assert h.engine.busy
    h.run()
    assert len(h.tokens(1)) == 7
    h.engine.grant(1, 100)
    h.engine.grant(99, 5)
    h.run()
    assert (len(h.tokens(1)), h.finish(1)) == (20, "length")
    h.assert_idle()


@pytest.mark.parametrize("tokens", [0, -5])
def test_a_grant_of_nothing_wakes_nobody(harness, request_of, tokens):
    h = harness(says=lambda seed, position: position)
    h.submit(request_of(1, 3, max_tokens=20, credit=1))
    h.run()
    h.engine.grant(1, tokens)
    assert not h.engine.busy


def test_a_new_request_runs_beside_paused_rows_and_a_cancel_makes_room(harness, request_of):
    h = harness(rows=2, says=lambda seed, position: position)
    for name in (1, 2, 3):
        h.submit(request_of(name, 3, max_tokens=9, credit=2))
    h.run()
    assert (h.finish(3), h.engine.stats().queue_depth) == (None, 1)
    h.take(h.engine.cancel(1))
    h.run()
    assert len(h.tokens(3)) == 2
    for name in (2, 3):
        h.take(h.engine.cancel(name))
    h.assert_idle()


@DEPTHS
def test_cancel_frees_row_and_blocks_at_once(harness, request_of, depth):
    h = harness(depth=depth, rows=1, says=lambda seed, position: 9)
    h.submit(request_of(1, 3, max_tokens=40))
    h.submit(request_of(2, 3, max_tokens=4))
    for _ in range(5):
        h.step()
    used = h.kv.used
    h.take(h.engine.cancel(1))
    assert h.kv.used == 0 < used
    assert h.finish(1) == "abort"
    assert h.engine.cancel(1) == []
    h.run()
    assert len(h.tokens(2)) == 4
    h.assert_idle()


def test_cancel_of_a_waiting_request(harness, request_of):
    h = harness(rows=1)
    h.submit(request_of(1, 3, max_tokens=4))
    h.submit(request_of(2, 3, max_tokens=4))
    h.take(h.engine.cancel(2))
    h.run()
    assert h.outputs[2][-1].finish == "abort"
    assert all(sequence.request.id == 1 for plan in h.driver.plans for sequence in plan.sampling)
    h.assert_idle()


def test_rows_whose_logits_are_not_finite_end_alone(harness, request_of):
    h = harness(flagged={2}, says=lambda seed, position: 9)
    for name in (1, 2, 3):
        h.submit(request_of(name, 3, max_tokens=4))
    h.run()
    assert [h.finish(name) for name in (1, 2, 3)] == ["length", "error", "length"]
    assert h.outputs[2][-1].error_code == "non_finite_logits"
    assert h.engine.stats().requests_errored == 1
    h.assert_idle()


@DEPTHS
@pytest.mark.parametrize("moment", ["open", "submit", "collect"])
def test_a_fault_ends_the_rows_and_spares_those_that_wait(harness, request_of, depth, moment):
    h = harness(depth=depth, rows=2, fails={moment: {2}}, says=lambda seed, position: 9)
    for name in (1, 2, 3, 4):
        h.submit(request_of(name, 3, max_tokens=5))
    h.run()
    assert [h.finish(name) for name in (1, 2, 3, 4)] == ["error", "error", "length", "length"]
    assert {h.outputs[name][-1].error_code for name in (1, 2)} == {"engine_fault"}
    assert f"{moment} 2" in h.outputs[1][-1].error_message
    h.assert_idle()


@pytest.mark.parametrize("moment", ["open", "submit", "collect"])
def test_a_second_fault_in_a_row_is_raised_and_abandon_ends_the_rest(harness, request_of, moment):
    h = harness(rows=1, fails={moment: {1, 2}})
    for name in (1, 2, 3):
        h.submit(request_of(name, 3, max_tokens=5))
    h.step()
    assert h.finish(1) == "error"
    with pytest.raises(EngineFaultError) as raised:
        h.engine.step()
    assert h.finish(2) is None
    h.take(h.engine.abandon(raised.value))
    assert {h.outputs[name][-1].error_code for name in (1, 2, 3)} == {"engine_fault"}
    h.assert_idle()


def test_abandon_drops_the_steps_in_flight(harness, request_of):
    h = harness(depth=2, rows=1, says=lambda seed, position: 9)
    for name in (1, 2):
        h.submit(request_of(name, 3, max_tokens=5))
    h.step()
    assert h.driver.inflight
    h.take(h.engine.abandon(EngineFaultError("given up")))
    assert [h.outputs[name][-1].error_message for name in (1, 2)] == ["given up", "given up"]
    h.assert_idle()


def test_a_good_step_between_faults_forgives(harness, request_of):
    h = harness(rows=1, fails={"collect": {1, 3, 5}}, says=lambda seed, position: 9)
    for name in (1, 2, 3, 4):
        h.submit(request_of(name, 3, max_tokens=3))
    h.run()
    assert [h.finish(name) for name in (1, 2, 3, 4)] == ["error", "error", "error", "length"]
    h.assert_idle()


def test_a_commit_that_fails_half_way_loses_no_request(harness, request_of, monkeypatch):
    h = harness(rows=3, says=lambda seed, position: 9)
    for name in (1, 2, 3, 4):
        h.submit(request_of(name, 3, max_tokens=1, stop=("x",) if name == 2 else ()))
    broken = h.engine._committer
    whole = broken._commit

    def commit(sequence, *rest):
        if sequence.request.id == 2:
            raise RuntimeError("a bug")
        return whole(sequence, *rest)

    monkeypatch.setattr(broken, "_commit", commit)
    h.run()
    # 1 had ended in the same commit, and nobody was told.
    assert [h.finish(name) for name in (1, 2, 3, 4)] == ["error", "error", "error", "length"]
    h.assert_idle()


def test_refused_requests_leave_nothing(harness, request_of):
    h = harness(max_seq=64)
    cases = [
        (request_of(1, ()), RequestError, "prompt"),
        (request_of(1, 64), ContextLengthError, "prompt"),
        (request_of(1, 60, max_tokens=5), ContextLengthError, "max_tokens"),
        (request_of(1, (2, 60)), InvalidTokenError, "prompt"),
        (request_of(1, (-1, 5)), InvalidTokenError, "prompt"),
        (request_of(1, max_tokens=0), RequestError, "max_tokens"),
        (request_of(1, max_tokens=3, min_tokens=4), RequestError, "min_tokens"),
        (request_of(1, 60, min_tokens=5), RequestError, "min_tokens"),
        (request_of(1, credit=0), RequestError, "credit"),
        (request_of(1, stop=("",)), RequestError, "stop"),
        (request_of(1, stop=("x",) * 17), RequestError, "stop"),
        (request_of(1, stop=("x" * 1025,)), RequestError, "stop"),
        (request_of(1, stop_token_ids=(60,)), InvalidTokenError, "stop_token_ids"),
        (request_of(1, stop_token_ids=(5,) * 257), RequestError, "stop_token_ids"),
        (request_of(1, adapter="a"), RequestError, "model"),
    ]
    for sampling, param in (
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": float("inf")}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"seed": 2**64}, "seed"),
        ({"logit_bias": ((60, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((5, 101.0),)}, "logit_bias"),
        ({"logit_bias": ((5, 1.0),) * 1025}, "logit_bias"),
    ):
        kind = InvalidTokenError if param == "logit_bias" and sampling["logit_bias"][0][0] == 60 else RequestError
        cases.append((request_of(1, sampling=SamplingParams(**sampling)), kind, param))
    for request, kind, param in cases:
        with pytest.raises(RequestError) as raised:
            h.engine.submit(request)
        assert (type(raised.value), raised.value.param) == (kind, param), request
    assert not h.engine.busy
    assert h.engine.stats().requests_total == 0


def test_an_id_in_use_is_refused_and_free_again_afterwards(harness, request_of):
    h = harness(says=lambda seed, position: 9)
    h.submit(request_of(1, max_tokens=2))
    with pytest.raises(RequestError, match="in use"):
        h.engine.submit(request_of(1))
    h.run()
    h.submit(request_of(1, max_tokens=2))
    h.run()
    assert h.finish(1) == "length"


def test_the_queue_wait_is_counted_when_a_row_is_given(harness, request_of):
    h = harness(rows=1, says=lambda seed, position: 9)
    for name in (1, 2):
        h.submit(request_of(name, max_tokens=3))
    assert h.engine.stats().queue_wait_ms.count == 0
    h.run()
    waits = h.engine.stats().queue_wait_ms
    assert (waits.count, sum(waits.buckets)) == (2, 2)
    assert waits.sum > 0


def test_the_last_output_says_where_the_time_went(harness, request_of):
    """One row, a clock of 10 s a turn: the second request waits for the first one's three turns, and both are read in
    the turn that gives the first of three tokens."""
    now = [100.0]
    h = harness(rows=1, clock=lambda: now[0], says=lambda seed, position: 9)
    for name in (1, 2):
        h.submit(request_of(name, max_tokens=3))
    while h.engine.busy:
        now[0] += 10.0
        h.step()
    first, second = h.outputs[1][-1].times, h.outputs[2][-1].times
    assert (first.queue_ms, first.prefill_ms, first.decode_ms) == (10_000.0, 0.0, 20_000.0)
    assert (second.queue_ms, second.prefill_ms, second.decode_ms) == (40_000.0, 0.0, 20_000.0)
    assert all(output.times is None for name in (1, 2) for output in h.outputs[name][:-1])


def test_times_of_a_long_prompt_and_of_requests_that_end_early(harness, request_of):
    """A prompt of 40 tokens takes three turns of 16; a request cancelled in the queue has waited all its time."""
    now = [0.0]
    h = harness(rows=1, clock=lambda: now[0], says=lambda seed, position: 9)
    h.submit(request_of(1, 40, max_tokens=2))
    h.submit(request_of(2))
    for _ in range(2):
        now[0] += 1.0
        h.step()
    h.take(h.engine.cancel(2))
    h.take(h.engine.cancel(1))
    assert astuple(h.outputs[2][-1].times) == (2000.0, 0.0, 0.0)
    assert astuple(h.outputs[1][-1].times) == (1000.0, 1000.0, 0.0)
    h.submit(request_of(3, tuple(range(10, 50)), max_tokens=1))
    for _ in range(3):
        now[0] += 1.0
        h.step()
    assert astuple(h.outputs[3][-1].times) == (1000.0, 2000.0, 0.0)


def test_counters(harness, request_of):
    h = harness(says=lambda seed, position: 9)
    h.submit(request_of(1, 20, max_tokens=3))
    h.submit(request_of(2, (40, 41, 42, 43, 44), max_tokens=4))
    h.run()
    stats = h.engine.stats()
    assert (stats.prompt_tokens, stats.completion_tokens, stats.requests_completed) == (25, 7, 2)
    assert stats.steps == len(h.driver.plans)
    assert stats.device_bytes == 4096


def test_a_large_batch_is_taken_whole(harness):
    h = harness(rows=64, capacity=64, blocks=1024, says=lambda seed, position: 9)
    for name in range(64):
        h.submit(GenerateRequest(id=name, prompt=(5,), max_tokens=4, sampling=SamplingParams(seed=name)))
    h.run()
    assert [len(plan.sampling) for plan in h.driver.plans] == [64] * 4
    h.assert_idle()
