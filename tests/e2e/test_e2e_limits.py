"""Limits, keys and names on a real server with one row, as the official client sees them."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

KEY = "key-of-the-test"
FLAGS = ("--backend", "cpu", "--max-seq", "1024", "--rows", "1", "--max-pending-requests", "2")
MORE = ("--max-queue-wait-secs", "1", "--served-model-name", "small,gpt-4", "--log-format", "json")
PROMPT: dict[str, Any] = {"model": "gpt-4", "prompt": "a b c d", "temperature": 0}


@pytest.fixture(scope="module")
def strict(live, model, tmp_path_factory) -> Iterator[Any]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"another\n{KEY}\n")
    with live.LiveServer.of(model, *FLAGS, *MORE, "--api-key-file", str(keys)) as server:
        server.until('"message": "serving small on', 120.0)
        yield server


@pytest.fixture
def official(strict) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{strict.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < until, "the condition did not come true"


def figures(server) -> dict[str, Any]:
    return httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {KEY}"}, timeout=30).json()


def idle(server) -> bool:
    told = figures(server)
    return not any(told[name] for name in ("poot_inflight_requests", "poot_queue_depth", "poot_kv_cache_blocks_used"))


def test_keys_and_names(strict, official):
    assert [model.id for model in official.models.list()] == ["small", "gpt-4"]
    assert official.completions.create(**PROMPT, max_tokens=1).model == "small"
    with pytest.raises(openai.NotFoundError) as unknown:
        official.completions.create(**{**PROMPT, "model": "gpt-5"}, max_tokens=1)
    assert unknown.value.code == "model_not_found"
    stranger = official.with_options(api_key="wrong")
    for ask in (stranger.models.list, lambda: stranger.completions.create(**PROMPT)):
        with pytest.raises(openai.AuthenticationError) as refused:
            ask()
        assert refused.value.code == "invalid_api_key"
    assert httpx.get(f"{strict.url}/health").json()["model"] == "small"


@contextlib.contextmanager
def whole_row(official) -> Iterator[Iterator[Any]]:
    """The chunks of a stream that has the server's one row."""
    fields = {"max_tokens": 900, "stream": True, "extra_body": {"ignore_eos": True}}
    with official.completions.create(**PROMPT, **fields) as stream:
        chunks = iter(stream)
        next(chunks)
        yield chunks


@pytest.mark.parametrize("stream", [False, True])
def test_who_gets_no_row_in_time_is_refused_and_the_row_goes_on(strict, official, stream):
    with whole_row(official) as chunks:
        with pytest.raises(openai.InternalServerError) as refused:
            official.completions.create(**PROMPT, max_tokens=4, stream=stream)
        assert (refused.value.status_code, refused.value.code) == (503, "queue_timeout")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert next(chunks).choices[0].finish_reason is None
    eventually(lambda: idle(strict))
    assert official.completions.create(**PROMPT, max_tokens=2).usage.completion_tokens == 2


def test_who_waits_for_an_engine_that_stands_still_is_refused_in_time(strict, official):
    """By the server's clock, and counted as what it is. What runs goes on with the engine."""
    names = ("poot_requests_cancelled_total", "poot_requests_errored_total")
    before = figures(strict)
    with whole_row(official) as chunks:
        strict.engine().suspend()
        try:
            began = time.perf_counter()
            with pytest.raises(openai.InternalServerError) as refused:
                official.completions.create(**PROMPT, max_tokens=4)
            assert 1.0 <= time.perf_counter() - began < 4.0
        finally:
            strict.engine().resume()
        assert (refused.value.status_code, refused.value.code) == (503, "queue_timeout")
        assert next(chunks).choices[0].finish_reason is None
    eventually(lambda: idle(strict))
    after = figures(strict)
    # The one that is left half-read is cancelled too.
    assert [after[name] - before[name] for name in names] == [2, 0]
    told = [each["poot_errors_total"].get("queue_timeout", 0) for each in (before, after)]
    assert told[1] - told[0] == 1


def test_one_too_many_is_refused_at_once(strict, official):
    head = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            # A body that has not come takes a place too.
            stack.enter_context(_half_sent(strict.port, head))
        eventually(lambda: _refused(official))
    eventually(lambda: idle(strict) and not _refused(official))


def _refused(official: openai.OpenAI) -> bool:
    try:
        official.completions.create(**PROMPT, max_tokens=1)
    except openai.RateLimitError as refused:
        assert refused.code == "too_many_requests" and refused.response.headers["retry-after"] == "1"
        return True
    return False


@contextlib.contextmanager
def _half_sent(port: int, head: dict[str, str]) -> Iterator[None]:
    lines = [f"Host: 127.0.0.1:{port}", "Content-Length: 100", *(f"{name}: {value}" for name, value in head.items())]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall("\r\n".join(["POST /v1/completions HTTP/1.1", *lines, "", "{"]).encode())
        yield


def test_its_log_is_json_to_the_end(strict):
    """The last test of this server, which it ends."""
    strict.process.send_signal(signal.SIGTERM)
    assert strict.wait() == 0
    told = [json.loads(line) for line in strict.stderr.splitlines()]
    assert {"poot_serve", "stderr"} <= {entry["logger"] for entry in told}
    assert not [entry for entry in told if entry["level"] in ("error", "critical") or "exception" in entry]
