"""Decode speed of the engine on a GPU, over shapes with random weights, against ceilings measured in the same run.

    python benchmarks/decode.py [--shape 8b|135m] [--rows 1,8,32] [--steps 128] [--profile] [--check]
    python benchmarks/decode.py --context 32768 [--rows 1,8] [--check]

Prints milliseconds a step, in-process, greedy, every overhead in, and the ratio to the cuBLAS chain: all matrix
products of one decode step over the engine's own matrices, in a CUDA graph, timed just before the engine's steps. Of
packed weights (8b-q4km) the ratio is to their bytes at the rate of a copy.

A width that lies between two others must be on the same curve: at most 5 % above the straight line between them.

From 4,096 tokens of context on, prints what attention reaches: the bytes of the keys and values that a step reads over
the device time of its attention kernels, against the copy rate. The rows' earlier keys and values are noise, not read.

--check: exit 1 unless every line with a verdict says PASS.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from ceilings import Chain, chain_matrices, copy_rate, packed_bytes
from kernel_times import attribute, spans, table
from shapes import BACKENDS, SHAPES, RandomCuda, RandomInterpreter, engine, open_random, start, stop

from poot_batch.engine import Engine

# rows: ratio to the cuBLAS chain, or milliseconds a step, that must be reached
RATIO = {"8b": {1: 1.07, 8: 1.09, 32: 1.15, 64: 1.24, 128: 1.34, 256: 1.32}}
STEP_MS = {"135m": {1: 0.9, 32: 1.3, 256: 2.7}, "8b-q4km": {1: 2.4, 8: 3.2, 32: 4.5, 128: 7.0}}
ROWS = {"8b": "1,3,8,32,48,64,128,136,200,256", "8b-q4km": "1,2,4,8,16,32,64,128,256", "135m": "1,32,256"}
CURVE = 1.05  # an odd width over the line between its neighbours
LONG = 4096  # context from which attention is measured
LONG_ROWS = {8192: "1,8,32", 32768: "1,8"}
ATTENTION = 0.80  # of the copy rate
# Below this many bytes of keys and values a layer, a launch's fixed microseconds decide and not the memory.
LEAST_BYTES = 64e6
KERNELS = ("attend", "combine")  # in the names of attention's kernels
PROFILED = 16
REFILL = 4  # steps until as many are in flight as the device takes


def decode(running: Engine, rows: int, steps: int) -> float:
    """Milliseconds a step over `steps` steps in which every row gets a token."""
    began = time.perf_counter()
    done = sum(len(output.tokens) for _ in range(steps) for output in running.step())
    elapsed = (time.perf_counter() - began) * 1000
    if done != steps * rows:
        raise RuntimeError(f"{done} tokens in {steps} steps of {rows} rows")
    return elapsed / steps


def profile(running: Engine, rows: int) -> None:
    """Where a step's time goes: device microseconds by kernel, and the host's own functions."""
    import cProfile
    import pstats

    print(table(attribute(spans(lambda: decode(running, rows, PROFILED)))))
    recorder = cProfile.Profile()
    recorder.enable()
    decode(running, rows, 64)
    recorder.disable()
    pstats.Stats(recorder).sort_stats("tottime").print_stats(14)


def room(arguments: argparse.Namespace) -> int:
    """The tokens that a row asks for: those measured and profiled, and some for the steps around that."""
    return int(arguments.steps) + PROFILED + 32 + (PROFILED + 64 if arguments.profile else 0)


def verdict(passed: bool) -> str:
    return "PASS" if passed else "FAIL"


def off_curve(taken: Mapping[int, float], rows: int, anchors: list[int]) -> float | None:
    """The time of `rows` over the line between the anchors on either side; None at an anchor or outside of them."""
    below, above = [n for n in anchors if n < rows], [n for n in anchors if n > rows]
    if rows in anchors or not below or not above:
        return None
    low, high = max(below), min(above)
    line = taken[low] + (taken[high] - taken[low]) * (rows - low) / (high - low)
    return taken[rows] / line


def decode_lines(arguments: argparse.Namespace, rows: list[int]) -> Iterator[bool]:
    """The table, then the verdicts over the curve."""
    rate = copy_rate() if SHAPES[arguments.shape].packed and arguments.backend == "ptx" else float("nan")
    device = open_random(arguments.backend)
    running = engine(arguments.shape, device, max(rows), max(1024, arguments.context + 2 * arguments.steps + 256))
    ratios, limits = RATIO.get(arguments.shape, {}), STEP_MS.get(arguments.shape, {})
    taken: dict[int, float] = {}
    for n in rows:
        start(running, n, arguments.context, read=False, tokens=room(arguments))
        chain = packed_bytes(device) / rate * 1e3 if device.packed else chain_ms(device, n)
        # The chain's timing waited for the step in flight: without these the first one measured would cost nothing.
        decode(running, n, REFILL)
        taken[n] = decode(running, n, arguments.steps)
        ratio = taken[n] / chain
        what = "reading" if device.packed else "products"
        line = f"{n:4} rows: {taken[n]:7.3f} ms a step, {what} {chain:7.3f} ms, ratio {ratio:.3f}"
        for reach, found in ((ratios.get(n), ratio), (limits.get(n), taken[n])):
            if reach is not None:
                line += f" {verdict(found <= reach)} (reach {reach})"
                yield found <= reach
        print(line, flush=True)
        if arguments.profile:
            profile(running, n)
        stop(running, n)
    anchors = [n for n in rows if n in ratios] if ratios else [n for n in rows if n & (n - 1) == 0]
    for n in rows:
        off = off_curve(taken, n, anchors)
        if off is not None:
            print(f"{n:4} rows: {off:.3f} of the line between its neighbours {verdict(off <= CURVE)} (reach {CURVE})")
            yield off <= CURVE


def chain_ms(device: RandomCuda | RandomInterpreter, rows: int) -> float:
    if isinstance(device, RandomInterpreter):
        return float("nan")
    device.synchronize()
    return Chain(chain_matrices(device), rows).milliseconds()


def attention_lines(arguments: argparse.Namespace, rows: list[int]) -> Iterator[bool]:
    """What attention reaches at a long context."""
    context, shape = arguments.context, SHAPES[arguments.shape]
    rate = copy_rate()
    torch.cuda.empty_cache()
    print(f"copy {rate / 1e12:.2f} TB/s")
    device = open_random(arguments.backend)
    running = engine(arguments.shape, device, max(rows), context + 2 * arguments.steps + 256)
    for n in rows:
        start(running, n, context, read=False, tokens=room(arguments))
        step_ms = decode(running, n, arguments.steps)
        kernels = attribute(spans(partial(decode, running, n, PROFILED)))
        mine = [kernel for kernel in kernels if any(word in kernel.name for word in KERNELS)]
        if not mine:
            raise RuntimeError(f"no kernel is named like {' or '.join(KERNELS)}:\n{table(kernels)}")
        seconds = sum(kernel.microseconds for kernel in mine) / 1e6
        # Rows had this many positions half-way through the profiled steps.
        each = n * (context + 4 + arguments.steps + PROFILED / 2) * shape.kv_bytes()
        reached = each * shape.layers * PROFILED / seconds
        told = f"no verdict: {each / 1e6:.0f} MB a layer are over in {each / rate * 1e6:.0f} us"
        if each >= LEAST_BYTES:
            told = f"{verdict(reached >= ATTENTION * rate)} (reach {ATTENTION})"
            yield reached >= ATTENTION * rate
        print(
            f"{n:4} rows of {context}: {step_ms:7.3f} ms a step, attention {seconds / PROFILED * 1000:7.3f} ms of it, "
            f"{reached / 1e12:.2f} TB/s, {reached / rate:.3f} of the copy rate {told}",
            flush=True,
        )
        if arguments.profile:
            print(table(kernels))
        stop(running, n)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b")
    parser.add_argument("--rows", default=None, help="widths, with commas between")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--backend", choices=BACKENDS, default="ptx")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    long = arguments.context >= LONG
    default = LONG_ROWS.get(arguments.context, "1,8") if long else ROWS.get(arguments.shape, "1,2,3,4")
    rows = sorted({int(n) for n in (arguments.rows or default).split(",")})
    passed = list(attention_lines(arguments, rows) if long else decode_lines(arguments, rows))
    return int(arguments.check and not all(passed))


if __name__ == "__main__":
    sys.exit(main())
