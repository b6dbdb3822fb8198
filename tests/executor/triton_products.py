"""Run by test_triton.py under Triton's interpreter in a process of its own, one line a check: products of a few rows.

Each in several tilings, twice in a row, over results and partial sums that hold rubbish at first; against the ops'
references.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import getclosurevars
from itertools import product

import torch

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.kernels.products import Around, Product, Tiling, tiling, workspace_bytes
from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType
from poot_executor.ops import GatedLinear, Linear, NormedGatedLinear, NormedLinear, ResidualLinear
from poot_executor.ops.deferred import sum_squares

Tensors = tuple[torch.Tensor, ...]
DEVICE = TritonDevice("cpu", "interpreter", DType.F32)
N, K = 72, 520  # no multiples of a tile's 64 rows and 128 columns


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tensors(op: Op, rows: int) -> Tensors:
    """Inputs of the op, as its reference takes them. The first is x."""
    x = noise(1, rows, K)
    weights = [noise(2 + i, N, K) * K**-0.5 for i in range(2)]
    match op:
        case Linear(bias=bias):
            return (x, weights[0], noise(5, N)) if bias else (x, weights[0])
        case GatedLinear():
            return (x, *weights)
        case NormedLinear(bias=bias):
            return (x, sum_squares(x), weights[0], *([noise(5, N)] if bias else []))
        case NormedGatedLinear():
            return (x, sum_squares(x), *weights)
        case _:
            return (x, weights[0], noise(6, rows, N), noise(7, N))


def bound(op: Op, given: Tensors, how: Tiling) -> tuple[Tensors, Callable[[], object]]:
    """Results, full of rubbish, and what fills them."""
    x, out = given[0].clone(), torch.full((len(given[0]), N), 1e9)
    parts = torch.full((workspace_bytes(len(x), N) // 4,), float("nan"))
    match op:
        case Linear():
            made = Product(x, given[1], Around(out, *given[2:]), parts)
        case GatedLinear(activation=gate):
            made = Product(x, torch.cat(given[1:]), Around(out, gate=gate), parts)
        case NormedLinear(eps=eps):
            made = Product(x, given[2], Around(out, *given[3:], squares=given[1], eps=eps), parts)
        case NormedGatedLinear(activation=gate, eps=eps):
            made = Product(x, torch.cat(given[2:]), Around(out, gate=gate, squares=given[1], eps=eps), parts)
        case ResidualLinear(offset=offset):
            scaled, sums = torch.full_like(out, 1e9), torch.full((len(x), -(-N // 64)), 1e9)
            around = Around(out, residual=given[2], gain=given[3], offset=offset, scaled=scaled, sums=sums)
            made = Product(x, given[1], around, parts)
            return (out, scaled, sums), made.bind(how, DEVICE)
    return (out,), made.bind(how, DEVICE)


def agrees(op: Op, rows: int, how: Tiling) -> str:
    """The reference's results, and the same bits when it runs again."""
    given = tensors(op, rows)
    results, run = bound(op, given, how)
    run()
    first = [result.clone() for result in results]
    for found, wanted in zip(first, op.reference(*given), strict=True):
        if not torch.allclose(found, wanted, rtol=2e-4, atol=2e-4):
            return f"FAIL off by {float((found - wanted).abs().max()):.3g}"
    for result in results:
        result.fill_(-1e9)
    run()
    if getclosurevars(run).nonlocals["locks"].any():
        return "FAIL locks are left"
    same = all(torch.equal(found, result) for found, result in zip(first, results, strict=True))
    return "PASS" if same else "FAIL the second run gives other results"


def alone(op: Op, how: Tiling) -> str:
    """A row's results have the same bits whatever the other rows hold, rows past the live ones above all."""
    given = tensors(op, 5)
    results, run = bound(op, given, how)
    run()
    rubbish = torch.full_like(given[0], float("nan"))
    rubbish[2] = given[0][2]
    others, run = bound(op, (rubbish, *given[1:]), how)
    run()
    same = all(torch.equal(mine[2], other[2]) for mine, other in zip(results, others, strict=True))
    return "PASS" if same and bool(results[0].isfinite().all()) else "FAIL the row depends on its neighbours"


def chosen(gated: bool, processors: int, split: bool) -> str:
    """Whether what is chosen on a device with so many processors is cut, and right."""
    op = GatedLinear("silu") if gated else Linear()
    how = tiling(3, N, K, gated=gated, size=4, processors=processors, shared=227 * 1024)
    if (how.split > 1) is not split:
        return f"FAIL in {how.split} parts"
    return agrees(op, 3, how)


# Rows and parts: one; three of two steps each, the last of one; five of one step, though eight are asked for.
SHAPES = ((1, 3), (5, 1), (5, 8), (33, 3))
PLAIN: tuple[Op, ...] = (
    Linear(),
    Linear(bias=True),
    NormedLinear(1e-5),
    NormedLinear(1e-6, bias=True),
    ResidualLinear(),
    ResidualLinear(1.0),
)
GATED: tuple[Op, ...] = (GatedLinear("silu"), GatedLinear("gelu_tanh"), NormedGatedLinear("silu", 1e-5))

CHECKS: dict[str, Callable[[], str]] = {
    **{
        f"{op}, {rows} rows, {split} parts": lambda op=op, rows=rows, split=split: agrees(op, rows, Tiling(3, split))
        for op, (rows, split) in product(PLAIN, SHAPES)
    },
    **{
        f"{op}, {rows} rows": lambda op=op, rows=rows: agrees(op, rows, Tiling(3, 1))
        for op in GATED
        for rows in (2, 17)
    },
    **{
        f"a row of {op}, {split} parts": lambda op=op, split=split: alone(op, Tiling(3, split))
        for op, split in ((PLAIN[0], 1), (PLAIN[0], 3), (PLAIN[2], 3), (PLAIN[4], 1), (PLAIN[4], 3), (GATED[2], 1))
    },
    "a product on many processors": lambda: chosen(False, 512, True),
    "a product on one processor": lambda: chosen(False, 1, False),
    "a gated product on many processors": lambda: chosen(True, 512, False),
}

if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, run in CHECKS.items():
        if wanted in name:
            print(f"{run()} | {name}", flush=True)
