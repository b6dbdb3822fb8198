"""Hostile and broken clients against a real server: nothing may fail but they, and everything must be given back.

    python benchmarks/wire_fuzz.py --check --seconds 600        the full run: PASS or FAIL a line, exit 1 on FAIL
    python benchmarks/wire_fuzz.py --check --cases 300 --seed 5 so many cases, always the same
    python benchmarks/wire_fuzz.py --replay 5:123               the case 123 of seed 5 alone, shown

Malformed heads and bodies (JSON of every POST route, mutated by one who knows its shape), slow, cut, pipelined,
half-closed, huge, silent and deaf clients, random bytes, and between them good requests that must be answered. No
status from 500 up, no crash, no hang, a JSON error wherever the application answered. A fault names its case. A case
is made from the seed and its number alone, but what it meets on the server depends on the others of its time.

After a first fifth, which touches what will be used, file descriptors, threads, memory, rows, blocks and gauges must be
back where they were, and a greedy chat must have the same answer.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from live_server import LiveServer, demonstration_model
from soak import COUNTERS, GAUGES, MIB, filling_plans, run_round
from wire_cases import Limits, heaviest, make_case
from wire_client import run_case

AT_ONCE = 8
ROUNDS = 5
PATIENT_SECONDS = 120  # from here on a run has time for the cases of a patient one
MEMORY_MIB = {"server": 48, "engine": 32}
SETTLE_SECONDS = 15.0
# Granian starts its two last workers when requests first come together closely enough, which may be in any round.
LATE_THREADS = {"server": 2, "engine": 0}
BODY_SECONDS = WRITE_SECONDS = 2
FLAGS = (
    "--max-seq", "256", "--default-max-tokens", "8", "--request-timeout-secs", str(BODY_SECONDS),
    "--write-timeout-secs", str(WRITE_SECONDS), "--max-pending-requests", "1024",
)  # fmt: skip
QUESTION = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 16,
}
TROUBLE = (" ERROR ", " CRITICAL ", "Traceback", "panicked", "never awaited")


@dataclass(frozen=True, slots=True)
class State:
    """An idle server. Descriptors and threads are of both its processes."""

    metrics: dict[str, Any]
    memory: dict[str, int]
    descriptors: dict[str, int]
    threads: dict[str, int]
    greedy: str
    engine: int

    @classmethod
    def of(cls, server: LiveServer) -> State:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=QUESTION, timeout=60)
        answer.raise_for_status()
        metrics = server.idle(SETTLE_SECONDS)
        both = {"server": psutil.Process(server.process.pid), "engine": server.engine()}
        return cls(
            metrics,
            {name: process.memory_info().rss for name, process in both.items()},
            {name: process.num_fds() for name, process in both.items()},
            {name: process.num_threads() for name, process in both.items()},
            answer.json()["choices"][0]["message"]["content"],
            both["engine"].pid,
        )

    @classmethod
    def settled(cls, server: LiveServer, before: State | None) -> State:
        """The state once nothing is over what `before` allows, or after SETTLE_SECONDS: some of it comes back late."""
        deadline = time.perf_counter() + SETTLE_SECONDS
        while True:
            now = cls.of(server)
            if before is None or (now.level(before) and now.lean(before)) or time.perf_counter() > deadline:
                return now
            time.sleep(0.2)

    def lean(self, before: State) -> bool:
        """Whether memory is where it was, but for what allocators may keep."""
        return all(self.memory[name] - before.memory[name] < MEMORY_MIB[name] * MIB for name in self.memory)

    def level(self, before: State) -> bool:
        """Whether there are no more descriptors and threads, but for the HTTP library's own workers."""
        return all(self.descriptors[name] <= before.descriptors[name] for name in self.descriptors) and all(
            self.threads[name] <= before.threads[name] + LATE_THREADS[name] for name in self.threads
        )


@dataclass(slots=True)
class Found:
    """Cases by their kind, and what was wrong with which."""

    seed: int
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    next: int = 0


async def run_cases(limits: Limits, found: Found, *, until: float | None, most: int | None) -> None:
    """Runs cases, AT_ONCE at a time, until the time `until` or the number `most`."""

    async def one_client() -> None:
        while (until is None or time.perf_counter() < until) and (most is None or found.next < most):
            number = found.next
            found.next += 1
            case = make_case(found.seed, number, limits)
            try:
                fault = await run_case(case, limits)
            except OSError as error:
                fault = f"the server cannot be reached: {error}"
            found.kinds[case.kind] += 1
            if fault is not None:
                found.faults.append(f"case {found.seed}:{number} ({case.kind}): {fault}")
                print("FAULT", found.faults[-1], flush=True)

    await asyncio.gather(*(one_client() for _ in range(AT_ONCE)))


async def run_heaviest(limits: Limits, found: Found) -> None:
    waiting = iter(heaviest(limits))

    async def one_client() -> None:
        for case in waiting:
            if (fault := await run_case(case, limits)) is not None:
                found.faults.append(f"the heaviest cases: {fault}")

    await asyncio.gather(*(one_client() for _ in range(AT_ONCE)))


def judge(states: list[State], found: Found, server: LiveServer) -> dict[str, bool]:
    """What must hold, in words."""
    before, after = states[0], states[-1]
    gained = {name: after.metrics[name] - before.metrics[name] for name in COUNTERS}
    total, *ended = gained.values()
    grown = {name: (after.memory[name] - before.memory[name]) / MIB for name in after.memory}
    trouble = [line.strip() for _, line in server.lines if any(word in line for word in TROUBLE)]
    return {
        f"{found.next} cases, {len(found.faults)} faults": not found.faults,
        f"the engine lived: process {before.engine}, {after.engine}": before.engine == after.engine,
        f"each request ended exactly once: {total:.0f} began, {sum(ended):.0f} ended": total == sum(ended),
        f"none failed: {gained['poot_requests_errored_total']:.0f}": gained["poot_requests_errored_total"] == 0,
        "all gauges are zero": all(after.metrics[name] == 0 for name in GAUGES),
        f"descriptors and threads: {before.descriptors} {before.threads}, then {after.descriptors} {after.threads}": (
            after.level(before)
        ),
        f"memory stayed: {', '.join(f'{name} {mib:+.1f} MiB' for name, mib in grown.items())}, "
        f"{MEMORY_MIB} wanted": after.lean(before),
        f"a greedy chat is answered as before: {after.greedy!r}": after.greedy == before.greedy,
        f"the log tells of no trouble: {trouble[:3]}": not trouble,
    }


def run(server: LiveServer, arguments: argparse.Namespace) -> tuple[list[State], Found]:
    patient = arguments.cases is None and arguments.seconds >= PATIENT_SECONDS
    limits = Limits(server.port, BODY_SECONDS, WRITE_SECONDS, patient)
    found = Found(arguments.seed)
    rows = int(server.idle()["poot_slot_capacity"])
    asyncio.run(run_round(server.url, filling_plans(rows), rows))
    if patient:
        asyncio.run(run_heaviest(limits, found))
    states: list[State] = []
    for number in range(1, ROUNDS + 1):
        until = most = None
        if arguments.cases is None:
            until = time.perf_counter() + arguments.seconds / ROUNDS
        else:
            most = arguments.cases * number // ROUNDS
        asyncio.run(run_cases(limits, found, until=until, most=most))
        states.append(State.settled(server, states[0] if states else None))
        memory = ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in states[-1].memory.items())
        print(f"after {found.next} cases: {memory}, descriptors {states[-1].descriptors}", flush=True)
    return states, found


def replay(server: LiveServer, told: str) -> int:
    seed, _, number = told.partition(":")
    # A patient run makes other cases of the same dice: both are shown.
    faults = []
    for patient in (False, True):
        limits = Limits(server.port, BODY_SECONDS, WRITE_SECONDS, patient)
        case = make_case(int(seed), int(number), limits)
        print(f"{'patient run' if patient else 'run'}: {case.kind}: {str(case.actions)[:4000]}")
        faults.append(asyncio.run(run_case(case, limits)))
        print(faults[-1] or "nothing wrong")
    return 1 if any(faults) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless everything held")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cases", type=int, default=None, help="so many cases in place of so many seconds")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--replay", metavar="SEED:NUMBER", default=None, help="run one case alone")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--model", type=Path, default=None, help="default: the demonstration model")
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = time.time_ns() % 2**32
    flags = ("--backend", arguments.backend, *FLAGS)
    with LiveServer.of(arguments.model or demonstration_model(), *flags) as server:
        server.ready()
        if arguments.replay is not None:
            return replay(server, arguments.replay)
        print(f"seed {arguments.seed}", flush=True)
        began = time.perf_counter()
        states, found = run(server, arguments)
        seconds = time.perf_counter() - began
        verdicts = judge(states, found, server)
    print(f"{found.next} cases in {seconds:.0f} s, seed {arguments.seed}: {dict(found.kinds.most_common())}")
    if not arguments.check:
        return 0
    for what, held in verdicts.items():
        print(f"{'PASS' if held else 'FAIL'}: {what}")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
