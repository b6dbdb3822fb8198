"""Each refusal of the limits over raw sockets, in the documented order, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import time

import pytest

from poot_serve.limits.host import AllowedHost
from poot_serve.limits.keys import ApiKeys

BODY = b'{"prompt": "a"}'
JSON = b"Content-Type: application/json"
KEYS = ApiKeys.of([b"secret-1", b"secret-2"])
BEARER = b"Authorization: Bearer secret-2"


def request(
    served, *lines: bytes, method: bytes = b"POST", path: bytes = b"/v1/completions", host: bytes | None = None
) -> bytes:
    """The head of a request, with the lines of a complete one but those given."""
    host = b"127.0.0.1:%d" % served.port if host is None else host
    return b"\r\n".join([b"%s %s HTTP/1.1" % (method, path), b"Host: " + host, *lines, b"", b""])


def whole(served, *lines: bytes, path: bytes = b"/v1/completions", body: bytes = BODY) -> bytes:
    return request(served, JSON, b"Content-Length: %d" % len(body), *lines, path=path) + body


def read(answer: bytes) -> tuple[int, str, dict[bytes, bytes]]:
    """Status, code of the error, headers."""
    head, _, body = answer.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    error = json.loads(body[: int(headers[b"content-length"])])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split(b" ")[1]), error["code"], headers


def refusal(answer: bytes) -> tuple[int, str]:
    return read(answer)[:2]


@contextlib.contextmanager
def half_sent(served, *lines: bytes, path: bytes = b"/v1/completions"):
    """A request that is let in and does not send its body."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as sock:
        sock.sendall(request(served, JSON, b"Content-Length: 500", *lines, path=path))
        yield sock


@contextlib.contextmanager
def running(served, hold, eventually):
    """A request that the engine works on until it is left."""
    served.answer(steps=[[40], hold])
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as sock:
        body = b'{"prompt": "a", "stream": true}'
        sock.sendall(whole(served, body=body))
        assert sock.recv(12) == b"HTTP/1.1 200"
        eventually(lambda: served.engine.running == 1)
        yield sock
    eventually(lambda: served.engine.running == 0)


def idle(served) -> bool:
    return served.service.pending == 0 and served.service.receiving == 0 and served.engine.running == 0


WRONG = {
    "path": b"/v1/nothing",
    "method": b"PUT",
    "host": b"evil.example",
    "lines": [b"Transfer-Encoding: chunked", b"Content-Type: text/plain", b"Content-Length: 99999999999"],
}


def test_the_first_thing_that_is_wrong_is_answered(serving):
    """A request that is wrong in every way, then mended from the front, one thing at a time."""
    served = serving(rate_limit_rpm=2, api_keys=KEYS)
    huge = b"X-Filler: " + b"a" * 60_000
    te, text, long = WRONG["lines"]
    evil, path, method = WRONG["host"], WRONG["path"], WRONG["method"]
    chars = b"X-More: " + b"a" * 6_000

    def answer(*lines: bytes, **fields: bytes) -> tuple[int, str]:
        return refusal(served.raw(request(served, *lines, **fields)))

    small = b"Content-Length: 15"
    assert int(served.raw(request(served, huge, chars, te, text, path=path, host=evil)).split(b" ")[1]) == 431
    assert answer(te, text, path=path, method=method, host=evil) == (404, "not_found")
    assert answer(te, text, method=method, host=evil) == (405, "method_not_allowed")
    assert answer(te, text, host=evil) == (421, "host_not_allowed")
    assert answer(te, text) == (400, "transfer_encoding")
    assert answer(text, b"Content-Length: 0099999999") == (400, "bad_content_length")
    assert answer(text, long) == (415, "unsupported_media_type")
    assert answer(JSON) == (411, "length_required")
    assert answer(JSON, long) == (413, "body_too_large")
    # These two are counted, so the third is one too many; all of them lack a key.
    assert answer(JSON, small) == answer(JSON, small) == (401, "invalid_api_key")
    assert answer(JSON, small) == (429, "rate_limit_exceeded")
    assert answer(JSON, small, BEARER) == (429, "rate_limit_exceeded")
    assert idle(served) and served.engine.submitted == []


def test_places_come_before_the_key_and_the_key_before_the_body(serving, eventually):
    served = serving(max_pending_requests=2, max_receiving_requests=1, api_keys=KEYS)
    with half_sent(served, BEARER):
        eventually(lambda: served.service.receiving == 1)
        assert refusal(served.raw(request(served, JSON, b"Content-Length: 15"))) == (429, "too_many_uploads")
    eventually(lambda: idle(served))
    # No body was sent here.
    assert refusal(served.raw(request(served, JSON, b"Content-Length: 15"))) == (401, "invalid_api_key")
    assert refusal(served.raw(whole(served, BEARER, body=b"{"))) == (400, "invalid_json")
    assert idle(served) and served.engine.submitted == []


def test_rate_is_of_every_post_and_of_nothing_else(serving):
    served = serving(rate_limit_rpm=4)
    for path in (b"/v1/completions", b"/v1/chat/completions", b"/tokenize", b"/detokenize"):
        assert refusal(served.raw(whole(served, path=path, body=b"{")))[0] == 400
    for path in (b"/v1/completions", b"/tokenize"):
        status, code, headers = read(served.raw(request(served, JSON, b"Content-Length: 4000000", path=path)))
        assert (status, code) == (429, "rate_limit_exceeded") and 1 <= int(headers[b"retry-after"]) <= 60
    for _ in range(6):
        assert served.client.get("/health").status_code == 200
        assert served.client.get("/v1/models").status_code == 200


def test_pending_requests(serving, hold, eventually):
    served = serving(max_pending_requests=1)
    with running(served, hold, eventually):
        for path in (b"/v1/completions", b"/tokenize"):
            # Refused before its body is read: none is sent.
            status, code, headers = read(served.raw(request(served, JSON, b"Content-Length: 15", path=path)))
            assert (status, code, headers[b"retry-after"]) == (429, "too_many_requests", b"1")
        assert served.client.get("/health").status_code == 200
        assert served.service.pending == 1
    eventually(lambda: idle(served))
    served.answer("x")
    assert served.client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
    assert idle(served)


def test_a_place_to_receive_is_free_once_the_body_is_there(serving, hold, eventually):
    served = serving(max_receiving_requests=1)
    with running(served, hold, eventually):
        assert served.service.receiving == 0
        with half_sent(served):
            eventually(lambda: served.service.receiving == 1)
            status, code, headers = read(served.raw(whole(served)))
            assert (status, code, headers[b"retry-after"]) == (429, "too_many_uploads", b"1")
        eventually(lambda: served.service.receiving == 0)
        served.answer("x")
        assert served.client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_who_waits_too_long_for_the_engine_is_refused(serving, hold, eventually, stream):
    served = serving(queue_wait_seconds=0.3, keep_alive_seconds=10.0)
    with running(served, hold, eventually):
        served.answer(steps=[hold], queued=True)
        began = time.monotonic()
        answer = served.client.post("/v1/completions", json={"prompt": "a", "stream": stream})
        assert 0.3 <= time.monotonic() - began < 5.0
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
        assert int(answer.headers["retry-after"]) >= 1
        assert served.engine.cancelled.is_set()  # the engine's copy
        assert served.service.pending == 1  # the one that runs, for longer than that
        eventually(lambda: served.engine.running == 1)
    eventually(lambda: idle(served))


def test_nothing_goes_out_before_there_is_a_row(serving, hold):
    """Not even a comment to keep the connection alive: the refusal has a status of its own."""
    served = serving(queue_wait_seconds=0.4, keep_alive_seconds=0.05)
    served.answer(steps=[hold], queued=True)
    answer = served.client.post("/v1/completions", json={"prompt": "a", "stream": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/metrics", "/metrics/prometheus"])
def test_every_route_but_health_needs_a_key(serving, path):
    served = serving(api_keys=KEYS)
    refused = served.client.get(path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert served.client.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert served.client.get(path, headers={"authorization": "Bearer secret-1"}).status_code == 200
    assert served.client.get("/health").status_code == 200


def test_a_new_route_needs_a_key_too(serving, monkeypatch):
    """Whatever routes there are: only the public one answers without."""
    from poot_serve import app

    routes: list[object] = []
    real = app.Router
    monkeypatch.setattr(app, "Router", lambda made, **kw: routes.extend(made) or real(made, **kw))
    served = serving(api_keys=KEYS)
    assert len(routes) >= 9
    for route in routes:
        for method in route.methods:
            path = route.path.replace("{id:path}", "x").encode()
            head = request(served, JSON, b"Content-Length: 2", method=method.encode(), path=path)
            status = int(served.raw(head + b"{}").split(b" ")[1])
            assert status == (200 if route.path == "/health" else 401), route.path


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_a_post_needs_a_key(serving, path):
    served = serving(api_keys=KEYS)
    refused = served.client.post(path, json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert served.client.post(path, json={}, headers={"authorization": "Bearer secret-2"}).status_code == 400


def test_web_pages(serving):
    served = serving(cors_origins=("https://a.example",), api_keys=KEYS)
    origin = {"origin": "https://a.example"}
    ask = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization,x-foo"}
    preflight = served.client.options("/v1/chat/completions", headers=ask)
    assert (preflight.status_code, preflight.content) == (204, b"")
    assert preflight.headers["access-control-allow-origin"] == "https://a.example"
    assert preflight.headers["access-control-allow-methods"] == "POST"
    assert preflight.headers["vary"] == "origin" and "x-request-id" in preflight.headers
    # Errors are for the page to read too.
    for answer in (
        served.client.get("/v1/models", headers=origin),
        served.client.get("/nothing", headers=origin),
        served.client.get("/health", headers=origin),
    ):
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert answer.headers["vary"] == "origin"
    other = served.client.options("/v1/chat/completions", headers={**ask, "origin": "https://b.example"})
    assert (other.status_code, other.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in other.headers
    plain = served.client.options("/v1/chat/completions")
    assert (plain.status_code, plain.headers["allow"]) == (405, "POST")
    assert served.client.options("/nothing", headers=ask).status_code == 404
    assert served.client.options("/health", headers={**ask, "host": "evil.example"}).status_code == 421


def test_no_web_page_by_default(served):
    ask = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert served.client.options("/v1/chat/completions", headers=ask).status_code == 405
    answer = served.client.get("/v1/models", headers=ask)
    assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]


def test_allowed_hosts(serving):
    served = serving(allowed_hosts=(AllowedHost("api.example.com"), AllowedHost("b.example", 8443)))
    for host, status in (
        (b"api.example.com", 200), (b"API.example.com:443", 200), (b"b.example:8443", 200), (b"b.example", 421),
        (b"127.0.0.1:%d" % served.port, 200), (b"api.example.com.evil", 421), (b"x.api.example.com", 421),
    ):  # fmt: skip
        assert int(served.raw(request(served, method=b"GET", path=b"/health", host=host)).split(b" ")[1]) == status


def test_an_absolute_target_does_not_pass_the_host_by(served):
    """Granian takes the path of it alone; the Host header is what counts."""
    good = request(served, method=b"GET", path=b"http://evil.example/health")
    assert served.raw(good).startswith(b"HTTP/1.1 200")
    bad = request(served, method=b"GET", path=b"http://127.0.0.1:%d/health" % served.port, host=b"evil.example")
    assert refusal(served.raw(bad)) == (421, "host_not_allowed")


def test_served_names(serving):
    served = serving(model_name="big/chat", other_names=("gpt-4",))
    listed = served.client.get("/v1/models").json()
    assert [card["id"] for card in listed["data"]] == ["big/chat", "gpt-4"]
    for card in listed["data"]:
        assert set(card) >= {"id", "object", "created", "owned_by"} and card["object"] == "model"
        assert served.client.get(f"/v1/models/{card['id']}").json() == card
    for name, status in (("big/chat", 200), ("gpt-4", 200), (None, 200), ("tiny", 404), ("gpt-4o", 404)):
        served.answer("x")
        answer = served.client.post("/v1/completions", json={"prompt": "a", "model": name})
        assert answer.status_code == status
        assert status == 404 or answer.json()["model"] == "big/chat"
    assert served.client.get("/v1/models/tiny").json()["error"]["code"] == "model_not_found"


def test_a_small_body_limit(serving):
    served = serving(max_body_bytes=100)
    assert refusal(served.raw(request(served, JSON, b"Content-Length: 101"))) == (413, "body_too_large")
    assert refusal(served.raw(whole(served, body=b"{" + b" " * 99))) == (400, "invalid_json")


def test_a_dripping_body_is_ended_in_time(serving, eventually):
    served = serving(request_timeout_seconds=0.4)
    began = time.monotonic()
    with half_sent(served) as sock:
        sock.settimeout(0.05)
        answer = b""
        while b"}}" not in answer and time.monotonic() - began < 5:
            with contextlib.suppress(OSError):
                sock.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                answer += sock.recv(65536)
        assert refusal(answer) == (408, "body_timeout") and time.monotonic() - began < 4
    eventually(lambda: idle(served))


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/tokenize"])
def test_a_client_that_stops_in_the_middle_of_its_body_loses_its_connection(serving, path):
    """At once, not when the garbage collector comes by: nothing that is left of the refusal may hold the request."""
    served = serving(request_timeout_seconds=0.2)
    gc.collect()
    gc.disable()
    try:
        with contextlib.ExitStack() as stack:
            for sock in [stack.enter_context(half_sent(served, path=path)) for _ in range(8)]:
                answer = b""
                while part := sock.recv(65536):
                    answer += part
                assert refusal(answer) == (408, "body_timeout")
    finally:
        gc.enable()
    assert idle(served)


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: "])
def test_a_slow_head_is_closed_without_an_answer(serving, sent):
    served = serving(request_timeout_seconds=0.3)
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as sock:
        sock.sendall(sent)
        assert sock.recv(100) == b""


def test_an_idle_connection_is_closed(serving):
    served = serving(request_timeout_seconds=0.3)
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as sock:
        sock.sendall(request(served, method=b"GET", path=b"/health"))
        answer = b""
        while part := sock.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("lines", "path", "status"),
    [
        ([b"X-%d: a" % number for number in range(110)], b"/v1/completions", 431),
        ([], b"/" + b"a" * 65_534, 414),
        ([b"Content-Length: +15"], b"/v1/completions", 400),
        ([b"Content-Length: 15, 15"], b"/v1/completions", 400),
        ([b"Content-Length: 15", b"Content-Length: 16"], b"/v1/completions", 400),
        ([b"Content-Length: 18446744073709551616"], b"/v1/completions", 400),
        ([b"Transfer-Encoding: gzip"], b"/v1/completions", 400),
        ([b"Content-Length : 15"], b"/v1/completions", 400),
        ([b"X-A: a", b" folded"], b"/v1/completions", 400),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_heads_that_granian_refuses_have_no_body(served, lines, path, status):
    answer = served.raw(request(served, *lines, path=path))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert (int(head.split(b" ")[1]), body) == (status, b"") and served.engine.submitted == []


def test_identical_lengths_arrive_as_one(served):
    served.answer("x")
    assert served.raw(whole(served, b"Content-Length: %d" % len(BODY))).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "body",
    [
        b'{"x": [' + b"1," * 1_000_000 + b"1]}",
        b"{" + b",".join(b'"%x":1' % number for number in range(200_001)) + b"}",
        b'{"x": ' + b"[" * 64 + b"]" * 64 + b"}",
    ],
    ids=["values", "keys", "levels"],
)
def test_bounds_of_json(served, body):
    assert refusal(served.raw(whole(served, body=body))) == (400, "invalid_json")
    assert idle(served) and served.engine.submitted == []


def test_connections_above_the_limit_wait(serving):
    """Granian does not refuse them: they stay in the kernel's queue until another one is closed."""
    served = serving(max_connections=2, request_timeout_seconds=5.0)
    served.client.close()
    head = request(served, method=b"GET", path=b"/health")
    with contextlib.ExitStack() as stack:
        first, second, third = (
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=5)) for _ in range(3)
        )
        for sock in (first, second):
            sock.sendall(head)
            assert sock.recv(12) == b"HTTP/1.1 200"
        third.sendall(head)
        third.settimeout(0.3)
        with pytest.raises(TimeoutError):
            third.recv(12)
        first.close()
        third.settimeout(5)
        assert third.recv(12) == b"HTTP/1.1 200"


def test_unlimited_connections(serving):
    served = serving(max_connections=0)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=5))
        assert served.client.get("/health").status_code == 200


def test_a_large_answer_that_is_not_read_is_cut(serving, eventually, caplog):
    """Some 60 MB in one answer: the client that does not take it is cut, and its place is free again."""
    names = {"model_name": "m" * 250, "other_names": ("n" * 30_000_000, "o" * 30_000_000)}
    served = serving(write_timeout_seconds=0.4, **names)
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as sock:
        sock.sendall(request(served, method=b"GET", path=b"/v1/models"))
        assert sock.recv(12) == b"HTTP/1.1 200"
        with caplog.at_level("DEBUG", logger="poot_serve"):
            eventually(lambda: "did not take its answer within 0.4 seconds" in caplog.text)
        received = 0
        with contextlib.suppress(ConnectionError):
            while part := sock.recv(1 << 20):
                received += len(part)
    assert received < 30_000_000
    # Whoever reads gets all of it, if no busy machine takes his time.
    assert len(serving(write_timeout_seconds=30, **names).client.get("/v1/models").content) > 60_000_000
