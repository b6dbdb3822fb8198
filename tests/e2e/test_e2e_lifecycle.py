"""How a server ends: drained, at once, or with its engine. No process stays behind."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

COMPLETION = "/v1/completions"
BODY = {"prompt": "a b c d e f g", "temperature": 0, "ignore_eos": True, "stream": True}
DEFAULT_PORT = 8080
TERMINATED = 128 + signal.SIGTERM


@pytest.fixture
def start_faulty(live, model) -> Iterator[Callable[..., Any]]:
    """(fault of faulty_server.py, *flags) -> a server with it, serving."""
    script = str(Path(__file__).with_name("faulty_server.py"))
    flags = ("--backend", "cpu", "--max-seq", "1024")
    with ExitStack() as started:

        def make(fault: str, *more: str) -> Any:
            program = (sys.executable, script, fault)
            return started.enter_context(live.LiveServer.of(model, *flags, *more, program=program)).ready()

        yield make


@contextmanager
def open_stream(server, max_tokens: int) -> Iterator[Iterator[str]]:
    """The data lines of a stream after its first one."""
    body = {**BODY, "max_tokens": max_tokens}
    with httpx.stream("POST", f"{server.url}{COMPLETION}", json=body, timeout=60) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        assert json.loads(next(lines))["choices"][0]["text"]
        yield lines


def complete(server, **fields) -> httpx.Response:
    """A buffered completion."""
    body = {**BODY, "stream": False, "max_tokens": 8, **fields}
    return httpx.post(f"{server.url}{COMPLETION}", json=body, timeout=30)


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


def test_a_killed_engine_is_started_again_and_a_second_time_ends_the_server_with_1(start):
    server = start()
    said = complete(server).json()["choices"][0]["text"]
    engine, figures = server.engine(), server.idle()
    with open_stream(server, 900) as lines:
        engine.kill()
        last = list(lines)[-1]
    error = json.loads(last)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("server_error", "engine_dead")
    health = httpx.get(f"{server.url}/health", timeout=10)
    assert health.status_code == 503 and health.json()["status"] == "restarting"
    late = complete(server)
    assert (late.status_code, late.json()["error"]["code"]) == (503, "engine_restarting")
    assert 1 <= int(late.headers["retry-after"]) <= 60
    between = server.metrics()
    assert (between["poot_engine_up"], between["poot_inflight_requests"]) == (0, 0)

    server.until("the engine serves again")
    again = server.engine()
    assert ended(engine) and again.pid != engine.pid
    assert httpx.get(f"{server.url}/health", timeout=10).json()["status"] == "serving"
    assert complete(server).json()["choices"][0]["text"] == said
    after = server.idle()
    assert (after["poot_engine_up"], after["poot_engine_restarts_total"]) == (1, 1)
    moving = ("inflight_requests", "queue_depth", "batch_size", "kv_cache_blocks_used", "kv_cache_usage_ratio")
    assert {after[f"poot_{name}"] for name in (*moving, "pending_requests", "receiving_requests")} == {0}
    assert (after["poot_requests_total"], after["poot_requests_errored_total"]) == (3, 1)
    for name in (name for name in figures if name.endswith("_total") and isinstance(figures[name], float)):
        assert figures[name] <= between[name] <= after[name]

    again.kill()
    assert server.wait() == 1 and ended(again)
    assert "Traceback" not in server.stderr
    told = [line for _, line in server.lines if " the engine " in line]
    assert [line.split(" the engine ")[1].split(" (")[0].split(",")[0] for line in told] == [
        "is lost", "serves again", "is lost again", "is gone; giving up\n",
    ]  # fmt: skip


def test_an_engine_that_breaks_and_then_stands_still(start_faulty):
    """Logits that are not finite end their own row; an engine that stops under load fails all, and is replaced."""
    server = start_faulty(f"driver.logits:20:fail,driver.submit:170:{int(signal.SIGSTOP)}", "--rows", "2")
    engine = server.engine()
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: complete(server, max_tokens=60), range(2)))
        (failed,) = (each.json()["error"] for each in answers if each.status_code == 500)
        assert (failed["type"], failed["code"]) == ("server_error", "non_finite_logits")
        (good,) = (each.json() for each in answers if each.status_code == 200)
        assert good["usage"]["completion_tokens"] == 60
        assert complete(server, max_tokens=60).json()["choices"] == good["choices"]
        figures = server.idle()
        assert (figures["poot_requests_errored_total"], figures["poot_errors_total"]) == (1, {"non_finite_logits": 1})

        with open_stream(server, 900) as lines:
            buffered = [pool.submit(complete, server, max_tokens=900) for _ in range(2)]
            server.until("the engine has been silent")
            began = time.perf_counter()
            refusal = complete(server)
            assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "engine_restarting")
            last = json.loads(list(lines)[-1])["error"]
            late = [each.result() for each in buffered]
            assert time.perf_counter() - began < 5
    assert last["code"] == "engine_dead" and "has given no sign of life" in last["message"]
    assert [(each.status_code, each.json()["error"]["code"]) for each in late] == [(503, "engine_dead")] * 2
    assert ended(engine)
    # A server that is killed takes the engine along that it is starting.
    starting = server.engine()
    server.process.kill()
    assert ended(starting)


def test_a_drain_ends_for_every_kind_of_client(start):
    """One who reads, one who never reads, one who waits for a row, one whose body stops half-way, one who is silent."""
    server = start("--rows", "2", "--drain-timeout-secs", "20", "--write-timeout-secs", "1")
    engine, address = server.engine(), ("127.0.0.1", server.port)
    head = f"POST {COMPLETION} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        unread = stack.enter_context(socket.socket())
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect(address)
        body = json.dumps({**BODY, "max_tokens": 900, "logprobs": 5}).encode()
        unread.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        half = stack.enter_context(socket.create_connection(address, timeout=10))
        half.sendall(f'{head}Content-Length: 100\r\n\r\n{{"prompt"'.encode())
        silent = stack.enter_context(socket.create_connection(address, timeout=10))
        lines = stack.enter_context(open_stream(server, 60))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        queued = pool.submit(complete, server, max_tokens=3)
        while server.metrics()["poot_queue_depth"] != 1 or server.metrics()["poot_receiving_requests"] != 1:
            pass
        server.process.send_signal(signal.SIGTERM)
        server.until("draining")
        began = time.perf_counter()
        assert refused(server)
        assert half.recv(12) == b"HTTP/1.1 503" and b'"draining"' in half.recv(65536)
        data = list(lines)
        assert data[-1] == "[DONE]" and json.loads(data[-2])["choices"][0]["finish_reason"] == "length"
        assert queued.result().json()["usage"]["completion_tokens"] == 3
        assert silent.recv(1) == b""
        assert server.wait() == 0
        # Well before the drain's own end: the one who does not read has been cut.
        assert time.perf_counter() - began < 10
    assert ended(engine)
    assert "Traceback" not in server.stderr and "panicked" not in server.stderr
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_an_engine_that_is_lost_in_a_drain_leaves_its_reason(start):
    server = start()
    engine = server.engine()
    with open_stream(server, 900) as lines:
        server.process.send_signal(signal.SIGTERM)
        server.until("draining")
        engine.kill()
        last = json.loads(list(lines)[-1])["error"]
    assert last["code"] == "engine_dead"
    assert server.wait() == 0 and ended(engine)
    (told,) = (line for _, line in server.lines if " the engine " in line)
    assert "the engine is lost (its process was ended by SIGKILL) while the server drains" in told


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
