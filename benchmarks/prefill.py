"""Prompt speed of the engine on a GPU: milliseconds from a request to its first token, over random weights.

    python benchmarks/prefill.py [--shape 8b] [--prompts 2048,8192] [--repeats 5] [--check]

Prints the median of the repeats of all rounds, in-process, greedy, alone on the device, every overhead in, and the
ratio to the products: those of the chunks that the prompt is read in, by cuBLAS over the engine's own matrices, timed
after all prompts, since they leave the device hotter and slower than prompts do. Prompts run for a while before they
are timed, so that short ones find no cooler device than long ones; and all lengths take turns, since a device that
draws all the power that it may gets slower and faster as the minutes pass.
Other lengths must be on the curve of the table's: at most 5 % above the straight line between their neighbours.

--check: exit 1 unless every line with a verdict says PASS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator

import torch
from ceilings import Chain, chain_matrices
from decode import CURVE, off_curve
from kernel_times import attribute, spans, table
from shapes import BACKENDS, SHAPES, RandomCuda, engine, open_random

from poot_batch.driver.startup import most_tokens
from poot_batch.engine import Engine
from poot_batch.request import GenerateRequest, SamplingParams

# prompt: milliseconds to the first token that must be reached
REACH = {"8b": {2048: 49.0, 8192: 214.0}, "8b-q4km": {2048: 60.0}}
PROMPTS = {
    "8b": "256,300,512,1024,1100,2048,4096,5000,8192", "8b-q4km": "128,512,2048,8192", "135m": "256,2048,8192",
}  # fmt: skip
ANCHORS = (256, 512, 1024, 2048, 4096, 8192)
ROUNDS, WARM_SECONDS = 3, 0.3
GREEDY = SamplingParams(temperature=0.0)


class Prompts:
    """Random prompts, no two of which begin the same, so that none is found in the prefix cache."""

    def __init__(self, running: Engine) -> None:
        self.running = running
        self._generator = torch.Generator().manual_seed(0)
        self._id = 0

    def first_token(self, length: int) -> float:
        """Milliseconds from the submission of a prompt to its first token, which is also its last."""
        self._id += 1
        ids = torch.randint(0, self.running.info.vocab_size, (length,), generator=self._generator).tolist()
        request = GenerateRequest(id=self._id, prompt=tuple(ids), sampling=GREEDY, max_tokens=1)
        began = time.perf_counter()
        self.running.submit(request)
        taken = 0.0
        while self.running.busy:
            for output in self.running.step():
                if output.finish == "error":
                    raise RuntimeError(f"a prompt of {length} failed: {output.error_message}")
                taken = (time.perf_counter() - began) * 1000
        return taken


def chunks(length: int, most: int) -> list[int]:
    """The lengths of the steps that read a prompt."""
    return [most] * (length // most) + [length % most] * (length % most > 0)


def products_ms(device: RandomCuda, parts: list[int]) -> float:
    """The decoder's own products over chunks of these lengths: the last matrix is the head's."""
    matrices = chain_matrices(device)[:-1]
    times = {part: Chain(matrices, part).milliseconds() for part in set(parts)}
    return sum(times[part] for part in parts)


def lines(arguments: argparse.Namespace, lengths: list[int]) -> Iterator[bool]:
    device = open_random(arguments.backend)
    running = engine(arguments.shape, device, arguments.rows, max(lengths) + 64)
    prompts, times = Prompts(running), {length: list[float]() for length in lengths}
    for length in lengths * ROUNDS:
        began = time.perf_counter()
        while time.perf_counter() - began < WARM_SECONDS:
            prompts.first_token(length)
        times[length] += [prompts.first_token(length) for _ in range(arguments.repeats)]
    taken = {length: statistics.median(found) for length, found in times.items()}
    for length in lengths:
        ceiling = float("nan")
        if isinstance(device, RandomCuda) and not device.packed:
            ceiling = products_ms(device, chunks(length, most_tokens(device)))
        rate = length / taken[length]
        told = f"{length:6} tokens: {taken[length]:8.2f} ms, {rate:7.1f} tokens/ms, products {ceiling:8.2f} ms, "
        told += f"ratio {taken[length] / ceiling:.3f}"
        reach = REACH.get(arguments.shape, {}).get(length)
        if reach is not None:
            told += f" {'PASS' if taken[length] <= reach else 'FAIL'} (reach {reach} ms)"
            yield taken[length] <= reach
        print(told, flush=True)
        if arguments.profile:
            print(table(attribute(spans(lambda length=length: prompts.first_token(length)))))
    for length in lengths:
        off = off_curve(taken, length, [n for n in taken if n in ANCHORS])
        if off is not None:
            passed = off <= CURVE
            print(f"{length:6} tokens: {off:.3f} of the line between its neighbours {'PASS' if passed else 'FAIL'}")
            yield passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b")
    parser.add_argument("--prompts", default=None, help="lengths, with commas between")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5, help="of a round")
    parser.add_argument("--backend", choices=BACKENDS, default="ptx")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    lengths = sorted({int(n) for n in (arguments.prompts or PROMPTS.get(arguments.shape, "20,40")).split(",")})
    passed = list(lines(arguments, lengths))
    return int(arguments.check and not all(passed))


if __name__ == "__main__":
    sys.exit(main())
