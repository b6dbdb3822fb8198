"""512 clients stream at once; some leave, some never read: the fair ones must not notice.

    python benchmarks/crowd.py            print how long the fair clients waited, with bad ones beside them and without
    python benchmarks/crowd.py --check    also print PASS or FAIL a line, and exit 1 on FAIL

A fifth of the clients cancel: they close the connection before their answer or within it. A twentieth never read. Both
ask for far longer answers than the fair clients, who read to the end. The same fair clients then stream alone. All of
them must complete, their answers must be those that they get alone, and the worst must not take twice as long.
Afterwards the gauges are zero and every request has ended once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from live_server import LiveServer, demonstration_model
from soak import COUNTERS, GAUGES

CLIENTS = 512
CANCELLING, DEAF = 5, 20  # one of so many
FAIR_TOKENS, BAD_TOKENS = 12, 200
ROWS = 8
MAX_RATIO = 2.0
WRITE_SECONDS = 2
PATIENCE_SECONDS = 300.0
SMALL_BUFFER = 2048
WORDS = ("the", "a", "two", "red", "small", "river", "house", "bird", "walks", "sings", "under", "over", "and", "then")
FLAGS = (
    "--max-seq", "256", "--rows", str(ROWS), "--max-pending-requests", "1024", "--max-receiving-requests", "1024",
    "--write-timeout-secs", str(WRITE_SECONDS), "--max-queue-wait-secs", str(int(PATIENCE_SECONDS)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Client:
    """`leave_after`: events that one who cancels reads before it leaves; 0 leaves without reading the head."""

    kind: str
    prompt: str
    leave_after: int = 0

    @property
    def body(self) -> dict[str, Any]:
        body = {"prompt": self.prompt, "max_tokens": BAD_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
        if self.kind == "fair":
            body["max_tokens"] = FAIR_TOKENS
        elif self.kind == "deaf":
            body["logprobs"] = 20  # some kilobytes an event: more than the systems take in between them
        return body


@dataclass(frozen=True, slots=True)
class Told:
    """What a fair client got: its text, whether it was whole, and seconds to its first event and to its end."""

    text: str
    whole: bool
    first: float
    seconds: float


def make_clients(dice: random.Random, count: int) -> list[Client]:
    kinds = ["cancels"] * (count // CANCELLING) + ["deaf"] * (count // DEAF)
    kinds += ["fair"] * (count - len(kinds))
    dice.shuffle(kinds)
    return [
        Client(kind, " ".join(dice.choices(WORDS, k=4)) + f" {number}", leave_after=dice.choice((0, 1, 2, 5)))
        for number, kind in enumerate(kinds)
    ]


async def connect(server: LiveServer, client: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which the request is sent."""
    sock = socket.socket()
    sock.setblocking(False)
    if client.kind == "deaf":
        # What the system itself takes in would hide that nothing is read.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    limit = SMALL_BUFFER if client.kind == "deaf" else 1 << 16
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    body = json.dumps(client.body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    return reader, writer


async def run_client(server: LiveServer, client: Client, fair_done: asyncio.Event) -> Told | None:
    """A fair client's report; None of the others."""
    began = time.perf_counter()
    reader, writer = await connect(server, client)
    try:
        if client.kind == "deaf":
            await fair_done.wait()
            return None
        return await _read(reader, client, began)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, client: Client, began: float) -> Told | None:
    leaves = client.kind == "cancels"
    if leaves and client.leave_after == 0:
        return None
    text, events, whole, first, failed = [], 0, False, 0.0, False
    async with asyncio.timeout(PATIENCE_SECONDS):
        failed = not (await reader.readline()).startswith(b"HTTP/1.1 200")
        while line := await reader.readline():
            if line == b"0\r\n":
                break
            if line == b"data: [DONE]\n":
                whole = not failed
            if not line.startswith(b"data: {"):
                continue
            events += 1
            first = first or time.perf_counter() - began
            event = json.loads(line.removeprefix(b"data: "))
            failed = failed or "error" in event
            text.append(event["choices"][0]["text"] if not failed else str(event))
            if leaves and events == client.leave_after:
                return None
    return Told("".join(text), whole, first, time.perf_counter() - began)


async def run_crowd(server: LiveServer, clients: list[Client]) -> dict[str, Told]:
    """All at once; what each fair client was told, by its prompt."""
    fair_done = asyncio.Event()
    fair = [client for client in clients if client.kind == "fair"]
    others = [asyncio.create_task(run_client(server, one, fair_done)) for one in clients if one.kind != "fair"]
    told = await asyncio.gather(*(run_client(server, one, fair_done) for one in fair))
    fair_done.set()
    await asyncio.gather(*others)
    return {client.prompt: report for client, report in zip(fair, told, strict=True) if report is not None}


def judge(beside: dict[str, Told], alone: dict[str, Told], gained: dict[str, float], gauges: bool) -> dict[str, bool]:
    """What must hold, in words."""
    worst = {name: max(one.seconds for one in told.values()) for name, told in (("b", beside), ("a", alone))}
    ratio = worst["b"] / worst["a"]
    total, *ended = gained.values()
    return {
        f"all {len(alone)} fair clients completed": all(
            one.whole for told in (beside, alone) for one in told.values()
        ) and len(beside) == len(alone),
        f"the worst fair client took {worst['b']:.1f} s, {worst['a']:.1f} s without the bad: {ratio:.2f} times, "
        f"at most {MAX_RATIO} wanted": ratio <= MAX_RATIO,
        f"each request ended exactly once: {total:.0f} began, {sum(ended):.0f} ended": total == sum(ended),
        f"none failed: {gained['poot_requests_errored_total']:.0f}": gained["poot_requests_errored_total"] == 0,
        "all gauges are zero": gauges,
    }  # fmt: skip


def show(name: str, told: dict[str, Told]) -> None:
    firsts = sorted(one.first for one in told.values())
    ends = sorted(one.seconds for one in told.values())
    print(
        f"{name:24} {len(told):6d} {statistics.median(firsts):10.1f} {firsts[-1]:10.1f} {statistics.median(ends):10.1f}"
        f" {ends[-1]:10.1f}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless everything held")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--model", type=Path, default=None, help="default: the demonstration model")
    arguments = parser.parse_args()
    clients = make_clients(random.Random(arguments.seed), arguments.clients)
    flags = ("--backend", arguments.backend, "--no-prefix-cache", *FLAGS)
    with LiveServer.of(arguments.model or demonstration_model(), *flags) as server:
        before = server.ready().idle()
        print(f"{'seconds':24} {'fair':>6} {'first':>10} {'worst':>10} {'end':>10} {'worst':>10}")
        alone = asyncio.run(run_crowd(server, [client for client in clients if client.kind == "fair"]))
        show("fair clients alone", alone)
        server.idle(30)
        beside = asyncio.run(run_crowd(server, clients))
        show("beside the bad ones", beside)
        after = server.idle(30)
    gained = {name: after[name] - before[name] for name in COUNTERS}
    changed = sum(beside[prompt].text != alone[prompt].text for prompt in alone.keys() & beside.keys())
    print(f"{changed} of {len(alone)} greedy answers differ: a batch of another size adds up in another order")
    print(", ".join(f"{name} {value:.0f}" for name, value in gained.items()))
    if not arguments.check:
        return 0
    verdicts = judge(beside, alone, gained, all(after[name] == 0 for name in GAUGES))
    for what, held in verdicts.items():
        print(f"{'PASS' if held else 'FAIL'}: {what}")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
