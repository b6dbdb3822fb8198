"""How fast poot-serve starts and answers on this machine's processor, through HTTP.

    python benchmarks/serve_cpu.py                            print the tables
    python benchmarks/serve_cpu.py --check                    also compare streams with buffered answers: PASS or FAIL
    python benchmarks/serve_cpu.py --peer http://HOST:PORT    measure a running server of the same model beside it

Of a prompt of 512 tokens the time to the first token counts, of decoding the time from the first token to the last.
Every figure is the median of several runs with prompts that share no prefix. The ceiling of one stream's decoding is
the rate at which this machine reads memory, measured in the same run: each token reads all weights once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from live_server import READY, LiveServer, demonstration_model

PROMPT_TOKENS, DECODE_TOKENS = 512, 64
RUNS = 3
STREAMS = (1, 4)
BANDWIDTH_BYTES = 256 * 2**20
# Phase of the start -> the line on stderr that ends it.
PHASES = {
    "interpreter, imports": "model: started",
    "headers": "device: started",
    "torch, device": "weights: started",
    "weights": "entries: started",
    "entries": " INFO ready after ",
    "listener": READY,
}
TEXTS = ("Once upon a time", "def fibonacci(n):", "Москва — столица", "1, 2, 3, 4,")


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens a second: of a prompt, and of decoding by the number of concurrent streams, all of them together."""

    prompt: float
    decode: dict[int, float]


@dataclass(frozen=True, slots=True)
class Timed:
    """A stream's first and last event, in seconds since it was asked for, and the number of its tokens."""

    first: float
    last: float
    tokens: int


async def timed_stream(client: httpx.AsyncClient, body: dict[str, Any]) -> Timed:
    began = time.perf_counter()
    first = last = 0.0
    tokens = 0
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/completions", json=asked) as answer:
        if answer.status_code != 200:
            raise RuntimeError((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            if event["choices"] and not event["choices"][0]["finish_reason"]:
                last = time.perf_counter() - began
                first = first or last
    return Timed(first, last, tokens)


async def measure(url: str) -> Speeds:
    dice = random.Random(1)
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]

        def body(prompt_tokens: int, max_tokens: int) -> dict[str, Any]:
            prompt = [dice.randrange(1000, 20_000) for _ in range(prompt_tokens)]
            return {
                "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            }  # fmt: skip

        await timed_stream(client, body(16, 4))
        firsts = [(await timed_stream(client, body(PROMPT_TOKENS, 2))).first for _ in range(RUNS)]
        decode = {}
        for streams in STREAMS:
            rates = []
            for _ in range(RUNS):
                asked = [timed_stream(client, body(8, DECODE_TOKENS)) for _ in range(streams)]
                timed = await asyncio.gather(*asked)
                rates.append(sum((one.tokens - 1) / (one.last - one.first) for one in timed))
            decode[streams] = statistics.median(rates)
    return Speeds(PROMPT_TOKENS / statistics.median(firsts), decode)


def read_bandwidth() -> float:
    """Bytes a second that all threads together read from memory: the best of several sums of an array."""
    data = torch.ones(BANDWIDTH_BYTES // 4)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - began)
    return BANDWIDTH_BYTES / min(times)


def show_start(server: LiveServer) -> None:
    print(f"{'start':24} seconds")
    before = 0.0
    for phase, line in PHASES.items():
        at = server.until(line)
        print(f"  {phase:22} {at - before:7.2f}")
        before = at
    print(f"{'command to ready':24} {before:7.2f}")


def show_speeds(speeds: Speeds, peer: Speeds | None, ceiling: float) -> None:
    rows = [(f"prompt of {PROMPT_TOKENS}", speeds.prompt, peer.prompt if peer else None)]
    for streams, rate in speeds.decode.items():
        rows.append((f"decode, {streams} at once", rate, peer.decode[streams] if peer else None))
    print(f"\n{'tokens/s':24} {'poot':>7} {'peer':>7}   ratio")
    for name, ours, theirs in rows:
        beside = f"{theirs:7.1f} {ours / theirs:7.2f}" if theirs else f"{'-':>7} {'-':>7}"
        print(f"{name:24} {ours:7.1f} {beside}")
    print(f"{'ceiling of decode, 1':24} {ceiling:7.1f}         {speeds.decode[1] / ceiling:7.2f}")
    if peer is None:
        print("no peer was measured: start one with the same model, such as llama-server, and pass --peer URL")


def differences(url: str) -> list[str]:
    """The prompts whose streamed text is not the buffered one."""
    found = []
    with httpx.Client(base_url=url, timeout=120) as client:
        for text in TEXTS:
            body = {"prompt": text, "max_tokens": 24, "temperature": 0}
            whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
            lines = client.post("/v1/completions", json={**body, "stream": True}).text.splitlines()
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
            if "".join(event["choices"][0]["text"] for event in events) != whole:
                found.append(text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless streams equal buffered answers")
    parser.add_argument("--model", type=Path, default=None, help="default: the demonstration model")
    parser.add_argument("--peer", metavar="URL", default=None, help="another server of the same model")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} before the run{' (not quiet!)' if load > 1.5 else ''}\n")
    with LiveServer.of(arguments.model or demonstration_model(), "--backend", "cpu", "--max-seq", "1024") as server:
        show_start(server.ready())
        speeds = asyncio.run(measure(server.url))
        weights = server.metrics()["poot_gpu_weight_bytes"]
        wrong = differences(server.url) if arguments.check else []
    peer = asyncio.run(measure(arguments.peer)) if arguments.peer else None
    show_speeds(speeds, peer, read_bandwidth() / weights)
    if not arguments.check:
        return 0
    print(f"FAIL: streams differ from buffered answers of {wrong}" if wrong else "PASS: streams equal buffered answers")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
