"""Decode speed of the engine on a GPU, over shapes with random weights, against the products alone.

    python benchmarks/decode.py [--shape 8b|135m] [--rows 1,8,32] [--context 128] [--steps 128] [--check]

Prints milliseconds a step, in-process, greedy, every overhead in, and the ratio to the cuBLAS chain of the same run:
all matrix products of one decode step, in a CUDA graph. --check prints PASS or FAIL a line, by the ratios below.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from poot_batch.driver import ModelDriver, prepare_model
from poot_batch.engine import Engine
from poot_batch.kv import KvSpace
from poot_batch.request import EngineInfo, GenerateRequest, SamplingParams
from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.encodings import Dense
from poot_executor.kernels import WeightForm
from poot_executor.ops import RotarySpec
from poot_models.blocks import DecoderConfig, LayerSpec, kv_groups
from poot_models.families.family import find_family
from poot_models.handle import ModelHandle

# rows: ratio to the cuBLAS chain that must be reached
REACH = {"8b": {1: 1.07, 8: 1.09, 32: 1.15, 64: 1.24, 128: 1.34, 256: 1.32}, "135m": {}, "tiny": {}}


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool


SHAPES = {
    "8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, False),
    "135m": Shape(30, 576, 1536, 9, 3, 64, 49152, True),
    "tiny": Shape(2, 256, 512, 4, 2, 64, 1024, False),
}


@dataclass(frozen=True)
class Absent:
    """A weight by name and shape alone: the device makes it up."""

    name: str
    shape: tuple[int, ...]
    encoding: Dense


class RandomDevice(CudaDevice):
    """Weights are noise made on the device."""

    def hold(self, form: WeightForm, sources: Sequence[Any]) -> Any:
        self.account.add("weights", form.nbytes)
        rows, rest = sum(source.shape[0] for source in sources), sources[0].shape[1:]
        if form.layout == "vector":
            return torch.ones(rows, *rest, device=self.torch_device)
        made = torch.empty(rows, *rest, dtype=torch.bfloat16, device=self.torch_device)
        return made.normal_(std=rest[-1] ** -0.5)


def weights(shape: Shape) -> Mapping[str, Absent]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {"token_embd": (shape.vocabulary, shape.hidden), "output_norm": (shape.hidden,)}
    if not shape.tied:
        sizes["output"] = (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        sizes |= {
            f"blk.{layer}.attn_norm": (shape.hidden,),
            f"blk.{layer}.attn_q": (q, shape.hidden),
            f"blk.{layer}.attn_k": (kv, shape.hidden),
            f"blk.{layer}.attn_v": (kv, shape.hidden),
            f"blk.{layer}.attn_output": (shape.hidden, q),
            f"blk.{layer}.ffn_norm": (shape.hidden,),
            f"blk.{layer}.ffn_gate": (shape.ff, shape.hidden),
            f"blk.{layer}.ffn_up": (shape.ff, shape.hidden),
            f"blk.{layer}.ffn_down": (shape.hidden, shape.ff),
        }
    return {f"{name}.weight": Absent(f"{name}.weight", size, Dense("BF16")) for name, size in sizes.items()}


def handle(name: str) -> ModelHandle:
    shape = SHAPES[name]
    spec = LayerSpec(shape.heads, shape.kv_heads, shape.head_dim, shape.ff, RotarySpec.plain(shape.head_dim, 5e5))
    config = DecoderConfig(
        shape.vocabulary, shape.hidden, 131072, 1e-5, (spec,) * shape.layers, "silu", "half",
        shape.head_dim**-0.5, tied=shape.tied,
    )  # fmt: skip
    held: Any = weights(shape)
    return ModelHandle(Path(name), "llama", find_family("llama"), config, held, kv_groups(config), ())


def engine(name: str, rows: int, max_seq: int) -> Engine:
    device = RandomDevice()
    model = handle(name)
    started = time.perf_counter()
    prepared = prepare_model(model, device, rows=rows, max_seq=max_seq, ends=())
    print(f"prepared in {time.perf_counter() - started:.1f} s, {prepared.fit.rows} rows of {prepared.fit.max_seq}")
    info = EngineInfo(
        model=name, architecture="llama", backend=device.backend, device=device.name, rows=prepared.fit.rows,
        max_seq=prepared.fit.max_seq, vocab_size=model.vocab_size, eos_ids=(), kv_block_size=16,
        kv_blocks=sum(prepared.fit.blocks), weight_bytes=0, kv_bytes=0, workspace_bytes=0, device_total_bytes=0,
        decode_dispatches=0, decode_activation_peak_bytes=0, prefill_dispatches=0, prefill_activation_peak_bytes=0,
    )  # fmt: skip
    kv = KvSpace(prepared.shape.block, prepared.fit.blocks, prepared.shape.tables)
    return Engine(ModelDriver(prepared), kv, info, None, capacity=prepared.shape.tokens)


def products(name: str, rows: int) -> float:
    """Milliseconds of all matrix products of one decode step, in a graph."""
    shape = SHAPES[name]
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = [(q + 2 * kv, shape.hidden), (shape.hidden, q), (2 * shape.ff, shape.hidden), (shape.hidden, shape.ff)]
    held = [torch.randn(n, k, device="cuda").bfloat16() for _ in range(shape.layers) for n, k in sizes]
    held.append(torch.randn(shape.vocabulary, shape.hidden, device="cuda").bfloat16())
    xs = {k: torch.randn(rows, k, device="cuda").bfloat16() for k in {w.shape[1] for w in held}}
    outs = [torch.empty(rows, w.shape[0], device="cuda", dtype=torch.bfloat16) for w in held]

    def run() -> None:
        for weight, out in zip(held, outs, strict=True):
            torch.mm(xs[weight.shape[1]], weight.t(), out=out)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return min(_timed(graph.replay) for _ in range(3))


def _timed(call: Any, repeats: int = 20) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / repeats


def start(running: Engine, rows: int, context: int) -> None:
    """Bring `rows` rows to decoding: their prompts of `context` tokens are read, every one has sampled."""
    generator = torch.Generator().manual_seed(rows)
    greedy = SamplingParams(temperature=0.0)
    for index in range(rows):
        prompt = torch.randint(0, running.info.vocab_size, (context,), generator=generator).tolist()
        running.submit(GenerateRequest(id=index + 1, prompt=tuple(prompt), sampling=greedy))
    waiting = set(range(1, rows + 1))
    while waiting:
        waiting -= {output.request_id for output in running.step()}
    for _ in range(4):
        running.step()


def decode(running: Engine, rows: int, steps: int) -> float:
    """Milliseconds a step over `steps` steps in which every row gets a token."""
    began = time.perf_counter()
    done = sum(len(output.tokens) for _ in range(steps) for output in running.step())
    elapsed = (time.perf_counter() - began) * 1000
    if done != steps * rows:
        raise RuntimeError(f"{done} tokens in {steps} steps of {rows} rows")
    return elapsed / steps


def stop(running: Engine, rows: int) -> None:
    for index in range(rows):
        running.cancel(index + 1)
    while running.busy:
        running.step()


def profile(running: Engine, rows: int) -> None:
    """Where a step's time goes: device microseconds by kernel, and the host's own functions."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as found:
        decode(running, rows, 16)
    torch.cuda.synchronize()
    events = [e for e in found.key_averages() if e.self_device_time_total > 0]
    for event in sorted(events, key=lambda e: -e.self_device_time_total)[:22]:
        each = event.self_device_time_total / event.count
        print(f"  {event.key[:70]:70} {event.count:6} x {each:8.2f} us = {event.self_device_time_total / 1000:8.2f} ms")


def host(running: Engine, rows: int) -> None:
    import cProfile
    import pstats

    recorder = cProfile.Profile()
    recorder.enable()
    decode(running, rows, 64)
    recorder.disable()
    pstats.Stats(recorder).sort_stats("tottime").print_stats(14)


def lines(arguments: argparse.Namespace) -> Iterator[bool]:
    rows = [int(n) for n in arguments.rows.split(",")]
    chain = {n: products(arguments.shape, n) for n in rows}
    torch.cuda.empty_cache()
    running = engine(arguments.shape, max(rows), max(1024, arguments.context + 2 * arguments.steps + 256))
    for n in rows:
        start(running, n, arguments.context)
        spent = decode(running, n, arguments.steps)
        ratio, reach = spent / chain[n], REACH[arguments.shape].get(n)
        verdict = "" if reach is None else ("PASS" if ratio <= reach else "FAIL") + f" (reach {reach})"
        print(f"{n:4} rows: {spent:7.3f} ms a step, products {chain[n]:.3f} ms, ratio {ratio:.3f} {verdict}")
        yield reach is None or ratio <= reach
        if arguments.profile:
            profile(running, n)
            host(running, n)
        stop(running, n)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b")
    parser.add_argument("--rows", default="1,8,32,64,128,256")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    passed = list(lines(arguments))
    return int(arguments.check and not all(passed))


if __name__ == "__main__":
    sys.exit(main())
