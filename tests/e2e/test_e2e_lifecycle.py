"""How a server ends: drained, at once, or with its engine. No process stays behind."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

COMPLETION = "/v1/completions"
BODY = {"prompt": "a b c d e f g", "temperature": 0, "ignore_eos": True, "stream": True}
DEFAULT_PORT = 8080
TERMINATED = 128 + signal.SIGTERM


@contextmanager
def open_stream(server, max_tokens: int) -> Iterator[Iterator[str]]:
    """The data lines of a stream after its first one."""
    body = {**BODY, "max_tokens": max_tokens}
    with httpx.stream("POST", f"{server.url}{COMPLETION}", json=body, timeout=60) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        assert json.loads(next(lines))["choices"][0]["text"]
        yield lines


def refused(server) -> bool:
    """Whether new work is refused: with 503, or at the door."""
    try:
        answer = httpx.post(f"{server.url}{COMPLETION}", json={"prompt": "a", "max_tokens": 1}, timeout=10)
    except httpx.TransportError:
        return True
    return answer.status_code == 503 and answer.json()["error"]["code"] == "draining"


def ended(process: psutil.Process) -> bool:
    gone, _ = psutil.wait_procs([process], timeout=10)
    return bool(gone)


def test_a_signal_lets_a_stream_finish_and_ends_with_0(start):
    server = start()
    engine = server.engine()
    with open_stream(server, 60) as lines:
        server.process.send_signal(signal.SIGTERM)
        server.until("draining")
        assert refused(server)
        data = list(lines)
    assert data[-1] == "[DONE]" and json.loads(data[-2])["choices"][0]["finish_reason"] == "length"
    assert server.wait() == 0 and ended(engine)
    assert "Traceback" not in server.stderr and "panicked" not in server.stderr
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


def test_a_second_signal_ends_at_once(start):
    server = start()
    engine = server.engine()
    with open_stream(server, 900):
        server.process.send_signal(signal.SIGTERM)
        server.until("draining")
        began = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == TERMINATED
        assert time.perf_counter() - began < 3
    assert ended(engine)


def test_a_killed_engine_ends_streams_with_an_error_and_the_server_with_1(start):
    server = start()
    engine = server.engine()
    with open_stream(server, 900) as lines:
        engine.kill()
        last = list(lines)[-1]
    error = json.loads(last)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("server_error", "engine_dead")
    health = httpx.get(f"{server.url}/health", timeout=10)
    assert health.status_code == 503 and health.json()["status"] == "dead"
    late = httpx.post(f"{server.url}{COMPLETION}", json={**BODY, "max_tokens": 1}, timeout=10)
    assert late.status_code == 503
    assert server.wait() == 1 and ended(engine)
    assert "Traceback" not in server.stderr


def test_without_a_model_the_demonstration_is_served(live, served_model):
    """The very command of the README; and an engine does not outlive a server that is killed."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", DEFAULT_PORT)) == 0:
            pytest.skip(f"port {DEFAULT_PORT} is taken on this machine")
    with live.LiveServer(port=DEFAULT_PORT) as server:
        server.ready()
        engine = server.engine()
        listed = httpx.get(f"{server.url}/v1/models", timeout=10).json()["data"]
        assert [card["id"] for card in listed] == [served_model]
        body = {**BODY, "max_tokens": 4, "stream": False}
        answer = httpx.post(f"http://localhost:{DEFAULT_PORT}{COMPLETION}", json=body, timeout=60)
        assert answer.json()["choices"][0]["text"] == " h i j k"
        server.process.kill()
        assert ended(engine)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_server_s_process_never_holds_torch(server, chat):
    chat("Hello", max_tokens=1)
    assert "libtorch" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{server.engine().pid}/maps").read_text()
