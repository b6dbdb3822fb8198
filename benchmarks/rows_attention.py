"""Paged attention of rows that decode on Hopper, alone: its results, and its speed beside Triton's kernel.

    python benchmarks/rows_attention.py [--rows 1,8,32,64] [--contexts 190,1090,8192,32768] [--width 128] [--check]

Heads are an 8B decoder's (32, over 8 of keys and values). Each row decodes a token. Plans are the device's own, and
those that Triton's kernel would have without the other. A CUDA graph has launches over layers enough that none finds
its keys in the cache. Results are compared with float32's.

--check: exit 1 unless results agree and no case takes longer than 1.05 times Triton's time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import torch
from attention_pools import HEADS, KV_HEADS, Pool, Run, launch
from ceilings import copy_rate, milliseconds, recorded
from packed_products import in_turn

from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.backends.triton.graphs import GraphDevice
from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.ops import AttentionPlan, PagedAttention

LEAST_BYTES = 256e6  # that a graph reads, several times what a cache holds
MOST_BYTES = 64e9
MOST_OFF = 6e-3  # of the norm: weights and results are rounded to bfloat16
MOST_RATIO = 1.05
CHECKED = 4  # rows
TURNS = 3

Call = Callable[[], object]


class Own(CudaDevice):
    """With no other kernel than its own for rows that decode."""

    def attend_rows(self, it: Attended) -> Call:
        launch = super().attend_rows(it)
        if launch is None:
            raise SystemExit(f"FAIL: there is no own kernel for {it.tokens} rows, or it is not right")
        return launch


class Triton(CudaDevice):
    """Without a kernel of its own for rows that decode."""

    def attend_rows(self, it: Attended) -> None:
        return None

    def splits(self, tokens: int, width: int) -> int:
        return GraphDevice.splits(self, tokens, width)


def bind(pools: list[Pool], q: torch.Tensor, runs: list[Run], device: CudaDevice) -> tuple[list[Call], torch.Tensor]:
    """The launches of some layers, and where the results of the first will be."""
    tokens, _, width = q.shape
    tile, splits = device.tile(tokens, HEADS // KV_HEADS), device.splits(tokens, width)
    op = PagedAttention(width**-0.5, 16, tile=tile, splits=splits)
    plan = pools[0].plan(AttentionPlan(tokens, tile, splits=splits), runs, device)
    nodes = [pool.attention(op, q, plan) for pool in pools]
    return [launch(site, operands, device) for site, operands, _ in nodes], nodes[0][2]


def off_by(found: torch.Tensor, pool: Pool, q: torch.Tensor, runs: list[Run]) -> float:
    """Of some rows the most; not a number where a result is none."""
    all_off = []
    for row, first, _ in runs[:: -(-len(runs) // CHECKED)]:
        keys, values = (tensor[0].float() for tensor in pool.row(row, first + 1))
        scores = (keys @ q[row].float()[:, :, None])[..., 0] * pool.width**-0.5
        wanted = (scores.softmax(-1)[:, None] @ values)[:, 0]
        all_off.append((found[row].float() - wanted).norm() / wanted.norm())
    return float(torch.stack(all_off).max())


def case(rows: int, context: int, width: int, devices: tuple[CudaDevice, CudaDevice], rate: float) -> Iterator[bool]:
    runs = [(row, context - 1 - row % 7, 1) for row in range(rows)]
    read = sum(first + 1 for _, first, _ in runs) * KV_HEADS * width * 4
    layers = max(2, -(-int(LEAST_BYTES) // read))
    if layers * rows * context * KV_HEADS * width * 4 > MOST_BYTES:
        print(f"{rows:4} rows of {context:6}: they do not fit into {MOST_BYTES / 1e9:.0f} GB")
        return
    pools = [Pool(rows, context, width) for _ in range(layers)]
    q = torch.randn(rows, HEADS, width, device="cuda").bfloat16()
    (own, out), (others, _) = (bind(pools, q, runs, device) for device in devices)
    own[0]()
    off = off_by(out, pools[0], q, runs)
    graphs = [recorded(in_turn(calls)) for calls in (own, others)]
    # In turn, since a device that gets hot gets slower.
    times = [[1000 / layers * milliseconds(graph) for graph in graphs] for _ in range(TURNS)]
    taken, theirs = (min(column) for column in zip(*times, strict=True))
    passed = off < MOST_OFF and taken <= MOST_RATIO * theirs
    speed = read / taken / 1e6
    print(f"{rows:4} rows of {context:6}: {taken:7.1f} us, {speed:.2f} TB/s, {speed * 1e12 / rate:.3f} of a copy's, "
          f"Triton {theirs:7.1f} us, ratio {taken / theirs:.3f}, off by {off:.2e} {'PASS' if passed else 'FAIL'}",
          flush=True)  # fmt: skip
    yield passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,8,32,64")
    parser.add_argument("--contexts", default="190,1090,8192,32768")
    parser.add_argument("--width", type=int, choices=(64, 128), default=128)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rate, devices = copy_rate(), (Own(), Triton())
    print(f"{torch.cuda.get_device_name()}: a copy at {rate / 1e12:.2f} TB/s")
    passed = []
    for rows in map(int, arguments.rows.split(",")):
        for context in map(int, arguments.contexts.split(",")):
            passed += case(rows, context, arguments.width, devices, rate)
            torch.cuda.empty_cache()
    return int(arguments.check and not all(passed))


if __name__ == "__main__":
    sys.exit(main())
