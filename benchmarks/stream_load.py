"""Streaming clients on raw keep-alive connections: the load of serve.py, in a process of its own.

    python benchmarks/stream_load.py PORT

Standard input: a line of JSON with the requests of each client (lists of Ask), then, once this process has said READY,
any line to begin. Each client sends its requests one after another. Prints Told as JSON. Of a stream only the end is
parsed, so that a process keeps up with many.
"""

from __future__ import annotations

import re
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

READY = "ready"
READ_BYTES = 1 << 18
TAIL_BYTES = 4096  # more than a stream's last two events take
EVENT = b"data: {"
EVENTS = re.compile(rb"data: (\{.*\})\n\n")
STREAM_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
CHUNK_END = b"0\r\n\r\n"
PATIENCE_SECONDS = 120.0


class Ask(msgspec.Struct, frozen=True):
    """A request of the token ids `prompt`, or of a chat with the text `chat` that makes the same ids; an answer of
    `expected` tokens, which only the server's default says if `max_tokens` is None."""

    prompt: list[int]
    expected: int
    max_tokens: int | None = None
    chat: str | None = None


class Told(msgspec.Struct, frozen=True):
    """`began` and `ended` are readings of `time.perf_counter`, which processes share, `firsts` seconds from a request
    to its first token, `cpu_seconds` the processor time between `began` and `ended`, `faults` what went wrong."""

    began: float
    ended: float
    cpu_seconds: float
    tokens: int
    events: int
    firsts: list[float]
    faults: list[str]


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class Choice(msgspec.Struct):
    finish_reason: str | None = None


class Event(msgspec.Struct):
    """What completions and chats have in common."""

    choices: list[Choice]
    usage: Usage | None = None


def http_request(ask: Ask, port: int) -> bytes:
    fields = {
        "max_tokens": ask.max_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    if ask.max_tokens is None:
        del fields["max_tokens"]
    if ask.chat is None:
        path, body = "/v1/completions", msgspec.json.encode({"prompt": ask.prompt, **fields})
    else:
        messages = [{"role": "user", "content": ask.chat}]
        path, body = "/v1/chat/completions", msgspec.json.encode({"messages": messages, **fields})
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def fault_of(ask: Ask, tail: bytes) -> str | None:
    """What is wrong with the end of a stream."""
    if not tail.endswith(STREAM_END):
        return f"a stream ended with {tail[-200:]!r}"
    try:
        *_, last, told = [msgspec.json.decode(data, type=Event) for data in EVENTS.findall(tail)]
    except (ValueError, msgspec.MsgspecError) as error:
        return f"the last events cannot be read ({error}): {tail[-500:]!r}"
    if not last.choices or last.choices[0].finish_reason != "length":
        return f"no finish_reason length before the usage: {last}"
    if told.usage != Usage(len(ask.prompt), ask.expected):
        return f"{told.usage} for a prompt of {len(ask.prompt)} and an answer of {ask.expected}"
    return None


@dataclass(slots=True)
class Client:
    """One connection, and what is still to be sent on it."""

    sock: socket.socket
    asks: deque[tuple[Ask, bytes]]
    tokens: int = 0
    events: int = 0
    firsts: list[float] = field(default_factory=list)
    fault: str | None = None
    began: float = 0.0
    waiting: bool = False  # for the first event
    had: int = 0
    tail: bytes = b""

    def send(self) -> None:
        self.had, self.tail, self.waiting = 0, b"", True
        self.began = time.perf_counter()
        self.sock.sendall(self.asks[0][1])

    def take(self) -> bool:
        """Read what is there, and send the next request after an answer's end; whether it was the last one's."""
        try:
            data = self.sock.recv(READ_BYTES)
        except OSError as error:
            return self._failed(str(error))
        if not data:
            return self._failed("the server closed a connection")
        if not self.had and not data.startswith(b"HTTP/1.1 200 "):
            return self._failed(f"no stream: {data[:2000]!r}")
        self.had += len(data)
        events = (self.tail[1 - len(EVENT) :] + data).count(EVENT)
        if events and self.waiting:
            self.waiting = False
            self.firsts.append(time.perf_counter() - self.began)
        self.events += events
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        if not self.tail.endswith(CHUNK_END):
            return False
        ask, _ = self.asks.popleft()
        fault = fault_of(ask, self.tail)
        if fault is not None:
            return self._failed(fault)
        self.tokens += ask.expected
        if self.asks:
            self.send()
        return not self.asks

    def _failed(self, fault: str) -> bool:
        self.fault = fault
        return True


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def run(clients: Sequence[Client]) -> Told:
    """Send everything and read to the end."""
    poll, by_number = select.epoll(), {client.sock.fileno(): client for client in clients}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    began, spent = time.perf_counter(), time.process_time()
    for client in clients:
        client.send()
    faults = []
    while by_number:
        ready = poll.poll(PATIENCE_SECONDS)
        if not ready:
            faults.append(f"{len(by_number)} streams said nothing for {PATIENCE_SECONDS:g} seconds")
            break
        for number, _ in ready:
            if by_number[number].take():
                poll.unregister(number)
                del by_number[number]
    ended, spent = time.perf_counter(), time.process_time() - spent
    return Told(
        began, ended, spent,
        tokens=sum(client.tokens for client in clients),
        events=sum(client.events for client in clients),
        firsts=[seconds for client in clients for seconds in client.firsts],
        faults=faults + [client.fault for client in clients if client.fault is not None],
    )  # fmt: skip


def main() -> int:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    port = int(sys.argv[1])
    given = msgspec.json.decode(sys.stdin.readline(), type=list[list[Ask]])
    clients = [Client(connect(port), deque((ask, http_request(ask, port)) for ask in asks)) for asks in given]
    print(READY, flush=True)
    sys.stdin.readline()
    print(msgspec.json.encode(run(clients)).decode(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
