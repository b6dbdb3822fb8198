"""Several choices and several prompts in one request."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import httpx
import openai
import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXTS = ["the answer", "forty two é", "END"]


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def sse(text: str) -> list[Any]:
    """The data of a stream's events, without the comments; DONE stays a text."""
    data = [block.removeprefix("data: ") for block in text.split("\n\n") if block and not block.startswith(":")]
    return [line if line == "[DONE]" else json.loads(line) for line in data]


def test_chat_choices_have_texts_and_ends_of_their_own(served, client):
    served.answers(*TEXTS)
    made = client.chat.completions.create(**CHAT, n=3, max_tokens=4)
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    sizes = [len(served.engine.tokenizer.encode(text, add_special=False)) for text in TEXTS]
    ends = ["length" if size >= 4 else "stop" for size in sizes]
    assert "length" in ends and "stop" in ends
    assert [choice.finish_reason for choice in made.choices] == ends
    assert made.choices[2].message.content == "END"
    assert made.usage.prompt_tokens == len(served.engine.submitted[0].prompt)
    assert made.usage.completion_tokens == sum(min(size, 4) for size in sizes)


def test_each_streamed_choice_has_its_deltas_and_its_end(served, client):
    served.answers(*TEXTS)
    texts, roles, ends = defaultdict(str), defaultdict(list), defaultdict(list)
    for chunk in client.chat.completions.create(**CHAT, n=3, stream=True):
        (choice,) = chunk.choices
        assert not ends[choice.index]
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index].append(choice.delta.role)
        ends[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    assert [texts[index] for index in range(3)] == TEXTS
    assert dict(ends) == {index: ["stop"] for index in range(3)}
    assert all(given[0] == "assistant" and set(given[1:]) <= {None} for given in roles.values())


def test_a_stream_of_choices_has_one_usage_and_one_end(served):
    served.answers(*TEXTS)
    body = {**CHAT, "n": 3, "stream": True, "stream_options": {"include_usage": True}}
    events = sse(served.client.post("/v1/chat/completions", json=body).text)
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1
    assert [bool(event["choices"]) for event in events[:-1]] == [True] * (len(events) - 2) + [False]
    usage = events[-2]["usage"]
    assert usage["prompt_tokens"] == len(served.engine.submitted[0].prompt)
    assert usage["completion_tokens"] == sum(len(served.engine.scripts[index].steps) for index in range(3))


def test_forks_name_the_first_and_draw_their_own(served, client):
    served.answers(*TEXTS)
    client.chat.completions.create(**CHAT, n=3, seed=7)
    first, *others = served.engine.submitted
    assert first.fork_of is None and [other.fork_of for other in others] == [first.id] * 2
    assert len({request.id for request in served.engine.submitted}) == 3
    assert [request.sampling.seed for request in served.engine.submitted] == [7, 8, 9]
    assert {request.prompt for request in served.engine.submitted} == {first.prompt}
    client.chat.completions.create(**CHAT, n=2, seed=2**64 - 1)
    assert [request.sampling.seed for request in served.engine.submitted[3:]] == [2**64 - 1, 0]
    client.chat.completions.create(**CHAT, n=2)
    assert [request.sampling.seed for request in served.engine.submitted[5:]] == [None, None]


def test_completions_are_in_the_order_of_the_prompts(served, client):
    served.answers("a", "b", "c", "d")
    made = client.completions.create(model="tiny", prompt=["hello", "world world"], n=2)
    assert [(choice.index, choice.text) for choice in made.choices] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    prompts = [tuple(served.engine.tokenizer.encode(text)) for text in ("hello", "world world")]
    assert [request.prompt for request in served.engine.submitted] == [prompts[0]] * 2 + [prompts[1]] * 2
    ids = [request.id for request in served.engine.submitted]
    assert [request.fork_of for request in served.engine.submitted] == [None, ids[0], None, ids[2]]
    assert made.usage.prompt_tokens == len(prompts[0]) + len(prompts[1])


def test_cached_tokens_are_those_of_each_prompt_s_first_choice(served):
    served.answer("x", cached=3)
    usage = served.client.post("/v1/completions", json={"prompt": ["hello", "world"], "n": 4}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 6


@pytest.mark.parametrize("prompt", [["hello", [40, 41]], [[40], [41, 42]], ["hello", "world"]])
def test_forms_of_several_prompts(served, prompt):
    served.answer("x")
    assert served.client.post("/v1/completions", json={"prompt": prompt}).status_code == 200
    encode = served.engine.tokenizer.encode
    expected = [tuple(encode(item) if isinstance(item, str) else item) for item in prompt]
    assert [request.prompt for request in served.engine.submitted] == expected


def test_best_of_that_asks_for_nothing_more_is_taken(served):
    served.answer("x")
    for fields in ({"n": 2, "best_of": 2}, {"best_of": 1}, {"n": 2, "best_of": None}, {"n": None}):
        assert served.client.post("/v1/completions", json={"prompt": "a", **fields}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"best_of": 0}, "invalid_value", "best_of must be at least 1"),
        ({"n": 2, "best_of": -1}, "invalid_value", "best_of must be at least 1"),
        ({"n": 2, "best_of": 1}, "invalid_value", "best_of must be no less than n, 2, not 1"),
        ({"best_of": 2}, "unsupported_value", "best_of is not supported"),
        ({"n": 2, "best_of": 3}, "unsupported_value", "best_of is not supported"),
    ],
)
def test_best_of_that_is_refused(served, fields, code, says):
    response = served.client.post("/v1/completions", json={"prompt": "a", **fields})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, "best_of")
    assert says in error["message"]
    assert served.engine.submitted == []


def test_an_error_of_one_choice_is_the_buffered_answer_s(served, hold, eventually):
    served.answers("the answer", "world")
    served.engine.scripts[0].steps = [[40], hold]
    served.engine.scripts[1].finish, served.engine.scripts[1].error_code = "error", "engine_fault"
    response = served.client.post("/v1/chat/completions", json={**CHAT, "n": 2})
    assert response.status_code == 500 and response.json()["error"]["code"] == "engine_fault"
    eventually(lambda: served.engine.running == 0)
    assert all(stream.cancelled.is_set() for stream in served.engine.streams)


def test_an_error_of_one_choice_ends_the_stream(served, hold, eventually):
    served.answers("the answer", "world")
    served.engine.scripts[0].steps = [[40], hold]
    served.engine.scripts[1].finish, served.engine.scripts[1].error_code = "error", "non_finite_logits"
    events = sse(served.client.post("/v1/chat/completions", json={**CHAT, "n": 2, "stream": True}).text)
    assert events[-1]["error"]["code"] == "non_finite_logits"
    assert sum("error" in event for event in events) == 1 and "[DONE]" not in events
    eventually(lambda: served.engine.running == 0)
    assert all(stream.cancelled.is_set() for stream in served.engine.streams)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_all_choices(served, hold, eventually, stream):
    served.answer(steps=[[40], hold])
    body = {**CHAT, "n": 3, "stream": stream}
    if stream:
        with served.client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert next(response.iter_lines()).startswith("data: ")
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=0.4)
    eventually(lambda: served.engine.running == 0)
    assert [stream.cancelled.is_set() for stream in served.engine.streams] == [True] * 3


def test_a_refused_submission_leaves_no_choice_open(served, monkeypatch):
    """The engine drains between the first choice's submission and the second one's."""
    served.answer("x")
    submit = served.engine.submit

    def once(request):
        stream = submit(request)
        served.engine.state = "draining"
        return stream

    monkeypatch.setattr(served.engine, "submit", once)
    response = served.client.post("/v1/chat/completions", json={**CHAT, "n": 2})
    assert response.status_code == 503
    assert [stream.cancelled.is_set() for stream in served.engine.streams] == [True]


def test_log_probabilities_of_choices_run_on_their_own(served, client):
    served.answers("hello", "END of")
    made = client.completions.create(model="tiny", prompt="a", n=2, logprobs=0)
    for choice in made.choices:
        assert choice.logprobs.text_offset[0] == 0
        assert "".join(choice.logprobs.tokens) == choice.text


def test_why_less_was_cached_is_logged_for_debugging(served, caplog):
    served.answer("x", miss="not seen before", cached=2)
    with caplog.at_level("DEBUG", logger="poot_serve"):
        served.client.post("/v1/completions", json={"prompt": "hello"})
    count = len(served.engine.submitted[0].prompt)
    assert f"2 of {count} prompt tokens cached; not seen before" in caplog.text
