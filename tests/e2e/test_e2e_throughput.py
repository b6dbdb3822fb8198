"""benchmarks/serve.py: a short run prints all its verdicts, and a stream that does not end as asked is seen."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PROMPT, TOKENS = [7, 8, 9], 4


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": "" if finish else " a", "finish_reason": finish}
    return event(choices=[choice], usage=None)


def usage(prompt: int = len(PROMPT), completion: int = TOKENS) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event(choices=[], usage=counts)


DONE = b"data: [DONE]\n\n"
WHOLE = chunked(*[text()] * TOKENS, text("length"), usage() + DONE)
WRONG = {
    "fewer tokens": chunked(text(), text("length"), usage(completion=TOKENS - 1) + DONE),
    "another prompt": chunked(text(), text("length"), usage(prompt=2) + DONE),
    "an end token": chunked(text(), text("stop"), usage() + DONE),
    "no finish reason": chunked(text(), usage() + DONE),
    "no usage": chunked(text(), text("length"), DONE),
    "an error": chunked(text(), event(error={"message": "lost", "code": "engine_dead"}), DONE),
    "no DONE": chunked(text(), text("length"), usage()),
    "nothing": chunked(),
}


@pytest.fixture(scope="module")
def load() -> Iterator[ModuleType]:
    """benchmarks/stream_load.py."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("stream_load")
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_a_whole_stream_is_counted_however_it_is_cut(load):
    ask = load.Ask(PROMPT, TOKENS, max_tokens=TOKENS)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = load.Client(ours, deque([(ask, b"first"), (ask, b"second")]))
        client.send()
        ended = []
        for request in (b"first", b"second"):
            assert theirs.recv(100) == request
            for part in (HEAD, *(bytes([byte]) for byte in WHOLE)):
                theirs.send(part)
                ended.append(client.take())
    assert ended == [False] * (len(ended) - 1) + [True]
    assert (client.fault, client.tokens, client.events, len(client.firsts)) == (None, 2 * TOKENS, 2 * (TOKENS + 2), 2)


@pytest.mark.parametrize("data", [*(HEAD + body for body in WRONG.values()), b"HTTP/1.1 503 Busy\r\n\r\n", b""],
                         ids=[*WRONG, "a refusal", "a closed connection"])  # fmt: skip
def test_a_stream_that_does_not_end_as_asked_is_a_fault(load, data):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = load.Client(ours, deque([(load.Ask(PROMPT, TOKENS, max_tokens=TOKENS), b"first")]))
        client.send()
        theirs.sendall(data) if data else theirs.close()
        assert client.take()
    assert client.fault and client.tokens == 0


def test_a_request_without_max_tokens_is_a_chat_that_names_none(load):
    head, _, body = load.http_request(load.Ask(PROMPT, TOKENS, chat=" a b c"), 80).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:80\r\n")
    asked = json.loads(body)
    assert "max_tokens" not in asked and asked["messages"] == [{"role": "user", "content": " a b c"}]


def test_a_short_run_prints_every_verdict(tmp_path):
    """How fast it is is left to the full run."""
    command = [sys.executable, str(BENCHMARKS / "serve.py"), "--check", "--shape", "tiny", "--folder", str(tmp_path)]
    command += ["--backend", "cpu", "--clients", "1,3", "--prompt", "16", "--out", "8", "--rounds", "1", "--mixed"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    print(ended.stdout)
    verdicts = [line for line in ended.stdout.splitlines() if line.startswith(("PASS: ", "FAIL: "))]
    assert [("engine in-process" in line) for line in verdicts] == [True] * 4 + [False] * 2, ended.stdout + ended.stderr
    assert all(line.startswith("PASS: ") for line in verdicts[4:])
    assert ended.returncode == int(any(line.startswith("FAIL") for line in verdicts))
