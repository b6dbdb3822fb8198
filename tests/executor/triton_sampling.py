"""Run under Triton's interpreter in a process of its own, one line a check: sampling kernels on rows of several chunks.

Memory is full of rubbish before a run, as an arena is that other nodes have used. The drawn tokens must equal the
definition's, which computes in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import triton

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.kernels.cut import ROOM
from poot_executor.backends.triton.kernels.draw import random_bits
from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.memory.account import MemoryClass
from poot_executor.ops import AdjustLogits, CommitTokens, Draw, Example, Greedy, RowLayout, TopLogProbs
from poot_executor.ops.sampling import uniform
from poot_executor.testing import Case, run_case

Tensors = tuple[torch.Tensor, ...]


class UsedDevice(TritonDevice):
    """A device whose memory others have used."""

    def allocate(self, kind: MemoryClass, nbytes: int) -> TorchAllocation:
        allocation = super().allocate(kind, nbytes)
        allocation.tensor.fill_(0x5A)
        return allocation


def check(op: Op, *given: torch.Tensor, live: int | None = None) -> str:
    """Run the op over `given`, of which the first `live` rows count, and compare with its reference."""
    rows = len(given[1])
    rowed = 2
    types = tuple(
        TensorType(tuple(t.shape), DType.F32 if t.is_floating_point() else DType.I32, "rows" if i < rowed else None)
        for i, t in enumerate(given)
    )
    roles = tuple(Role.INPUT if i < rowed else Role.STATE for i in range(len(given)))
    example = Example("", op, types, roles, lambda _: given, {"rows": rows if live is None else live})
    outcome = run_case(Case(type(op), example), UsedDevice("cpu", "interpreter", DType.F32))
    return "PASS" if outcome.passed else f"FAIL {outcome}"


def scores(generator: torch.Generator, kind: int, size: int) -> torch.Tensor:
    """Logits of one of eleven kinds."""
    x, chance = torch.randn(size, generator=generator), torch.rand(size, generator=generator)
    at = torch.arange(size)
    kinds = (
        x,
        x * 3,
        x * 8,
        (x * 2).round(),  # few distinct values
        (x * 3).bfloat16().float(),
        torch.where(chance < 0.95, float("-inf"), x * 3),
        torch.full((size,), -1.5),
        torch.where(at == size // 2, 14.0, x),
        torch.where(at == size // 3, 8.0, (x * 4).round() * 1e-6),  # more nearly equal ones than can be gathered
        x * 1e-6 + 100.0,
        torch.where(at == size - 1, 1.0, torch.where(chance < 0.5, 0.0, -0.0)),
    )
    return kinds[kind % len(kinds)]


TEMPERATURES = (1e-5, 0.3, 0.7, 1.0, 2.0, 50.0, 0.0)
TOP_KS = (0, 1, 2, 40, 1000, ROOM + 500, 10**6)
TOP_PS = (1.0, 0.95, 0.9, 0.5, 1e-6, 0.0, 0.999)
MIN_PS = (0.0, 0.0, 0.05, 0.5, 1.0)


def draws(seed: int, size: int, rows: int, *, falling: bool = False, kind: int | None = None) -> str:
    """Draws with any parameters. Where logits fall and the number drawn is close to 1, the last kept token is drawn."""
    generator = torch.Generator().manual_seed(seed)

    def any_of(values: tuple[float, ...]) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(0, len(values), (rows,), generator=generator)]

    logits = torch.stack([scores(generator, row if kind is None else kind, size) for row in range(rows)])
    ints, reals = torch.zeros(rows, RowLayout.INTS, dtype=torch.int32), torch.zeros(rows, RowLayout.FLOATS)
    words = torch.randint(-(2**31), 2**31, (rows, 2), generator=generator)
    ints[:, [RowLayout.SEED_LOW, RowLayout.SEED_HIGH]] = words.int()
    ints[:, RowLayout.LENGTH] = torch.randint(1, 100000, (rows,), generator=generator).int()
    ints[:, RowLayout.TOP_K] = any_of(TOP_KS).int()
    reals[:, RowLayout.TEMPERATURE] = any_of(TEMPERATURES)
    reals[:, RowLayout.TOP_P] = any_of(TOP_PS)
    reals[:, RowLayout.MIN_P] = any_of(MIN_PS)
    if falling:
        logits = logits.sort(descending=True).values
        ints[:, RowLayout.SEED_LOW], ints[:, RowLayout.SEED_HIGH] = 1, 2
        ints[:, RowLayout.LENGTH] = max(range(20000), key=lambda length: uniform(1, 2, length))
    order = torch.randperm(rows, generator=generator).int()
    return check(Draw(), logits, order, ints, reals, live=rows - 1)


def unusable_draws() -> str:
    logits = torch.randn(5, 4500, generator=torch.Generator().manual_seed(1))
    logits[0, 4400], logits[1], logits[2, 4200] = float("nan"), float("-inf"), float("inf")
    logits[3, :-1] = float("-inf")
    ints, reals = torch.zeros(5, RowLayout.INTS, dtype=torch.int32), torch.ones(5, RowLayout.FLOATS)
    ints[:, RowLayout.TOP_K] = 3
    reals[:, RowLayout.TOP_P], reals[:, RowLayout.MIN_P] = 0.5, 0.0
    return check(Draw(), logits, torch.arange(5, dtype=torch.int32), ints, reals)


@triton.jit
def _bits(ints, out):  # type: ignore[no-untyped-def]
    triton.language.store(out, random_bits(ints))


def random_numbers() -> str:
    """The kernel's Philox against the definition's, bit for bit."""
    generator, out = torch.Generator().manual_seed(5), torch.zeros(1, dtype=torch.int64)
    edges = torch.tensor([[0, 0, 0], [-1, -1, 2**31 - 1], [-(2**31), 2**31 - 1, 1]])
    for length, low, high in torch.cat([edges, torch.randint(-(2**31), 2**31, (60, 3), generator=generator)]).tolist():
        ints = torch.zeros(RowLayout.INTS, dtype=torch.int32)
        ints[RowLayout.LENGTH], ints[RowLayout.SEED_LOW], ints[RowLayout.SEED_HIGH] = length, low, high
        _bits[(1,)](ints, out)
        if int(out) * 2.0**-24 != uniform(low, high, length):
            return f"FAIL {int(out)} for length {length}, seed {low}, {high}"
    return "PASS"


def greedy(size: int) -> str:
    logits = torch.stack([scores(torch.Generator().manual_seed(size), kind, size) for kind in range(12)])
    logits[1, -1], logits[2, size // 2], logits[3], logits[10, 0] = (
        float("nan"), float("inf"), float("-inf"), -float("nan")
    )  # fmt: skip
    logits[4, [size // 3, size - 1]] = 50.0
    return check(Greedy(), logits, torch.arange(12, dtype=torch.int32), live=11)


def log_probs(size: int, k: int) -> str:
    generator = torch.Generator().manual_seed(size + k)
    logits = torch.stack([scores(generator, kind, size) for kind in range(10)])
    logits[5, :-3] = float("-inf")  # fewer than k are finite
    logits[2, : 2 * k] += 40.0  # all in one chunk
    return check(TopLogProbs(k), logits, torch.randint(0, size, (10,), generator=generator).int(), live=9)


def adjusted(size: int, biases: int, positions: int, ends: tuple[int, ...]) -> str:
    generator, rows = torch.Generator().manual_seed(size), 9
    logits = torch.randn(rows, size, generator=generator) * 4
    logits[2, ::2] = float("-inf")
    ints, reals = torch.zeros(rows, RowLayout.INTS, dtype=torch.int32), torch.zeros(rows, RowLayout.FLOATS)
    ints[:, RowLayout.LENGTH] = torch.tensor([1, 2, 3, 5, 8, 1, 1, positions // 2, positions]).clamp(max=positions)
    ints[:, RowLayout.PROMPT] = torch.tensor([1, 1, 9, 2, 3, 0, 1, positions // 3, positions // 3])
    ints[:, RowLayout.MIN_LENGTH] = torch.tensor([9, 0, 0, 9, 0, 0, 2, 0, 10**6])
    ints[:, RowLayout.BIAS_COUNT] = torch.tensor([0, biases, 1, 0, biases, 2, 0, biases // 2, biases]).clamp(max=biases)
    reals[:, RowLayout.REPETITION] = torch.tensor([1.0, 1.0, 1.3, 0.7, 1.0, 1.0, 1.0, 1.0, 1.7])
    reals[:, RowLayout.FREQUENCY] = torch.tensor([0.0, 0.0, 0.0, -0.2, 0.0, 0.0, 1.0, 0.01, 0.3])
    reals[:, RowLayout.PRESENCE] = torch.tensor([0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.3])
    ids = torch.randint(0, size, (rows, biases), generator=generator).int()
    ids[:, biases // 2 :] = ids[:, : biases - biases // 2]  # every id twice
    history = torch.randint(0, max(2, size // 20), (rows, positions), generator=generator).int()
    ids[8, :3] = torch.tensor([0, 1, 0])[: min(3, biases)]  # biased and seen
    values = torch.randn(rows, biases, generator=generator) * 3
    order = torch.randperm(rows, generator=generator).int()
    return check(AdjustLogits(ends), logits, order, ints, reals, ids, values, history, live=8)


def committed(rows: int) -> str:
    """More rows than one program appends to; the last one is not live."""
    generator = torch.Generator().manual_seed(rows)
    ints = torch.randint(0, 8, (rows, RowLayout.INTS), generator=generator).int()
    tokens, history = (torch.randint(0, 999, shape, generator=generator).int() for shape in ((rows,), (rows, 8)))
    return check(
        CommitTokens(), tokens, torch.randperm(rows, generator=generator).int(), ints, history, live=rows - 1
    )  # fmt: skip


CHECKS: dict[str, Callable[[], str]] = {
    "random numbers": random_numbers,
    **{f"greedy of {size}": lambda size=size: greedy(size) for size in (3, 4096, 4097, 9000)},
    "unusable draws": unusable_draws,
    **{
        f"draws of {size}, seed {seed}": lambda seed=seed, size=size, rows=rows: draws(seed, size, rows)
        for seed, (size, rows) in enumerate([(1, 8), (5, 12), (300, 22), (4096, 11), (5001, 22), (9001, 22)])
    },
    "last draws of 300": lambda: draws(6, 300, 44, falling=True),
    "last draws of 5001": lambda: draws(7, 5001, 22, falling=True),
    "last draws of 6000 that are nearly equal": lambda: draws(8, 6000, 12, falling=True, kind=8),
    **{
        f"{k} of {size}": lambda size=size, k=k: log_probs(size, k)
        for size, k in ((20, 20), (300, 1), (9001, 1), (9001, 2), (9001, 20), (300, 128))
    },
    "committed tokens of 150 rows": lambda: committed(150),
    **{
        f"adjusted {shape}": lambda shape=shape: adjusted(*shape)
        for shape in ((5, 1, 2, ()), (300, 4, 12, (0, 299)), (9001, 130, 2500, (1, 8999, 4096)))
    },
}

if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, run in CHECKS.items():
        if wanted in name:
            print(f"{run()} | {name}", flush=True)
