"""Paged attention of prompts on Hopper, alone: its results, and its speed beside cuDNN's over keys in one piece.

    python benchmarks/prompt_attention.py [--width 128] [--check]

Heads are an 8B decoder's (32, over 8 of keys and values). A prompt of 8,192 tokens is read in chunks of 2,048, as the
engine does, whose results are compared with float32's. Then 128 and 240 rows that decode are beside the tokens of two
prompts: what that takes, alone and together, and at what rate keys and values are read.

--check: exit 1 unless results agree and the chunks take at most 1.15 times cuDNN's time for the whole.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from attention_pools import BLOCK, HEADS, KV_HEADS, Pool, Run
from ceilings import milliseconds
from here import require_gpu
from torch.nn.attention import SDPBackend, sdpa_kernel

from poot_executor.backends.cuda import attend_prompt
from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.ops import AttentionPlan, PagedAttention

TILE = 32
PROMPT, CHUNK = 8192, 2048
MOST_OFF = 6e-3  # of the norm: weights and results are rounded to bfloat16
MOST_RATIO = 1.15
CHECKED = 4  # heads
DECODING, SEEN, READING = (128, 240), 1090, 904
attention = torch.nn.functional.scaled_dot_product_attention


def attend(
    pool: Pool, q: torch.Tensor, runs: Sequence[Run], device: CudaDevice
) -> tuple[Callable[[], object], torch.Tensor]:
    """The launch for these runs' queries (tokens, heads, width), and where its results will be.

    Items are those of a step of CHUNK tokens.
    """
    splits = device.splits(CHUNK, pool.width)
    op = PagedAttention(pool.width**-0.5, BLOCK, tile=TILE, splits=splits)
    plan = pool.plan(AttentionPlan(CHUNK, TILE, splits=splits), runs, device)
    site, operands, out = pool.attention(op, q, plan)
    it = Attended.of(site, operands)
    assert attend_prompt.accepts(it)
    return attend_prompt.attend_prompt(it, device), out


def microseconds(call: Callable[[], object]) -> float:
    return 1000 * milliseconds(call)


def prompt(width: int, device: CudaDevice) -> Iterator[bool]:
    pool = Pool(1, PROMPT, width)
    q = torch.randn(PROMPT, HEADS, width, device="cuda").bfloat16()
    keys, values = pool.row(0, PROMPT)
    whole = q.transpose(0, 1)[None].contiguous()
    taken = 0.0
    for first in range(0, PROMPT, CHUNK):
        launch, out = attend(pool, q[first : first + CHUNK], [(0, first, CHUNK)], device)
        launch()
        end = first + CHUNK
        mask = torch.arange(end, device="cuda")[None] <= torch.arange(first, end, device="cuda")[:, None]
        seen_by = [tensor[:, :CHECKED, :end].float() for tensor in (keys, values)]
        wanted = attention(whole[:, :CHECKED, first:end].float(), *seen_by, mask)[0].transpose(0, 1)
        off = float((out[:, :CHECKED].float() - wanted).norm() / wanted.norm())
        spent, seen = microseconds(launch), CHUNK * first + CHUNK * (CHUNK + 1) // 2
        taken += spent
        rate = 4 * HEADS * width * seen / spent / 1e6
        passed = off < MOST_OFF
        print(f"{CHUNK} tokens after {first:5}: {spent:6.1f} us, {rate:3.0f} TFLOP/s, off by {off:.2e} "
              f"{'PASS' if passed else 'FAIL'}")  # fmt: skip
        yield passed
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        theirs = microseconds(lambda: attention(whole, keys, values, is_causal=True))
    passed = taken <= MOST_RATIO * theirs
    print(f"{PROMPT} tokens: {taken:6.1f} us, cuDNN {theirs:6.1f} us, ratio {taken / theirs:.3f} "
          f"{'PASS' if passed else 'FAIL'} (reach {MOST_RATIO})")  # fmt: skip
    yield passed


def beside(rows: int, width: int, device: CudaDevice) -> None:
    pool = Pool(rows + 2, SEEN, width)
    decoding = [(row, SEEN - 1 - row % 7, 1) for row in range(rows)]
    reading = [(rows, 0, READING), (rows + 1, 0, READING)]
    alone: list[float] = []
    for name, runs in ((f"{rows} rows", decoding), ("prompts", reading), ("both", decoding + reading)):
        q = torch.randn(sum(run[2] for run in runs), HEADS, width, device="cuda").bfloat16()
        launch, _ = attend(pool, q, runs, device)
        spent = microseconds(launch)
        rate = sum(first + count for _, first, count in runs) * KV_HEADS * width * 4 / spent / 1e6
        told = f"{name:8}: {spent:6.1f} us, keys and values at {rate:.2f} TB/s if each is read once"
        print(told if name != "both" else f"{told}, {spent / max(alone):.3f} of the longer of them")
        alone.append(spent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, choices=(64, 128), default=128)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    require_gpu()
    device = CudaDevice()
    passed = list(prompt(arguments.width, device))
    for rows in DECODING:
        beside(rows, arguments.width, device)
    return int(arguments.check and not all(passed))


if __name__ == "__main__":
    sys.exit(main())
