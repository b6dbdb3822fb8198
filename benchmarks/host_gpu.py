"""Host microseconds of a decoding step on a GPU, by what they are spent on, over a shape with random weights.

    python benchmarks/host_gpu.py [--shape 135m] [--rows 1,32,256] [--steps 300] [--check]

    plan      who runs in the step
    launch    the driver's submission: pack and send the step's block, replay the entries, enqueue the fetch
    wait      for the step before: time that the device takes and the host does not
    commit    what its tokens mean for their requests
    deliver   the frame that carries them to the server
    rest      of the loop, counters and clocks

Medians of a step. While the host has to wait, its own part is hidden behind the device. --check wants it to wait for a
tenth of each step at least, and plan and commit of 256 rows within 300 microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from shapes import BACKENDS, SHAPES, engine, open_random, start, stop

from poot_batch.engine import Engine
from poot_batch.process.frames import encode, pack_outputs

LIMIT_US, LIMIT_ROWS = 300.0, 256
LEAST_WAIT = 0.1  # of a step
PARTS = ("plan", "launch", "wait", "commit", "deliver", "rest", "step")
CONTEXT = 16


class Stopwatch:
    """Times calls that are put through it. Seconds by part since the last `take`."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    def around(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self._spent[part] = self._spent.get(part, 0.0) + time.perf_counter() - began

        return timed

    def take(self) -> dict[str, float]:
        spent, self._spent = self._spent, {}
        return spent


def instrument(running: Engine) -> Stopwatch:
    """Put a stopwatch around the engine's calls of its own parts."""
    watch = Stopwatch()
    loop: Any = running
    for part, owner, name in (
        ("plan", loop._scheduler, "admit"),
        ("plan", loop._scheduler, "plan"),
        ("launch", loop._driver, "submit"),
        ("wait", loop._driver, "collect"),
        ("commit", loop._committer, "commit"),
    ):
        setattr(owner, name, watch.around(part, getattr(owner, name)))
    return watch


def measure(running: Engine, watch: Stopwatch, rows: int, steps: int) -> dict[str, float]:
    """Median microseconds of a step by part."""
    taken: dict[str, list[float]] = {part: [] for part in PARTS}
    start(running, rows, CONTEXT)
    watch.take()
    for _ in range(steps):
        began = time.perf_counter()
        outputs = running.step()
        stepped = time.perf_counter()
        encode(pack_outputs(outputs))
        ended = time.perf_counter()
        spent = watch.take()
        spent |= {"deliver": ended - stepped, "step": ended - began, "rest": stepped - began - sum(spent.values())}
        for part in PARTS:
            taken[part].append(spent.get(part, 0.0))
    stop(running, rows)
    return {part: statistics.median(times) * 1e6 for part, times in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="135m")
    parser.add_argument("--rows", default="1,32,256", help="widths, with commas between")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--backend", choices=BACKENDS, default="ptx")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    widths = sorted({int(n) for n in arguments.rows.split(",")})
    running = engine(
        arguments.shape, open_random(arguments.backend), max(widths), max(256, CONTEXT + arguments.steps + 16)
    )
    watch, passed = instrument(running), []
    print("rows  " + "  ".join(f"{part:>9}" for part in PARTS) + "   host us (all but the wait)")
    for rows in widths:
        found = measure(running, watch, rows, arguments.steps)
        host, own = found["step"] - found["wait"], found["plan"] + found["commit"]
        hidden = found["wait"] >= LEAST_WAIT * found["step"]
        passed.append(hidden and (rows != LIMIT_ROWS or own <= LIMIT_US))
        told = f" (plan and commit {own:.0f}, {LIMIT_US:.0f} wanted)" if rows == LIMIT_ROWS else ""
        columns = "  ".join(f"{found[part]:9.1f}" for part in PARTS)
        print(f"{rows:4}  {columns}   {host:9.1f} {'PASS' if passed[-1] else 'FAIL'}{told}", flush=True)
    return int(arguments.check and not all(passed))


if __name__ == "__main__":
    sys.exit(main())
