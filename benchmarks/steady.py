"""After start nothing compiles, captures or allocates: counted over steps of a mixed load, on random weights.

    python benchmarks/steady.py [--shape 135m] [--rows 64] [--steps 1000] [--full] [--trace] [--check]

Requests arrive and are cancelled at random; prompts of 1 to 700 tokens; greedy, sampled, penalised, biased rows, some
with log-probabilities, in any mixture. Counting begins before the first step: nothing is warmed up. At the end an event
of each kind is made on purpose, which must be counted. --full lets the KV pools take all of the device's memory and
keeps them full: requests wait for room, and no memory is left for a mistake.

--check: exit 1 unless every count is 0. --trace names where torch was asked for memory.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from shapes import BACKENDS, LONGEST, SHAPES, engine, open_random

from poot_batch.engine import Engine
from poot_batch.request import GenerateRequest, SamplingParams

LONGEST_PROMPT = 700  # longer than a step has tokens, so that prompts are read in several
COUNTERS = {
    "allocation.all.allocated": "torch allocations on the device",
    "segment.all.allocated": "torch segments from the driver",
    "num_alloc_retries": "torch retries after a full device",
    "num_ooms": "torch out of memory",
}


class Events:
    """Counts what must not happen, from its making on."""

    def __init__(self) -> None:
        self.captures = self.compiles = self.loads = 0
        self._on_device = torch.cuda.is_available()
        self._before = self._stats()
        self._free = self._least = self._free_now()
        self.fell_at: list[int] = []
        self._watch_captures()
        self._watch_triton()

    def look(self, step: int) -> None:
        """Note whether the driver has less free memory than ever before."""
        free = self._free_now()
        if free < self._least:
            self._least = free
            self.fell_at.append(step)

    def counts(self) -> dict[str, int]:
        """What happened, by name."""
        now = self._stats()
        found = {COUNTERS.get(name, name): now[name] - self._before[name] for name in now}
        found["bytes that the driver has less free"] = self._free - self._least
        found["CUDA graph captures"] = self.captures
        found["Triton compilations"] = self.compiles
        found["Triton kernels loaded"] = self.loads
        return found

    def _stats(self) -> dict[str, int]:
        if not self._on_device:
            return {}
        stats: dict[str, Any] = torch.cuda.memory_stats()
        found = {name: int(stats.get(name, 0)) for name in COUNTERS}
        pinned: dict[str, Any] = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
        return found | {"pinned host allocations": int(pinned.get("num_host_alloc", 0))}

    def _free_now(self) -> int:
        return torch.cuda.mem_get_info()[0] if self._on_device else 0

    def _watch_captures(self) -> None:
        graph: Any = torch.cuda.CUDAGraph
        before = graph.capture_begin

        def begin(*arguments: Any, **options: Any) -> Any:
            self.captures += 1
            return before(*arguments, **options)

        graph.capture_begin = begin

    def _watch_triton(self) -> None:
        try:
            from triton import knobs
        except ImportError:
            return
        runtime: Any = knobs.runtime

        def compiled(*_: Any, **__: Any) -> None:
            self.compiles += 1

        def loaded(*_: Any, **__: Any) -> None:
            self.loads += 1

        runtime.jit_post_compile_hook = compiled
        add = getattr(getattr(runtime, "kernel_load_start_hook", None), "add", None)
        if add is not None:
            add(loaded)


def planted(events: Events) -> dict[str, int]:
    """Counts of what must be seen, after one allocation, one capture and one compilation made on purpose."""
    import triton

    def nothing(x):  # type: ignore[no-untyped-def]
        pass

    before = events.counts()
    held = torch.zeros(2**20, device="cuda").add_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held.add_(1)
    triton.jit(nothing)[(1,)](held)
    torch.cuda.synchronize()
    after = events.counts()
    names = (COUNTERS["allocation.all.allocated"], "CUDA graph captures", "Triton compilations")
    return {name: after[name] - before[name] for name in names}


@dataclass(frozen=True, slots=True)
class Load:
    """How the load is mixed. `keep` requests are open at least; of those a share `whole` reserves a row's every
    position."""

    keep: int
    arrive: float
    cancel: float
    whole: float


class Clients:
    """Requests made by dice, submitted and cancelled between steps."""

    def __init__(self, running: Engine, load: Load, seed: int) -> None:
        self._engine, self._load, self._dice = running, load, random.Random(seed)
        self._open: dict[int, None] = {}
        self._next = 1
        self.ends: Counter[str] = Counter()
        self.waited = 0  # steps at which a request waited for room

    def turn(self) -> None:
        """What clients do before a step."""
        dice, load = self._dice, self._load
        while len(self._open) < load.keep or dice.random() < load.arrive:
            self._submit()
        if self._open and dice.random() < load.cancel:
            self._cancel(dice.choice(tuple(self._open)))

    def step(self) -> None:
        for output in self._engine.step():
            if output.finish is not None:
                self.ends[output.finish] += 1
                self._open.pop(output.request_id, None)
                if output.finish == "error":
                    print(f"request {output.request_id}: {output.error_message}")
        self.waited += self._engine.stats().queue_depth > 0

    def leave(self) -> None:
        """Cancel everything and run what is in flight."""
        for request_id in tuple(self._open):
            self._cancel(request_id)
        while self._engine.busy:
            self.step()

    def _submit(self) -> None:
        dice, info = self._dice, self._engine.info
        longest = min(LONGEST_PROMPT, info.max_seq - 64)
        count = dice.choice((1, 2, dice.randint(1, 40), dice.randint(1, 40), dice.randint(1, longest)))
        prompt = tuple(dice.randrange(info.vocab_size) for _ in range(count))
        tokens = None if dice.random() < self._load.whole else dice.randint(1, 60)
        sampling = self._sampling()
        request = GenerateRequest(id=self._next, prompt=prompt, sampling=sampling, max_tokens=tokens,
                                  min_tokens=dice.choice((0, 0, 0, 1)))  # fmt: skip
        self._engine.submit(request)
        self._open[self._next] = None
        self._next += 1

    def _sampling(self) -> SamplingParams:
        dice = self._dice
        chosen: dict[str, Any] = dice.choice(
            ({"temperature": 0.0}, {"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 40, "temperature": 0.7},
             {"min_p": 0.05, "seed": dice.randrange(2**32)})
        )  # fmt: skip
        chosen |= dice.choice(({}, {}, {"presence_penalty": 0.5, "repetition_penalty": 1.2},
                               {"logit_bias": ((3, 5.0), (7, -100.0))}))  # fmt: skip
        return SamplingParams(**chosen, logprobs=dice.choice((None, None, 0, 5, 20)))

    def _cancel(self, request_id: int) -> None:
        self._engine.cancel(request_id)
        self._open.pop(request_id, None)
        self.ends["abort"] += 1


def traced(run: Callable[[], None]) -> None:
    """Run with torch's record of allocations on, and print where the distinct ones were asked for."""
    record: Any = torch.cuda.memory
    record._record_memory_history(max_entries=100000, stacks="python")
    run()
    traces = record._snapshot()["device_traces"][0]
    record._record_memory_history(enabled=None)
    places: Counter[str] = Counter()
    for entry in traces:
        if entry["action"] in ("alloc", "segment_alloc"):
            frames = [f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in entry["frames"][:6]]
            places[f"{entry['action']}\n      " + "\n      ".join(frames)] += 1
    for place, number in places.most_common(12):
        print(f"    {number} x {place}")


def run(clients: Clients, running: Engine, events: Events, steps: int) -> None:
    while running.stats().steps < steps:
        clients.turn()
        clients.step()
        events.look(running.stats().steps)
    clients.leave()
    events.look(running.stats().steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="135m")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max-seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--full", action="store_true", help="rows of the model's full length: pools take all memory")
    parser.add_argument("--backend", choices=BACKENDS, default="ptx")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    device = open_random(arguments.backend)
    running = engine(arguments.shape, device, arguments.rows, LONGEST if arguments.full else arguments.max_seq)
    rows = running.info.rows
    load = Load(keep=rows // 2, arrive=0.3, cancel=0.1, whole=0.0)
    if arguments.full:
        load = Load(keep=rows, arrive=0.3, cancel=0.4, whole=0.5)
    clients, failed = Clients(running, load, arguments.seed), None
    device.synchronize()
    events = Events()
    try:
        if arguments.trace:
            traced(lambda: run(clients, running, events, arguments.steps))
        else:
            run(clients, running, events, arguments.steps)
    except Exception as error:
        traceback.print_exc()
        failed = error
    stats = running.stats()
    ended = ", ".join(f"{number} {reason}" for reason, number in clients.ends.items())
    print(
        f"{stats.steps} steps, {stats.requests_total} requests ({ended}), {stats.prompt_tokens} prompt tokens, "
        f"{stats.completion_tokens} sampled; requests waited for room at {clients.waited} steps"
    )
    counts = events.counts() | {"failed requests": clients.ends["error"] + (failed is not None)}
    for name, count in counts.items():
        at = f" (at steps {events.fell_at[:8]})" if count and name.startswith("bytes") else ""
        print(f"{'FAIL' if count else 'PASS'} {count} {name}{at}")
    seen = planted(events) if arguments.backend == "ptx" else {}
    for name, count in seen.items():
        print(f"{'PASS' if count else 'FAIL'} {count} {name} when one is planted")
    return int(arguments.check and (any(counts.values()) or not all(seen.values())))


if __name__ == "__main__":
    sys.exit(main())
