"""A closed loop of raw keep-alive connections: the load of serve_http.py, in a process of its own.

    python benchmarks/http_load.py '{"port": 8080, "request": BASE64, "connections": 16, "seconds": 3, "stream": false}'

Each connection sends the same request, waits for the whole answer, and sends it again. What comes back is counted,
not parsed, so that one Python process keeps up with a server: an answer is as long as the connection's first one,
a stream ends where its last chunk does. Prints one JSON object.
"""

from __future__ import annotations

import base64
import json
import select
import socket
import sys
import time
from dataclasses import dataclass, field

READ_BYTES = 1 << 18
EVENT = b"data: {"
LAST_CHUNK = b"0\r\n\r\n"
PATIENCE_SECONDS = 30.0


class LoadError(Exception):
    """An answer was not the one that was asked for."""


@dataclass(slots=True)
class Connection:
    sock: socket.socket
    stream: bool
    length: int = 0  # of a buffered answer, once the first is there
    had: int = 0
    events: int = 0
    began: float = 0.0
    tail: bytes = b""
    head: bytes = b""

    def whole(self, data: bytes) -> bool:
        """Whether `data` ends the answer. Raises LoadError."""
        if not self.had:
            self.head = data
            if not data.startswith(b"HTTP/1.1 200 "):
                raise LoadError(data[:2000].decode(errors="replace"))
        self.had += len(data)
        if self.stream:
            seen = self.tail + data
            self.events += seen.count(EVENT)
            self.tail = seen[-(len(EVENT) - 1) :]
            return data.endswith(LAST_CHUNK) or seen.endswith(LAST_CHUNK)
        if not self.length:
            self.length = answer_length(data)
        if self.had > self.length:
            raise LoadError(f"{self.had} bytes in place of {self.length}: {data[:500]!r}")
        return self.had == self.length


def answer_length(data: bytes) -> int:
    """Bytes of the answer that `data` begins with, its head whole. Raises LoadError."""
    head, found, _ = data.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if found and line.startswith(b"content-length:"):
            return len(head) + 4 + int(line.partition(b":")[2])
    raise LoadError(f"no Content-Length in {head!r}")


@dataclass(slots=True)
class Counted:
    answers: int = 0
    events: int = 0
    latencies: list[float] = field(default_factory=list)


def run(port: int, request: bytes, connections: int, *, seconds: float, warm_seconds: float, stream: bool) -> Counted:
    """Raises LoadError, also when nothing comes for PATIENCE_SECONDS."""
    poll, by_number = select.epoll(), {}
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made = Connection(sock, stream, began=time.perf_counter())
        by_number[sock.fileno()] = made
        sock.sendall(request)
        poll.register(sock.fileno(), select.EPOLLIN)
    start = time.perf_counter() + warm_seconds
    counted, end = Counted(), start + seconds
    counting = False
    while True:
        ready = poll.poll(PATIENCE_SECONDS)
        if not ready:
            raise LoadError(f"no answer for {PATIENCE_SECONDS:g} seconds")
        now = time.perf_counter()
        if now >= end:
            break
        if not counting and now >= start:
            counting = True
            for one in by_number.values():
                one.events = 0
        for number, _ in ready:
            one = by_number[number]
            data = one.sock.recv(READ_BYTES)
            if not data:
                raise LoadError("the server closed a connection")
            if not one.whole(data):
                continue
            now = time.perf_counter()
            if counting:
                counted.answers += 1
                counted.latencies.append(now - one.began)
            one.had, one.tail, one.began = 0, b"", now
            one.sock.sendall(request)
    counted.events = sum(one.events for one in by_number.values())
    for one in by_number.values():
        one.sock.close()
    return counted


def main() -> int:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    asked = json.loads(sys.argv[1])
    request = base64.b64decode(asked.pop("request"))
    counted = run(request=request, **asked)
    found = sorted(counted.latencies)
    if not found:
        raise LoadError(f"no whole answer within {asked['seconds']:g} seconds")
    at = {f"p{part}": found[min(len(found) - 1, len(found) * part // 100)] for part in (50, 99)}
    print(json.dumps({"answers": counted.answers, "events": counted.events, **at}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
