"""What poot-serve adds to bare Granian: the same bytes from both, over an engine that answers at once.

    python benchmarks/serve_http.py                 print the table
    python benchmarks/serve_http.py --check         also print PASS or FAIL a line, and exit 1 on FAIL
    python benchmarks/serve_http.py --profile FILE  run poot-serve under cProfile, its figures into FILE

Three processes: poot-serve's application over an engine in the same process that answers every request with the same
token; a bare ASGI application in the same Granian, which reads the request's body and sends the bytes that
poot-serve was seen to send, in as many writes; and the clients (http_load.py). The two servers take turns, and a
ratio is the median of those of the turns, since this machine has others to serve. `cpu` is the processor time of the
server's process. What is added to the latency is that of so many clients at once, and in the line of one client that
of the server alone.

Checked are a completion of one token and the events of many streams. A chat is shown beside them: its prompt is
rendered by the model's template, in a sandbox and under a meter, which takes nearly as long as all else.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import socket
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from http_servers import OPENED
from live_server import free_port

REACH, PUSH = 0.5, 0.7
TURNS = 5
SECONDS, WARM_SECONDS = 4.0, 0.5
CONNECTIONS, STREAMS = 32, 256
STREAM_TOKENS = 128
LOAD = Path(__file__).with_name("http_load.py")
SERVERS = Path(__file__).with_name("http_servers.py")


@dataclass(frozen=True, slots=True)
class Load:
    """One question. `checked`: the ratio of its rates must reach REACH."""

    name: str
    path: str
    body: dict[str, Any]
    connections: int
    checked: bool = False

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    def request(self, port: int) -> bytes:
        body = json.dumps(self.body, separators=(",", ":")).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Accept: */*\r\nUser-Agent: http_load\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


CHAT = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 1, "temperature": 0}
TEXT = {"prompt": "Name a colour.", "max_tokens": 1, "temperature": 0}
LONG = {"stream": True, "max_tokens": STREAM_TOKENS}
LOADS = (
    Load("completion of one token", "/v1/completions", TEXT, CONNECTIONS, checked=True),
    Load("chat of one token", "/v1/chat/completions", CHAT, CONNECTIONS),
    Load("chat, one client", "/v1/chat/completions", CHAT, 1),
    Load(f"{STREAMS} streams of chats", "/v1/chat/completions", {**CHAT, **LONG}, STREAMS, checked=True),
)


class ServerProcess:
    def __init__(self, *arguments: str, told: str = "") -> None:
        self.port = free_port()
        command = [sys.executable, str(SERVERS), *arguments, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None and self.process.stdout is not None
        if told:
            self.process.stdin.write(told + "\n")
            self.process.stdin.flush()
        if self.process.stdout.readline().strip() != OPENED:
            raise RuntimeError(f"the server {arguments} did not open")

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def seen_answer(load: Load, port: int) -> tuple[list[tuple[str, str]], list[str]]:
    """The head's fields and the writes of one answer, from the wire: each chunk of a chunked body is one write."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock, sock.makefile("rb") as file:
        sock.sendall(load.request(port))
        status = file.readline()
        if not status.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"{load.name}: {status!r} {file.read1()!r}")
        head = []
        while line := file.readline().strip():
            name, _, value = line.decode().partition(": ")
            head.append((name, value))
        fields = {name.lower(): value for name, value in head}
        kept = [(name, value) for name, value in head if name.lower() not in ("transfer-encoding", "date", "server")]
        if not load.stream:
            return kept, [file.read(int(fields["content-length"])).decode()]
        parts = []
        while size := int(file.readline(), 16):
            parts.append(file.read(size).decode())
            file.readline()
        return kept, [*parts, ""]


@dataclass(frozen=True, slots=True)
class Turn:
    """Answers (or events) a second, processor microseconds for one, and seconds for an answer."""

    rate: float
    cpu: float
    p50: float
    p99: float


def one_turn(load: Load, server: ServerProcess) -> Turn:
    asked = {
        "port": server.port, "request": base64.b64encode(load.request(server.port)).decode(),
        "connections": load.connections, "seconds": SECONDS, "warm_seconds": WARM_SECONDS, "stream": load.stream,
    }  # fmt: skip
    before = server.cpu_seconds()
    ended = subprocess.run(
        [sys.executable, str(LOAD), json.dumps(asked)], check=True, stdout=subprocess.PIPE, text=True, timeout=120
    )
    used = server.cpu_seconds() - before
    found = json.loads(ended.stdout)
    count = found["events"] if load.stream else found["answers"]
    return Turn(count / SECONDS, used / count * 1e6 * SECONDS / (SECONDS + WARM_SECONDS), found["p50"], found["p99"])


def measure(load: Load, poot: ServerProcess, bare: ServerProcess, turns: int) -> dict[str, float]:
    """Medians over the turns."""
    pairs = [(one_turn(load, poot), one_turn(load, bare)) for _ in range(turns)]
    middle = statistics.median
    return {
        "poot": middle(ours.rate for ours, _ in pairs),
        "bare": middle(theirs.rate for _, theirs in pairs),
        "ratio": middle(ours.rate / theirs.rate for ours, theirs in pairs),
        "poot cpu": middle(ours.cpu for ours, _ in pairs),
        "bare cpu": middle(theirs.cpu for _, theirs in pairs),
        "cpu ratio": middle(theirs.cpu / ours.cpu for ours, theirs in pairs),
        "p50": middle(ours.p50 - theirs.p50 for ours, theirs in pairs),
        "p99": middle(ours.p99 - theirs.p99 for ours, theirs in pairs),
    }


def show(load: Load, found: dict[str, float]) -> None:
    unit = "events" if load.stream else "answers"
    print(
        f"{load.name:28} {found['poot']:9.0f} {found['bare']:9.0f} {unit + '/s':10} {found['ratio']:5.2f}"
        f"   {found['poot cpu']:8.1f} {found['bare cpu']:8.1f} {found['cpu ratio']:5.2f}"
        f"   {found['p50'] * 1000:+8.3f} {found['p99'] * 1000:+8.3f}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless every checked ratio is reached")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--only", default="", help="loads whose name holds this")
    parser.add_argument("--profile", metavar="FILE", default=None)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the run")
    loads = [load for load in LOADS if arguments.only in load.name]
    verdicts = {}
    with ExitStack() as running:
        profile = () if arguments.profile is None else ("--profile", arguments.profile)
        poot = running.enter_context(ServerProcess("poot", *profile))
        told = {"stream" if load.stream else load.path: seen_answer(load, poot.port) for load in loads}
        bare = running.enter_context(ServerProcess("bare", told=json.dumps(told)))
        print(f"{'':28} {'poot':>9} {'bare':>9} {'':10} ratio   {'cpu us':>8} {'bare':>8} ratio   +ms, p50      p99")
        for load in loads:
            found = measure(load, poot, bare, arguments.turns)
            show(load, found)
            if load.checked:
                verdicts[f"{load.name}: {found['ratio']:.2f} of bare Granian, {REACH} wanted, {PUSH} hoped for"] = (
                    found["ratio"] >= REACH
                )
    if not arguments.check:
        return 0
    for what, held in verdicts.items():
        print(f"{'PASS' if held else 'FAIL'}: {what}")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
