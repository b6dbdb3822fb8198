"""The shapes that clients rely on, read from the wire itself."""

from __future__ import annotations

import re
import time

import pytest

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
# Greedy in transformers, with the best two logits at least 0.3 apart; the answer repeats what it is given.
EMOJI_QUESTION, EMOJI_ANSWER, EMOJI_TOKENS = (
    "Repeat exactly: 👩‍👩‍👧 ไทย 日本語",
    "Repeat exactly: 👩‍👩‍👧 ไทย",
    23,
)
ALPHABET, ALPHABET_ANSWER = "a b c d e f g", " h i j k l m n o p q r s t u v w"
FLAGS = "The flag of Japan: 🇯🇵 The flag of France:"


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_body_of_a_chat(chat, served_model):
    made = chat("Hello", max_tokens=3)
    assert re.fullmatch(r"chatcmpl-\w+", made["id"]) and made["object"] == "chat.completion"
    assert isinstance(made["created"], int) and abs(made["created"] - time.time()) < 60
    assert made["model"] == served_model
    usage = made["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == 3


def test_choice_of_a_chat(chat):
    (choice,) = chat("Hello", max_tokens=3)["choices"]
    assert choice["index"] == 0 and choice["logprobs"] is None
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert "tool_calls" not in choice["message"]


def test_finish_reasons(chat):
    assert chat("Hello", max_tokens=2)["choices"][0]["finish_reason"] == "length"
    assert chat("Hello", max_tokens=64, stop=[" "])["choices"][0]["finish_reason"] == "stop"
    assert chat("What is the capital of France?", max_tokens=64)["choices"][0]["finish_reason"] == "stop"


def test_cached_tokens_are_a_number(chat):
    assert isinstance(chat("Hello", max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"], int)


def test_roles_and_parts_make_the_same_prompt(chat):
    def prompt_and_text(messages):
        made = chat(messages, max_tokens=4)
        return made["usage"]["prompt_tokens"], made["choices"][0]["message"]["content"]

    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}
    parts = {"role": "user", "content": [{"type": "text", "text": "Name a colour."}]}
    expected = prompt_and_text([system, user])
    assert prompt_and_text([system, parts]) == expected
    assert prompt_and_text([{**system, "role": "developer"}, user]) == expected
    assert prompt_and_text([system, system, user])[0] > expected[0]


def test_chunks_of_a_chat_share_their_heading(events, served_model):
    chunks = events(CHAT, messages=said("Hello"))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert {chunk["model"] for chunk in chunks} == {served_model}
    assert all("choices" in chunk for chunk in chunks)


def test_the_role_comes_first_and_the_finish_reason_last(events):
    choices = [chunk["choices"][0] for chunk in events(CHAT, messages=said("Hello"))]
    assert choices[0]["delta"]["role"] == "assistant"
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert not choices[-1]["delta"].get("content")


def test_usage_has_a_chunk_of_its_own_when_asked(events):
    *before, last = events(CHAT, messages=said("Hello"), stream_options={"include_usage": True})
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in before)
    for options in (None, {}, {"include_usage": False}):
        chunks = events(CHAT, messages=said("Hello"), stream_options=options)
        assert all(chunk["choices"] and chunk.get("usage") is None for chunk in chunks)


def test_stream_options_without_a_stream_are_refused(http):
    answer = http.post(CHAT, json={"messages": said("Hello"), "stream_options": {"include_usage": True}})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "stream_options"


def test_characters_split_over_tokens_arrive_whole(events, chat):
    chunks = events(CHAT, messages=said(EMOJI_QUESTION), max_tokens=EMOJI_TOKENS)
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == EMOJI_ANSWER
    made = chat(EMOJI_QUESTION, max_tokens=EMOJI_TOKENS, logprobs=True, top_logprobs=0)
    assert made["choices"][0]["message"]["content"] == EMOJI_ANSWER
    tokens = [bytes(entry["bytes"]) for entry in made["choices"][0]["logprobs"]["content"]]
    assert len(tokens) == EMOJI_TOKENS and b"".join(tokens).decode() == EMOJI_ANSWER
    assert not all(_whole(token) for token in tokens), "this text no longer splits characters over tokens"


def _whole(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_cut_inside_a_character_stays_valid_utf_8(events, http):
    """The first token of the answer is a space and half of a flag."""
    pieces = [chunk["choices"][0]["text"] for chunk in events(COMPLETION, prompt=FLAGS, max_tokens=1)]
    body = {"prompt": FLAGS, "max_tokens": 1, "temperature": 0}
    assert "".join(pieces) == http.post(COMPLETION, json=body).json()["choices"][0]["text"]
    assert "".join(pieces).startswith(" ")


def test_a_stream_is_unnamed_data_events_and_an_end(http):
    body = {"messages": said("Hello"), "max_tokens": 4, "stream": True}
    with http.stream("POST", CHAT, json=body) as answer:
        assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
        lines = list(answer.iter_lines())
    assert all(line == "" or line.startswith(("data: {", ":")) for line in lines[:-2])
    assert lines[-2:] == ["data: [DONE]", ""]


def test_chunk_log_probabilities_have_the_buffered_shape(events, chat):
    chunks = events(CHAT, messages=said("Hello"), logprobs=True, top_logprobs=2)
    streamed = [
        entry
        for chunk in chunks
        if chunk["choices"][0]["logprobs"] is not None
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    buffered = chat("Hello", logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in buffered]
    for entry in streamed:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert [set(top) for top in entry["top_logprobs"]] == [{"token", "logprob", "bytes"}] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ],
)
def test_bounds_of_top_logprobs(http, fields, param):
    answer = http.post(CHAT, json={"messages": said("Hello"), **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_twenty_alternatives_and_none(http, chat):
    (entry,) = chat("Hello", max_tokens=1, logprobs=True, top_logprobs=20)["choices"][0]["logprobs"]["content"]
    assert len({top["token"] for top in entry["top_logprobs"]}) == 20
    body = {"prompt": ALPHABET, "max_tokens": 3, "temperature": 0, "logprobs": 0}
    found = http.post(COMPLETION, json=body).json()["choices"][0]["logprobs"]
    assert found["tokens"] == [" h", " i", " j"] and found["text_offset"] == [0, 2, 4]
    assert found["top_logprobs"] == [
        {token: value} for token, value in zip(found["tokens"], found["token_logprobs"], strict=True)
    ]


@pytest.mark.parametrize("stop", ["l", " l", "k l", "j k l m", ["zzz", "k l m", "l m"]])
def test_stop_strings_neither_stay_nor_leak(http, events, stop):
    first = min(ALPHABET_ANSWER.index(one) for one in ([stop] if isinstance(stop, str) else stop) if one != "zzz")
    body = {"prompt": ALPHABET, "max_tokens": 16, "temperature": 0, "stop": stop}
    (choice,) = http.post(COMPLETION, json=body).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (ALPHABET_ANSWER[:first], "stop")
    choices = [chunk["choices"][0] for chunk in events(COMPLETION, **body)]
    assert "".join(choice["text"] for choice in choices) == ALPHABET_ANSWER[:first]
    assert choices[-1]["finish_reason"] == "stop"


def test_a_stop_string_that_never_comes_holds_nothing_back(events):
    choices = [chunk["choices"][0] for chunk in events(COMPLETION, prompt=ALPHABET, max_tokens=16, stop=["w x"])]
    assert "".join(choice["text"] for choice in choices) == ALPHABET_ANSWER
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (CHAT, {"messages": said("Hello"), "model": "gpt-4o"}, 404, "model_not_found"),
        (CHAT, {}, 400, "invalid_value"),
        ("/v1/no/such/route", {}, 404, "not_found"),
        ("/v1/models", {}, 405, "method_not_allowed"),
    ],
)
def test_shape_of_errors(http, path, body, status, code):
    answer = http.post(path, json=body)
    assert answer.status_code == status and answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"] == "invalid_request_error" and error["code"] == code


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_tokens", "8"), ("temperature", []), ("stop", 1), ("logit_bias", []), ("seed", 1.5), ("stream", "yes")],
)
def test_wrong_types_name_their_field(http, field, value):
    answer = http.post(CHAT, json={"messages": said("Hello"), field: value})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_request_ids_are_echoed(http):
    assert http.get("/v1/models", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
