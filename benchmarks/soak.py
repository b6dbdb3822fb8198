"""Many requests, some of them cancelled at random, against a real server: everything must be given back.

    python benchmarks/soak.py                               print the gauges and the memory before and after
    python benchmarks/soak.py --check                       also print PASS or FAIL a line, and exit 1 on FAIL
    python benchmarks/soak.py --requests 2000 --cancel 0.5 --model FILE

Chats and completions, streamed and buffered, of random lengths; a cancelled one is closed at a random point: before its
answer, or within it. Prompts that fill the cache, and a first round, touch all memory that will be used; after the
second round the gauges must be zero, every request ended exactly once, and memory where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from live_server import LiveServer, demonstration_model

WORDS = ("the", "a", "two", "red", "small", "river", "house", "bird", "walks", "sings", "under", "over", "and", "then")
MEMORY_MIB = 16  # what allocators may yet keep after the first round: growth ends after some two hundred requests
GAUGES = ("poot_inflight_requests", "poot_queue_depth", "poot_batch_size", "poot_kv_cache_blocks_used")
COUNTERS = ("poot_requests_total", "poot_requests_completed_total", "poot_requests_cancelled_total",
            "poot_requests_errored_total")  # fmt: skip
MIB = 2**20
MAX_SEQ = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """One request. `leave_after` events its client closes a stream, or after `leave_seconds` a buffered call."""

    path: str
    body: dict[str, Any]
    leave_after: int | None = None
    leave_seconds: float | None = None


def make_plan(dice: random.Random, cancel: float) -> Plan:
    text = " ".join(dice.choices(WORDS, k=dice.randint(2, 8)))
    body: dict[str, Any] = {"max_tokens": dice.randint(1, 10), "seed": dice.randrange(2**32)}
    body |= dice.choice(({"temperature": 0}, {"temperature": 0.8}, {"top_p": 0.9, "presence_penalty": 0.5}))
    body |= dice.choice(({}, {}, {"stop": ["the", "\n"]}))
    if dice.random() < 0.15:
        path, asked = "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}
    else:
        path, asked = "/v1/completions", {"prompt": text}
    streamed, cancelled = dice.random() < 0.6, dice.random() < cancel
    if cancelled:
        body |= {"max_tokens": 150, "ignore_eos": True}
        body.pop("stop", None)
    return Plan(
        path,
        {**body, **asked, "stream": streamed},
        leave_after=dice.randint(0, 6) if cancelled and streamed else None,
        leave_seconds=dice.uniform(0.0, 0.4) if cancelled and not streamed else None,
    )


async def run_plan(client: httpx.AsyncClient, plan: Plan) -> str:
    """How the request went: "completed", "cancelled", or what was wrong with its answer."""
    if plan.body["stream"]:
        return await _run_stream(client, plan)
    try:
        async with asyncio.timeout(plan.leave_seconds):
            answer = await client.post(plan.path, json=plan.body)
    except TimeoutError:
        return "cancelled"
    if answer.status_code != 200:
        return f"status {answer.status_code}"
    return _judge(answer.json()["choices"][0]["finish_reason"])


async def _run_stream(client: httpx.AsyncClient, plan: Plan) -> str:
    finish, events = None, 0
    async with client.stream("POST", plan.path, json=plan.body) as answer:
        if answer.status_code != 200:
            return f"status {answer.status_code}"
        if plan.leave_after == 0:
            return "cancelled"
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                return _judge(finish)
            if not line.startswith("data: "):
                continue
            events += 1
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return f"error {event['error']['code']}"
            finish = event["choices"][0]["finish_reason"] or finish
            if events == plan.leave_after:
                return "cancelled"
    return "a stream without an end"


def _judge(finish: str | None) -> str:
    return "completed" if finish in ("stop", "length") else f"finish reason {finish}"


async def run_round(url: str, plans: list[Plan], at_once: int) -> Counter[str]:
    """Runs all plans, `at_once` of them at a time; how many went which way."""
    waiting, ends = iter(plans), Counter[str]()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:

        async def one_client() -> None:
            for plan in waiting:
                ends[await run_plan(client, plan)] += 1

        await asyncio.gather(*(one_client() for _ in range(at_once)))
    return ends


def filling_plans(rows: int) -> list[Plan]:
    """Prompts that together write every block of the cache once: a pool's pages are the process's only when touched."""
    # No two begin alike: what they had in common would be shared.
    prompts = [[10 + (row + index) % 1000 for index in range(MAX_SEQ - 1)] for row in range(rows)]
    return [Plan("/v1/completions", {"prompt": prompt, "max_tokens": 1, "stream": False}) for prompt in prompts]


@dataclass(frozen=True, slots=True)
class State:
    """An idle server: its metrics and the resident bytes of its processes."""

    metrics: dict[str, Any]
    memory: dict[str, int]

    @classmethod
    def of(cls, server: LiveServer) -> State:
        return cls(server.idle(), server.memory())


def judge(before: State, after: State, ends: Counter[str], requests: int) -> dict[str, bool]:
    """What must hold after the second round, in words."""
    gained = {name: after.metrics[name] - before.metrics[name] for name in COUNTERS}
    total, *ended = gained.values()
    grown = {name: (after.memory[name] - before.memory[name]) / MIB for name in after.memory}
    # A client may leave before the engine has heard of its request, and may stop reading after the engine was done.
    return {
        f"every request went well: {dict(ends)}": ends["completed"] + ends["cancelled"] == requests,
        f"each ended exactly once: {total:.0f} began, {sum(ended):.0f} ended": total == sum(ended),
        f"none failed: {gained['poot_requests_errored_total']:.0f}": gained["poot_requests_errored_total"] == 0,
        f"all that were read to their end completed: {gained['poot_requests_completed_total']:.0f}": (
            gained["poot_requests_completed_total"] >= ends["completed"]
        ),
        "all gauges are zero": all(after.metrics[name] == 0 for name in GAUGES),
        f"memory stayed: {', '.join(f'{name} {mib:+.1f} MiB' for name, mib in grown.items())}, "
        f"{MEMORY_MIB} wanted": all(mib < MEMORY_MIB for mib in grown.values()),
    }


def show(rounds: dict[str, State]) -> None:
    print(f"{'':32}" + "".join(f"{name:>14}" for name in rounds))
    for name in (*GAUGES, *COUNTERS):
        print(f"{name:32}" + "".join(f"{state.metrics[name]:14.0f}" for state in rounds.values()))
    for name in ("server", "engine"):
        print(f"{name + ', resident MiB':32}" + "".join(f"{s.memory[name] / MIB:14.1f}" for s in rounds.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless everything held")
    parser.add_argument("--requests", type=int, default=200, help="of the second round; the first has half as many")
    parser.add_argument("--cancel", type=float, default=0.2, help="share of requests that are cancelled")
    parser.add_argument("--at-once", type=int, default=8, help="clients")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--model", type=Path, default=None, help="default: the demonstration model")
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    warming = [make_plan(dice, arguments.cancel) for _ in range(max(1, arguments.requests // 2))]
    plans = [make_plan(dice, arguments.cancel) for _ in range(arguments.requests)]
    flags = ("--backend", arguments.backend, "--max-seq", str(MAX_SEQ))
    with LiveServer.of(arguments.model or demonstration_model(), *flags) as server:
        server.ready()
        started = State.of(server)
        rounds = {"started": started}
        rows = int(started.metrics["poot_slot_capacity"])
        asyncio.run(run_round(server.url, filling_plans(rows), rows))
        asyncio.run(run_round(server.url, warming, arguments.at_once))
        before = rounds["warm"] = State.of(server)
        began = time.perf_counter()
        ends = asyncio.run(run_round(server.url, plans, arguments.at_once))
        seconds = time.perf_counter() - began
        after = rounds["after"] = State.of(server)
    show(rounds)
    tokens = after.metrics["poot_completion_tokens_total"] - before.metrics["poot_completion_tokens_total"]
    print(f"{arguments.requests} requests in {seconds:.1f} s, {tokens / seconds:.0f} tokens/s, seed {arguments.seed}")
    verdicts = judge(before, after, ends, arguments.requests)
    if not arguments.check:
        return 0
    for what, held in verdicts.items():
        print(f"{'PASS' if held else 'FAIL'}: {what}")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
