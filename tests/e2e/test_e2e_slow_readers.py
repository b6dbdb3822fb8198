"""Clients that read slowly, later or never, and clients that leave: only their own rows feel it."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import defaultdict

import httpx
import psutil
import pytest

# Three of the four rows, and more than the kernel holds for a client that does not read: each token's event has twenty
# alternatives with their bytes.
CHOICES, TOKENS = 3, 130
WORDY = {
    "messages": [{"role": "user", "content": "Count to one hundred."}],
    "n": CHOICES, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": True, "top_logprobs": 20,
}  # fmt: skip
QUIET_SECONDS = 0.5


def request(server, **fields):
    """The bytes of a chat whose answer ends with its connection."""
    body = json.dumps({**WORDY, **fields}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def connect(server, **fields):
    """A connection with a chat sent, whose kernel takes as little as may be for its reader."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", server.port))
    sock.sendall(request(server, **fields))
    return sock


def until_quiet(server):
    """The metrics once no token has come for a while."""
    last, since = -1, time.perf_counter()
    while time.perf_counter() - since < QUIET_SECONDS:
        figures = server.metrics()
        if figures["poot_completion_tokens_total"] != last:
            last, since = figures["poot_completion_tokens_total"], time.perf_counter()
        time.sleep(0.02)
    return figures


def read_all(sock):
    parts = []
    while part := sock.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def events_of(answer):
    """The data of the events in a chunked answer (RFC 9112, section 7.1)."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    blocks = body.decode("utf-8").split("\n\n")
    assert blocks.pop() == ""
    return [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]


def test_a_reader_that_pauses_holds_its_own_rows_and_later_gets_every_token(server, http, chat):
    before = server.idle()["poot_completion_tokens_total"]
    buffered = http.post("/v1/chat/completions", json={**WORDY, "n": 1}).json()
    with connect(server, stream=True, stream_options={"include_usage": True}) as sock:
        paused = until_quiet(server)
        assert paused["poot_inflight_requests"] == CHOICES
        assert paused["poot_completion_tokens_total"] - before < TOKENS * (CHOICES + 1)
        other = chat("What is the capital of France?", max_tokens=16)
        assert "Paris" in other["choices"][0]["message"]["content"]
        assert server.metrics()["poot_inflight_requests"] == CHOICES
        *chunks, last, done = events_of(read_all(sock))
    assert done == "[DONE]"
    texts, tokens, ends, most = defaultdict(str), defaultdict(list), [], 0
    for chunk in map(json.loads, chunks):
        (choice,) = chunk["choices"]
        assert not ends.count(choice["index"]), "an event after its choice's end"
        texts[choice["index"]] += choice["delta"].get("content", "")
        entries = choice["logprobs"]["content"] if choice["logprobs"] else []
        tokens[choice["index"]] += [entry["token"] for entry in entries]
        most = max(most, len(entries))
        if choice["finish_reason"] is not None:
            assert choice["finish_reason"] == "length"
            ends.append(choice["index"])
    (whole,) = buffered["choices"]
    expected = [entry["token"] for entry in whole["logprobs"]["content"]]
    assert len(expected) == TOKENS
    assert dict(texts) == dict.fromkeys(range(CHOICES), whole["message"]["content"])
    assert dict(tokens) == dict.fromkeys(range(CHOICES), expected)
    assert most > 1, "what waited for the reader came one by one"
    assert json.loads(last)["usage"]["completion_tokens"] == CHOICES * TOKENS
    server.idle()


def test_a_client_that_never_reads_is_cut_off(start):
    """Its rows are given back after the write timeout, and its connection is gone from the server."""
    server = start("--write-timeout-secs", "1")
    with connect(server, stream=True) as sock, connect(server, stream=False, n=1, max_tokens=250) as buffered:
        ports = {sock.getsockname()[1], buffered.getsockname()[1]}
        figures = until_quiet(server)
        assert figures["poot_completion_tokens_total"] < CHOICES * TOKENS + 250
        server.idle(30.0)
        deadline = time.perf_counter() + 10
        while held := ports & connected(server):
            assert time.perf_counter() < deadline, held
            time.sleep(0.02)
        with pytest.raises(ConnectionError):
            read_all(sock)
    assert httpx.get(f"{server.url}/health").status_code == 200


def connected(server):
    """The ports of the clients that the server's process holds connections to."""
    connections = psutil.net_connections("tcp")
    return {one.raddr.port for one in connections if one.raddr and one.pid == server.process.pid}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", ["reset", "close", "half-close"])
def test_a_client_that_leaves_frees_its_rows(server, chat, stream, leave):
    """A client that closes its sending side alone counts as gone: the two cannot be told apart. What was read of its
    prompt stays in the prefix cache, in blocks of 16 tokens."""
    before = server.idle()["poot_completion_tokens_total"]
    said = f"{time.time_ns()}: count to one hundred, and then back to one, in words and not in numbers."
    plain = {"messages": [{"role": "user", "content": said}], "logprobs": None, "top_logprobs": None}
    with connect(server, stream=stream, max_tokens=900, n=2, **plain) as sock:
        deadline = time.perf_counter() + 30
        while server.metrics()["poot_completion_tokens_total"] < before + 4:
            assert time.perf_counter() < deadline
        if leave == "half-close":
            sock.shutdown(socket.SHUT_WR)
        elif leave == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if leave != "half-close":
            sock.close()
        figures = server.idle()
    assert figures["poot_completion_tokens_total"] - before < 400
    usage = chat(said, max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == (usage["prompt_tokens"] - 1) // 16 * 16
