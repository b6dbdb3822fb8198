"""Log-probabilities of prompts through the engine over a fake model, chunk by chunk and beside rows that decode."""

from __future__ import annotations

import pytest

from poot_batch.errors import ContextLengthError, RequestError
from poot_batch.request import SamplingParams, TokenLogprob

CHUNK = 5


def chances(fake_model, prompt: tuple[int, ...]) -> list[tuple[int, float]]:
    """What the fake model says of each token of a prompt but the first."""
    return [(prompt[n], fake_model.chance_of(prompt[:n], prompt[n])) for n in range(1, len(prompt))]


def scored(harness, request_id: int) -> list[tuple[int, float]]:
    outputs = harness.outputs[request_id]
    return [(entry.token, entry.logprob) for output in outputs for entry in output.prompt_logprobs or ()]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("count", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_every_token_but_the_first_in_order(harness, request_of, fake_model, *, depth, count, tokens) -> None:
    h = harness(depth=depth, score_capacity=CHUNK, says=lambda seed, position: 9)
    request = request_of(1, count, prompt_logprobs=2, max_tokens=tokens)
    h.submit(request)
    h.run()
    assert scored(h, 1) == chances(fake_model, request.prompt)
    assert h.tokens(1) == (9,) * tokens
    assert h.finish(1) == "length"
    assert [plan.score.count for plan in h.driver.plans if plan.score] == [
        min(CHUNK, count - at) for at in range(0, count, CHUNK)
    ]
    assert len(h.driver.plans) == -(-count // CHUNK) + max(0, tokens - 1)
    entries = [entry for output in h.outputs[1] for entry in output.prompt_logprobs or ()]
    assert all(entry.top == ((0, 0.0), (1, -1.0)) for entry in entries)
    h.assert_idle()


def test_chunks_come_alone_and_before_the_first_token(harness, request_of) -> None:
    h = harness(score_capacity=CHUNK, says=lambda seed, position: 9)
    h.submit(request_of(1, 2 * CHUNK + 1, prompt_logprobs=0, max_tokens=2))
    h.run()
    told = [(len(output.prompt_logprobs or ()), output.tokens, output.prompt_tokens) for output in h.outputs[1]]
    assert told == [(5, (), 11), (5, (), 0), (0, (), 0), (0, (9,), 0), (0, (9,), 11)]
    assert all(entry.top == () for output in h.outputs[1] for entry in output.prompt_logprobs or ())


def test_log_probabilities_of_the_answer_are_others(harness, request_of, fake_model) -> None:
    h = harness(score_capacity=CHUNK, says=lambda seed, position: 9)
    sampling = SamplingParams(seed=1, logprobs=1)
    h.submit(request_of(1, (7, 8, 9), prompt_logprobs=0, max_tokens=2, sampling=sampling))
    h.run()
    assert scored(h, 1) == chances(fake_model, (7, 8, 9))
    answers = [entry for output in h.outputs[1] for entry in output.logprobs or ()]
    assert [(entry.token, entry.logprob, entry.top) for entry in answers] == [(9, -9.0, ((0, 0.0),))] * 2


@pytest.mark.parametrize("asked", [None, 0, 2])
def test_the_end_tokens_log_probability_is_told_apart(harness, request_of, fake_model, asked) -> None:
    h = harness(says=lambda seed, position: 9 if position < 5 else fake_model.ends[1])
    h.submit(request_of(1, 3, sampling=SamplingParams(seed=1, logprobs=asked)))
    h.run()
    assert (h.tokens(1), h.finish(1)) == ((9, 9), "stop")
    entries = [entry for output in h.outputs[1] for entry in output.logprobs or ()]
    assert [entry.token for entry in entries] == ([] if asked is None else [9, 9])
    told = [output.end_logprob for output in h.outputs[1]]
    wanted = None if asked is None else TokenLogprob(1, -1.0, ((0, 0.0), (1, -1.0))[:asked])
    assert told == [None, None, wanted]


def test_rows_that_decode_take_turns_with_chunks(harness, request_of, fake_model) -> None:
    h = harness(score_capacity=CHUNK, says=lambda seed, position: 9)
    h.submit(request_of(1, 2, max_tokens=20))
    h.step()
    h.submit(request_of(2, 4 * CHUNK, prompt_logprobs=0, max_tokens=0))
    h.submit(request_of(3, 3, max_tokens=4))
    h.run()
    kinds = ["score" if plan.score else "run" for plan in h.driver.plans]
    assert kinds[1:9] in (["score", "run"] * 4, ["run", "score"] * 4)
    assert (h.tokens(1), h.tokens(3)) == ((9,) * 20, (9,) * 4)
    assert scored(h, 2) == chances(fake_model, tuple(2 + n for n in range(4 * CHUNK)))
    h.assert_idle()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_cancel_between_two_chunks(harness, request_of, depth) -> None:
    h = harness(depth=depth, score_capacity=CHUNK)
    h.submit(request_of(1, 4 * CHUNK, prompt_logprobs=0, max_tokens=0))
    h.step()
    h.step()
    h.take(h.engine.cancel(1))
    h.run()
    assert h.finish(1) == "abort"
    assert len(scored(h, 1)) == CHUNK * (3 - depth)
    assert len(h.driver.plans) == 2
    h.assert_idle()


@pytest.mark.parametrize(("position", "before"), [(0, 0), (CHUNK + 1, CHUNK), (2 * CHUNK - 2, CHUNK)])
def test_what_is_not_finite_ends_the_request_alone(harness, request_of, position, before) -> None:
    h = harness(depth=2, score_capacity=CHUNK, undefined={(1, position)}, says=lambda seed, position: 9)
    h.submit(request_of(1, 2 * CHUNK, prompt_logprobs=1, max_tokens=3))
    h.submit(request_of(2, 2 * CHUNK, prompt_logprobs=1, max_tokens=3))
    h.run()
    assert (h.finish(1), h.outputs[1][-1].error_code, h.tokens(1)) == ("error", "non_finite_logits", ())
    assert len(scored(h, 1)) == before
    assert (h.finish(2), len(scored(h, 2)), h.tokens(2)) == ("length", 2 * CHUNK - 1, (9, 9, 9))
    h.assert_idle()


def test_after_the_last_token_nothing_is_asked(harness, request_of) -> None:
    h = harness(score_capacity=CHUNK, undefined={(1, CHUNK - 1)})
    h.submit(request_of(1, CHUNK, prompt_logprobs=0, max_tokens=0))
    h.run()
    assert (h.finish(1), len(scored(h, 1))) == ("length", CHUNK - 1)


def test_a_driver_without_the_program(harness, request_of) -> None:
    h = harness(score_capacity=0)
    with pytest.raises(RequestError) as raised:
        h.engine.submit(request_of(1, prompt_logprobs=0))
    assert raised.value.param == "prompt_logprobs"
    h.submit(request_of(1))
    h.run()
    assert h.finish(1) in ("stop", "length")


def test_a_prompt_without_an_answer_may_fill_all_positions(harness, request_of, fake_model) -> None:
    h = harness(score_capacity=CHUNK, max_seq=16, blocks=4)
    whole = request_of(1, 16, prompt_logprobs=0, max_tokens=0)
    h.submit(whole)
    h.run()
    assert scored(h, 1) == chances(fake_model, whole.prompt)
    assert (len(scored(h, 1)), h.finish(1)) == (15, "length")
    for prompt, fields, says in (
        (17, {"prompt_logprobs": 0, "max_tokens": 0}, "17 tokens, but this server runs sequences of 16 positions$"),
        (16, {"prompt_logprobs": 0}, "one of which must be left for the answer"),
        (16, {"prompt_logprobs": 0, "max_tokens": 1}, "one of which must be left for the answer"),
        (16, {"max_tokens": 0}, "one of which must be left for the answer"),
    ):
        with pytest.raises(ContextLengthError, match=says):
            h.engine.submit(request_of(2, prompt, **fields))
    h.assert_idle()


def test_no_token_at_all_needs_a_prompt_to_score(harness, request_of) -> None:
    h = harness(score_capacity=CHUNK)
    with pytest.raises(RequestError, match="max_tokens"):
        h.engine.submit(request_of(1, max_tokens=0))
