"""Malformed heads and bodies, on raw sockets: each is refused before the engine hears of it."""

from __future__ import annotations

import json
import socket
import threading

import msgspec
import pytest

BODY = b'{"prompt": "a"}'


def post(port: int, *extra: bytes, body: bytes = BODY, host: bytes | None = None, length: bytes | None = None) -> bytes:
    """A completion request; `extra` header lines replace the default ones of the same name."""
    lines = {
        b"host": host if host is not None else b"127.0.0.1:%d" % port,
        b"content-type": b"application/json",
        b"content-length": length if length is not None else b"%d" % len(body),
    }
    names = {line.split(b":")[0].lower() for line in extra}
    head = [b"%s: %s" % (name, value) for name, value in lines.items() if name not in names]
    head += [line for line in extra if not line.endswith(b": -")]
    return b"POST /v1/completions HTTP/1.1\r\n" + b"\r\n".join(head) + b"\r\n\r\n" + body


def refusal(answer: bytes) -> tuple[int, str]:
    head, _, rest = answer.partition(b"\r\n\r\n")
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert lines[b"content-type"] == b"application/json"
    # An unstated body is read as the next request, whose answer may follow.
    body = rest[: int(lines[b"content-length"])]
    return int(head.split(b" ")[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ([b"content-type: -"], (415, "unsupported_media_type")),
        ([b"Content-Type: text/plain"], (415, "unsupported_media_type")),
        ([b"Content-Type: application/json; charset=utf-16"], (415, "unsupported_media_type")),
        ([b"Content-Type: application/json", b"Content-Type: text/plain"], (415, "unsupported_media_type")),
        ([b"Content-Encoding: gzip"], (415, "unsupported_media_type")),
        ([b"content-length: -"], (411, "length_required")),
        ([b"Content-Length: 0015"], (400, "bad_content_length")),
        ([b"Content-Length: 4194305"], (413, "body_too_large")),
        ([b"Content-Length: 9223372036854775807"], (413, "body_too_large")),
        ([b"Transfer-Encoding: chunked"], (400, "transfer_encoding")),
        ([b"content-length: -", b"Transfer-Encoding: chunked"], (400, "transfer_encoding")),
        ([b"Host: evil.example"], (421, "host_not_allowed")),
        ([b"Host: 127.0.0.1"], (421, "host_not_allowed")),
        ([b"host: -"], (400, "bad_host")),
        ([b"Host: user@127.0.0.1"], (400, "bad_host")),
        ([b"Host:"], (400, "bad_host")),
    ],
)
def test_heads(served, extra, expected):
    assert refusal(served.raw(post(served.port, *extra))) == expected
    assert served.engine.submitted == []


def test_two_hosts(served):
    good = b"Host: 127.0.0.1:%d" % served.port
    for second in (good, b"Host: evil", b"Host: \xff"):
        assert refusal(served.raw(post(served.port, good, second))) == (400, "bad_host")


def test_host_is_checked_on_every_route(served):
    answer = served.raw(b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert refusal(answer) == (421, "host_not_allowed")
    assert b" 200 " in served.raw(b"GET /health HTTP/1.1\r\nHost: LocalHost:%d\r\n\r\n" % served.port).split(b"\r\n")[0]


def test_head_over_its_cap(served):
    filler = [b"X-%d: %s" % (index, b"a" * 7000) for index in range(9)]
    answer = served.raw(post(served.port, *filler, b"X-last: " + b"b" * 3000))
    assert int(answer.split(b" ")[1]) == 431


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"null", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"a"', "invalid_json"),
        (b'{"prompt": "a"} x', "invalid_json"),
        (b'{"prompt": "a", "prompt": "b"}', "invalid_json"),
        (b'{"prompt": "a", "x": {"y": 1, "y": 1}}', "invalid_json"),
        (b'{"prompt": "a", "temperature": NaN}', "invalid_json"),
        (b'{"prompt": "a", "x": -Infinity}', "invalid_json"),
        (b'{"prompt": "a", "temperature": 1e999}', "invalid_value"),
        (b'{"prompt": "\\ud800"}', "invalid_json"),
        (b'{"prompt": "a", "x": "\\udc00\\ud800"}', "invalid_json"),
        (b'{"prompt": "\xff"}', "invalid_json"),
        (b'{"prompt": "\xed\xa0\x80"}', "invalid_json"),
        (b'\xef\xbb\xbf{"prompt": "a"}', "invalid_json"),
        ('{"prompt": "a"}'.encode("utf-16"), "invalid_json"),
        (b'{"prompt": "a\x00"}', "invalid_json"),
        (b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"x":' * 70 + b"1" + b"}" * 70, "invalid_json"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "invalid_value"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_bodies(served, body, code):
    assert refusal(served.raw(post(served.port, body=body))) == (400, code)
    assert served.engine.submitted == []


def test_large_body_is_refused_before_it_is_sent(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as sock:
        sock.sendall(post(served.port, length=b"999999999", body=b""))
        assert sock.recv(64).startswith(b"HTTP/1.1 413")


def test_slow_body_is_timed_out(serving):
    served = serving(request_timeout_seconds=0.2)
    assert refusal(served.raw(post(served.port, length=b"500"))) == (408, "body_timeout")


def test_half_closed_body_ends_the_request(served, eventually):
    answer = served.raw(post(served.port, length=b"500"), half_close=True)
    assert refusal(answer)[0] == 400
    eventually(lambda: served.service.pending == 0)
    assert served.engine.submitted == []


def test_a_prompt_that_is_too_long_whatever_its_tokens_is_not_encoded(served):
    for body in ({"prompt": "a" * 500_000}, {"prompt": ["7" * 500_000]}):
        answer = served.client.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "at least" in answer.json()["error"]["message"]
    chat = served.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a" * 500_000}]})
    assert (chat.status_code, chat.json()["error"]["param"]) == (400, "messages")
    assert served.engine.submitted == []


def test_a_large_honest_body_is_served(served):
    served.answer("x")
    body = json.dumps({"prompt": [5] * 20, "padding": "é" * 300_000}).encode()
    assert (
        served.client.post("/v1/completions", content=body, headers={"content-type": "application/json"}).status_code
        == 200
    )


def test_a_client_that_never_reads_holds_back_its_row_and_frees_it_when_it_leaves(served, eventually):
    """Some 1.5 GB of events against the few MB that sockets and the listener buffer: the stream must wait."""
    served.engine.info = msgspec.structs.replace(served.engine.info, max_seq=10_000_000)
    served.answer(steps=[[40] * 64] * 20_000)
    body = json.dumps({"prompt": [5], "max_tokens": 1_280_000, "stream": True, "logprobs": 20}).encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as sock:
        sock.sendall(post(served.port, body=body))
        assert sock.recv(1) == b"H"
        eventually(lambda: served.engine.steps > 10)
        eventually(lambda: _stands_still(served))
        assert served.engine.running == 1 and served.engine.steps < 2_000
        assert served.client.get("/health").status_code == 200
    eventually(lambda: served.engine.running == 0)


def _stands_still(served) -> bool:
    before = served.engine.steps
    served.client.get("/health")
    threading.Event().wait(0.1)
    return bool(served.engine.steps == before)
