"""Throughput of the engine on a GPU, in-process, over random weights: many requests at once, and a long prompt between.

    python benchmarks/throughput.py [--shape 8b] [--requests 256] [--prompt 1024] [--answer 128] [--check]
    python benchmarks/throughput.py --only stall [--long 32768] [--running 32]

all: seconds from the submission of all requests to the end of the last one, greedy, and tokens a second, against a
floor: the products of the prompts' chunks and of the decode steps, by cuBLAS over the engine's own matrices.
stall: the worst time between two tokens of rows that run, when a long prompt arrives.

--check: exit 1 unless every line with a verdict says PASS.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator

import torch
from ceilings import Chain, chain_matrices
from shapes import BACKENDS, SHAPES, RandomCuda, engine, open_random

from poot_batch.driver.startup import most_tokens
from poot_batch.engine import Engine
from poot_batch.request import GenerateRequest, SamplingParams

REACH_SECONDS = {("8b", 256, 1024, 128): 8.3}
REACH_GAP_MS = {"8b": 120.0}
GREEDY = SamplingParams(temperature=0.0)
LONG_ID = 10**6


def request(running: Engine, ident: int, prompt: int, answer: int, seed: int) -> GenerateRequest:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, running.info.vocab_size, (prompt,), generator=generator).tolist()
    return GenerateRequest(id=ident, prompt=tuple(ids), sampling=GREEDY, max_tokens=answer)


def finish(running: Engine) -> dict[int, int]:
    """Run until nothing is left; the tokens that each request got."""
    got: dict[int, int] = {}
    while running.busy:
        for output in running.step():
            if output.finish == "error":
                raise RuntimeError(f"request {output.request_id} failed: {output.error_message}")
            got[output.request_id] = got.get(output.request_id, 0) + len(output.tokens)
    return got


def floor(device: RandomCuda, requests: int, prompt: int, answer: int) -> float:
    """Seconds of the products alone."""
    matrices, most = chain_matrices(device), most_tokens(device)
    reading = Chain(matrices[:-1], most).milliseconds() * math.ceil(requests * prompt / most)
    return (reading + Chain(matrices, requests).milliseconds() * answer) / 1000


def together(arguments: argparse.Namespace) -> Iterator[bool]:
    device = open_random(arguments.backend)
    requests, prompt, answer = arguments.requests, arguments.prompt, arguments.answer
    running = engine(arguments.shape, device, requests, prompt + answer + 16)
    for index in range(8):
        running.submit(request(running, index, prompt, 4, seed=index))
    finish(running)
    least = floor(device, requests, prompt, answer) if isinstance(device, RandomCuda) else float("nan")
    asked = [request(running, index, prompt, answer, seed=1000 + index) for index in range(requests)]
    began = time.perf_counter()
    for it in asked:
        running.submit(it)
    got = finish(running)
    taken = time.perf_counter() - began
    if got != dict.fromkeys(range(requests), answer):
        raise RuntimeError("a request got other tokens than it asked for")
    told = f"{requests} requests of {prompt} in, {answer} out: {taken:.2f} s, "
    told += f"{requests * answer / taken:.0f} tokens/s out, {requests * prompt / taken:.0f} in; products {least:.2f} s"
    reach = REACH_SECONDS.get((arguments.shape, requests, prompt, answer))
    if reach is not None:
        told += f" {'PASS' if taken <= reach else 'FAIL'} (reach {reach} s)"
        yield taken <= reach
    print(told, flush=True)


def stall(arguments: argparse.Namespace) -> Iterator[bool]:
    device = open_random(arguments.backend)
    running = engine(arguments.shape, device, arguments.running + 1, arguments.long + 64)
    for index in range(arguments.running):
        running.submit(request(running, index, 128, arguments.long // 8, seed=index))
    long = request(running, LONG_ID, arguments.long, 1, seed=arguments.running)
    last, gaps, first = dict[int, float](), list[float](), 0.0
    reading, steps = False, 0
    while not first and running.busy:
        outputs, now = running.step(), time.perf_counter()
        for output in outputs:
            if output.request_id == LONG_ID and output.tokens:
                first = now
            elif output.tokens:
                if reading and output.request_id in last:
                    gaps.append((now - last[output.request_id]) * 1000)
                last[output.request_id] = now
        steps += 1
        # The budget of prompts has learned by now what a token of them costs.
        if not reading and len(last) == arguments.running and steps > 64:
            began, reading = now, True
            running.submit(long)
    for index in range(arguments.running):
        running.cancel(index)
    if not first or not gaps:
        raise RuntimeError("the rows ended before the long prompt was read")
    told = f"a prompt of {arguments.long} beside {arguments.running} rows: worst gap {max(gaps):.1f} ms, "
    told += f"median {sorted(gaps)[len(gaps) // 2]:.1f} ms, its first token after {first - began:.2f} s"
    reach = REACH_GAP_MS.get(arguments.shape)
    if reach is not None:
        told += f" {'PASS' if max(gaps) <= reach else 'FAIL'} (reach {reach} ms)"
        yield max(gaps) <= reach
    print(told, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b")
    parser.add_argument("--only", choices=("all", "stall"), default=None)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--long", type=int, default=32768)
    parser.add_argument("--running", type=int, default=32)
    parser.add_argument("--backend", choices=BACKENDS, default="ptx")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    passed: list[bool] = []
    for name, case in (("all", together), ("stall", stall)):
        if arguments.only in (None, name):
            passed += case(arguments)
            if arguments.backend == "ptx":
                torch.cuda.empty_cache()
    return int(arguments.check and not all(passed))


if __name__ == "__main__":
    sys.exit(main())
