"""When a stream's status goes out, what keeps it alive, what one event may carry, and the id of every answer."""

from __future__ import annotations

import json

import httpx
import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**CHAT, "stream": True}
PATH = "/v1/chat/completions"


def chunks_of(text):
    blocks = text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_a_stream_that_waits_for_a_row_keeps_its_status(serving, hold):
    """Comments are due ten times before its wait is over; one of them would have made the refusal a 200."""
    served = serving(keep_alive_seconds=0.02, queue_wait_seconds=0.2)
    served.answer(steps=[hold], queued=True)
    answer = served.client.post(PATH, json=STREAM)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert int(answer.headers["retry-after"]) >= 1


def test_a_stream_of_which_one_choice_runs_is_kept_alive(serving, hold):
    served = serving(keep_alive_seconds=0.02)
    served.answer(steps=[hold])
    running = served.engine.script
    served.answer(steps=[hold], queued=True)
    served.engine.scripts = [running, served.engine.script]
    with served.client.stream("POST", PATH, json={**STREAM, "n": 2}) as answer:
        assert answer.status_code == 200
        assert next(answer.iter_lines()) == ": keep-alive"


def test_one_event_may_carry_several_tokens(served):
    """As many tokens as the engine gave at once: their text, their log-probabilities and their order are kept."""
    first, second = ([ord(letter) for letter in text] for text in ("abc", "de"))
    served.answer(steps=[first, second])
    asked = {**STREAM, "max_tokens": 5, "logprobs": True, "stream_options": {"include_usage": True}}
    *deltas, end, usage = chunks_of(served.client.post(PATH, json=asked).text)
    shown = [chunk["choices"][0] for chunk in deltas]
    assert [len(choice["logprobs"]["content"]) for choice in shown] == [3, 2]
    decode = served.engine.tokenizer.decode
    assert [choice["delta"]["content"] for choice in shown] == [decode(first), decode(second)]
    assert [choice["delta"].get("role") for choice in shown] == ["assistant", None]
    assert end["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)


def test_completions_carry_several_tokens_in_parallel_lists(served):
    tokens = [ord(letter) for letter in "abcde"]
    served.answer(steps=[tokens[:3], tokens[3:]])
    asked = {"prompt": "x", "max_tokens": 5, "logprobs": 1, "stream": True}
    first, second, end = chunks_of(served.client.post("/v1/completions", json=asked).text)
    lists = [chunk["choices"][0]["logprobs"] for chunk in (first, second)]
    for name, count in (("tokens", 3), ("token_logprobs", 3), ("top_logprobs", 3), ("text_offset", 3)):
        assert [len(one[name]) for one in lists] == [count, 5 - count]
    offsets = lists[0]["text_offset"] + lists[1]["text_offset"]
    assert offsets == [0, *offsets[1:]] == sorted(offsets)
    assert end["choices"][0]["finish_reason"] == "length"


REQUESTS = {
    "health": ("GET", "/health", {}, 200),
    "models": ("GET", "/v1/models", {}, 200),
    "document": ("GET", "/openapi.json", {}, 200),
    "metrics": ("GET", "/metrics/prometheus", {}, 200),
    "chat": ("POST", PATH, {"json": CHAT}, 200),
    "stream": ("POST", PATH, {"json": STREAM}, 200),
    "tokenize": ("POST", "/tokenize", {"json": {"prompt": "a"}}, 200),
    "no route": ("GET", "/v1/none", {}, 404),
    "no model": ("GET", "/v1/models/none", {}, 404),
    "no method": ("OPTIONS", PATH, {}, 405),
    "head": ("HEAD", "/health", {}, 405),
    "bad host": ("GET", "/health", {"headers": {"host": "example.org"}}, 421),
    "bad body": ("POST", PATH, {"content": b"{", "headers": {"content-type": "application/json"}}, 400),
    "bad field": ("POST", PATH, {"json": {**CHAT, "n": 0}}, 400),
    "bad type": ("POST", PATH, {"content": b"{}", "headers": {"content-type": "text/plain"}}, 415),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_every_answer_has_its_request_s_id(served, name):
    method, path, more, status = REQUESTS[name]
    headers = more.get("headers", {})
    rest = {key: value for key, value in more.items() if key != "headers"}
    for given in ("id-1/a:b", None):
        served.answer("hello")
        named = headers if given is None else {**headers, "x-request-id": given}
        answer = served.client.request(method, path, headers=named, **rest)
        assert answer.status_code == status, answer.text
        ids = answer.headers.get_list("x-request-id")
        assert len(ids) == 1
        assert ids[0] == given if given else ids[0].startswith("req_")


def test_a_refusal_before_the_body_has_its_request_s_id(served):
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Type: application/json\r\n"
    answer = served.raw(f"{head}x-request-id: mine\r\nContent-Length: 99999999\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nx-request-id: mine\r\n" in answer


@pytest.mark.parametrize(("fields", "status"), [({"stream": True}, 200), ({}, 500)])
def test_a_failed_answer_has_its_request_s_id(served, fields, status):
    served.answer(steps=[[97]], finish="error", error_code="engine_fault")
    answer = served.client.post(PATH, json={**CHAT, **fields}, headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")


def test_a_refusal_while_draining_has_its_request_s_id(served):
    served.service.draining = True
    answer = served.client.post(PATH, json=CHAT, headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (503, "mine")


def test_preflights_have_their_request_s_id(serving):
    served = serving(cors_origins=("https://page.example",))
    headers = {"origin": "https://page.example", "access-control-request-method": "POST", "x-request-id": "mine"}
    answer = httpx.options(f"{served.url}{PATH}", headers=headers)
    assert (answer.status_code, answer.headers["x-request-id"]) == (204, "mine")
