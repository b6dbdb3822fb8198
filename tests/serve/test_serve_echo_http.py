"""Completions that repeat their prompt, with and without its log-probabilities.

The tests' engine gives -0.25 to a prompt's second token, -0.5 to its third and so on, and -0.5 to each of its own.
"""

from __future__ import annotations

import json

import openai
import pytest

PROMPT, ANSWER = "hello é world", "the answer"


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def tokens(served):
    return served.engine.tokenizer.encode(PROMPT)


def offsets(tokenizer, tokens, begin):
    """Where each token's text begins: what is whole before it, counted from the text of all tokens before it."""
    return [begin + len(tokenizer.decode(tokens[:at]).rstrip("\ufffd")) for at in range(len(tokens))]


@pytest.mark.parametrize("form", ["text", "ids"])
def test_the_prompt_comes_before_the_answer(served, client, tokens, form):
    served.answer(ANSWER)
    prompt = PROMPT if form == "text" else tokens
    made = client.completions.create(model="tiny", prompt=prompt, echo=True)
    assert made.choices[0].text == PROMPT + ANSWER and made.choices[0].logprobs is None
    assert made.usage.completion_tokens == len(served.engine.tokenizer.encode(ANSWER, add_special=False))
    assert served.engine.submitted[0].prompt_logprobs is None
    chunks = list(client.completions.create(model="tiny", prompt=prompt, echo=True, stream=True))
    assert chunks[0].choices[0].text.startswith(PROMPT)
    assert "".join(chunk.choices[0].text for chunk in chunks) == PROMPT + ANSWER


@pytest.mark.parametrize("wanted", [0, 2])
@pytest.mark.parametrize("most", [0, 16])
def test_log_probabilities_of_prompt_and_answer(served, client, tokens, wanted, most):
    served.answer(ANSWER)
    tokenizer = served.engine.tokenizer
    made = client.completions.create(model="tiny", prompt=PROMPT, echo=True, logprobs=wanted, max_tokens=most)
    request = served.engine.submitted[0]
    assert (request.prompt_logprobs, request.sampling.logprobs, request.max_tokens) == (wanted, wanted, most)
    answer = tokenizer.encode(ANSWER, add_special=False) if most else []
    choice, found = made.choices[0], made.choices[0].logprobs
    assert choice.text == PROMPT + (ANSWER if most else "")
    assert choice.finish_reason == ("stop" if most else "length")
    assert found.token_logprobs == [None, *(-0.25 * at for at in range(1, len(tokens))), *([-0.5] * len(answer))]
    assert found.top_logprobs[0] is None
    assert all(found.token_logprobs[at] == found.top_logprobs[at][found.tokens[at]] for at in range(1, len(tokens)))
    assert {len(top) for top in found.top_logprobs[1:]} <= {wanted, wanted + 1}
    expected = offsets(tokenizer, tokens, 0) + offsets(tokenizer, answer, len(PROMPT))
    assert found.text_offset == expected


def test_streamed_log_probabilities_are_the_buffered_ones(served, tokens):
    served.answer(ANSWER)
    body = {"prompt": PROMPT, "echo": True, "logprobs": 1}
    whole = served.client.post("/v1/completions", json=body).json()["choices"][0]
    text = served.client.post("/v1/completions", json={**body, "stream": True}).text
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    assert choices[0]["text"].startswith(PROMPT) and len(tokens) > 3
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert len(parts) > 2
    for name in whole["logprobs"]:
        assert [item for part in parts for item in part[name]] == whole["logprobs"][name]


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_alone_is_answered_without_the_engine(served, client, tokens, stream):
    asked = {"model": "tiny", "prompt": [PROMPT, "world"], "echo": True, "max_tokens": 0, "n": 2, "stream": stream}
    made = client.completions.create(**asked)
    if stream:
        texts = [""] * 4
        for chunk in made:
            texts[chunk.choices[0].index] += chunk.choices[0].text
    else:
        texts = [choice.text for choice in made.choices]
        assert {choice.finish_reason for choice in made.choices} == {"length"}
        world = len(served.engine.tokenizer.encode("world"))
        assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(tokens) + world, 0)
    assert texts == [PROMPT, PROMPT, "world", "world"]
    assert served.engine.submitted == []


@pytest.mark.parametrize("logprobs", [None, 0])
def test_a_prompt_alone_may_fill_all_positions(served, logprobs):
    most = served.engine.info.max_seq
    body = {"echo": True, "max_tokens": 0, "logprobs": logprobs}
    served.answer("")
    answer = served.client.post("/v1/completions", json={"prompt": [40] * most, **body})
    assert (answer.status_code, answer.json()["usage"]["prompt_tokens"]) == (200, most)
    for count, fields in ((most + 1, {}), (most, {"max_tokens": 1}), (most, {"max_tokens": None})):
        refused = served.client.post("/v1/completions", json={"prompt": [40] * count, **body, **fields})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_prompt_of_one_token_has_no_log_probability(served, client):
    made = client.completions.create(model="tiny", prompt=[40], echo=True, logprobs=1, max_tokens=0)
    found = made.choices[0].logprobs
    assert (found.token_logprobs, found.top_logprobs, found.text_offset) == ([None], [None], [0])


def test_a_control_token_in_the_prompt_adds_no_text(served, client, tokens):
    """As at the beginning of a prompt to which the tokenizer adds one."""
    special = served.engine.tokenizer.encode("<|im_start|>", add_special=False, parse_special=True)
    made = client.completions.create(model="tiny", prompt=[*special, *tokens], echo=True, logprobs=0, max_tokens=0)
    found = made.choices[0].logprobs
    assert made.choices[0].text == PROMPT and found.tokens[0] == "<|im_start|>"
    assert found.text_offset[:2] == [0, 0]


def test_what_is_wrong_with_the_request_is_said_of_a_prompt_alone_too(served):
    for fields, param in [
        ({"prompt": [10**6]}, "prompt"),
        ({"temperature": 5}, "temperature"),
        ({"prompt": []}, "prompt"),
    ]:
        body = {"prompt": "a", "echo": True, "max_tokens": 0, **fields}
        response = served.client.post("/v1/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_stop_strings_are_of_the_answer_alone(served, client):
    served.answer(ANSWER)
    made = client.completions.create(model="tiny", prompt="answer", echo=True, stop="answer")
    assert made.choices[0].text == "answer" + "the "
