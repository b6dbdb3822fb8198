"""Run by test_triton.py in a process of its own, without a GPU: kernels compiled for devices, one line a program.

Preparing and running entries as ever, but with a driver that only names the target, every launch compiles its kernel
with the arguments that it has, down to the device's code, and runs nothing.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.kernels import FEW_ROWS_KERNELS, TRITON_KERNELS
from poot_executor.backends.triton.kernels.products import Around, Product, tiling
from poot_executor.devices import Live
from poot_executor.encodings import Ggml, WeightSource, nbytes
from poot_executor.ir import DType, GraphBuilder
from poot_executor.ir.graph import Op
from poot_executor.ops import (
    AddRmsNorm,
    AttentionPlan,
    Embed,
    GatedLinear,
    Gelu,
    LayerNorm,
    Linear,
    PagedAttention,
    RmsNorm,
    RotaryKvWrite,
    XIelu,
)
from poot_executor.runtime import EntryKey, compile_graphs, prepare
from poot_executor.testing import cases, run_case

KIB = 1024
KEY = EntryKey("g", 1)
# What a program may have: of the target's devices, those with the least.
SHARED = {90: 227 * KIB, 120: 99 * KIB, 80: 99 * KIB, "gfx942": 64 * KIB, "gfx1100": 64 * KIB}
ENCODINGS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
TARGETS = {
    arch: GPUTarget("cuda", arch, 32) if isinstance(arch, int) else GPUTarget("hip", arch, 64 if "942" in arch else 32)
    for arch in SHARED
}
SAME = re.compile(r"Q\d_|DType.F32")
SOME = (Linear, GatedLinear, RmsNorm, AddRmsNorm, LayerNorm, Gelu, XIelu, RotaryKvWrite)


class Named:
    """A driver of a device that is not there."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_device(self) -> GPUTarget:
        return self.target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_stream(self, device: GPUTarget) -> int:
        return 0


class Compiling(TritonDevice):
    """A device of an architecture, as its backend would set it up. What torch launches is left out."""

    def __init__(self, arch: int | str) -> None:
        super().__init__("cpu", str(arch), DType.BF16)
        self.shared, self.processors, self.programs = SHARED[arch], 132, 264
        self.pdl, self.ahead = isinstance(arch, int) and arch >= 90, isinstance(arch, int)
        self.dp4a = isinstance(arch, int)
        self.kernels = TRITON_KERNELS.preferring(FEW_ROWS_KERNELS) if self.pdl else TRITON_KERNELS


@contextmanager
def compiled(arch: int | str) -> Iterator[list[Any]]:
    """Meanwhile launches compile for this architecture. The list gets the kernels."""
    found: list[Any] = []

    def launcher(self: Any, grid: object) -> Callable[..., None]:
        return lambda *args, **named: found.append(self.warmup(*args, grid=grid, **named))

    before, triton.JITFunction.__getitem__ = triton.JITFunction.__getitem__, launcher
    # Products of torch with float32 results are there for CUDA alone.
    library = torch.bmm, torch.mm
    torch.bmm = torch.mm = lambda *args, **named: None
    driver.set_active(Named(TARGETS[arch]))
    try:
        yield found
    finally:
        triton.JITFunction.__getitem__ = before
        torch.bmm, torch.mm = library


def problem(arch: int | str, kernels: list[Any]) -> str | None:
    """What is wrong with compiled kernels: no code, too much shared memory, or no waiting where it is asked for."""
    if not kernels:
        return "nothing was launched"
    for kernel in kernels:
        name, used = kernel.metadata.name, kernel.metadata.shared
        if not kernel.asm["cubin" if isinstance(arch, int) else "hsaco"]:
            return f"{name} has no code"
        if used > SHARED[arch]:
            return f"{name} takes {used} bytes of shared memory"
        if isinstance(arch, int) and ("griddepcontrol.wait" in kernel.asm["ptx"]) is not (arch >= 90):
            return f"{name} waits for the kernel before it, or does not, though it should"
    return None


def examples(arch: int | str, op: type[Op]) -> str | None:
    """Some examples of an op. How weights were packed no kernel sees, and logits torch multiplies."""
    with compiled(arch) as kernels:
        wanted = [case for case in cases() if case.op is op and (" 1x" in case.id or not SAME.search(case.id))]
        wanted.sort(key=lambda case: " 1x" not in case.id)
        for case in wanted[: 4 if arch == 90 else 2]:
            run_case(case, Compiling(arch))
        return problem(arch, kernels)


def attention(arch: int | str, tokens: int, heads: tuple[int, int, int], splits: int) -> str | None:
    """Of a model's size: heads, KV heads and their width."""
    count, kv_heads, width = heads
    builder = GraphBuilder("g")
    runs = builder.input("runs", (64, 4), DType.I32, "runs")
    tile = Compiling(arch).tile(tokens, count // kv_heads)
    plan = builder.apply(AttentionPlan(tokens, tile, splits=splits), runs)
    q = builder.input("q", (tokens, count, width), DType.ACT, "tokens")
    pools = [builder.state(f"kv.{part}", (64, kv_heads, width), DType.ACT) for part in "kv"]
    table = builder.input("table", (64, 8), DType.I32)
    op = PagedAttention(0.1, 16, tile=tile, splits=splits)
    builder.output("out", builder.apply(op, q, *pools, plan, table))
    with compiled(arch) as kernels:
        device = Compiling(arch)
        prepare(device, compile_graphs(device, {KEY: builder.finish()}), {})[KEY].run(Live())
        return problem(arch, kernels)


def product(arch: int | str, rows: int, n: int, k: int, kind: str) -> str | None:
    """Of a model's size: plain, with a bias, gated or with a residual; or plain or gated of a norm put off."""
    device = Compiling(arch)
    gated, normed = "gated" in kind, "normed" in kind
    x, weight = (torch.empty(size, k, dtype=torch.bfloat16) for size in (rows, n * (2 if gated else 1)))
    out, vector = torch.empty(rows, n, dtype=torch.bfloat16), torch.empty(n)
    given: dict[str, Any] = {"squares": torch.empty(rows, -(-k // 64)), "eps": 1e-5} if normed else {}
    given |= {"bias": vector} if "bias" in kind else {}
    given |= {"gate": "silu"} if gated else {}
    if "residual" in kind:
        given |= {"residual": out, "gain": vector, "scaled": out, "sums": torch.empty(rows, -(-n // 64))}
    how = tiling(rows, n, k, gated=gated, size=2, processors=device.processors, shared=device.shared)
    if (how.split > 1) is not ("split" in kind):
        return f"it is in {how.split} parts"
    with compiled(arch) as kernels:
        Product(x, weight, Around(out, **given), torch.empty(64)).bind(how, device)()
        if "cp.async.bulk.tensor" not in kernels[0].asm["ptx"]:
            return "the copy engine is not used"
        return problem(arch, kernels)


def packed(arch: int | str, rows: int, n: int, k: int, kind: str) -> str | None:
    """Weights in an encoding: their product, plain or gated, or rows of a table; or a product whose loads are wide."""
    encoding, *more = kind.split()
    builder, names = GraphBuilder("g"), ("w", "v") if "gated" in more else ("w",)
    weights = [builder.weight(name, (n, k), Ggml(encoding)) for name in names]
    if "rows" in more:
        out = builder.apply(Embed(), builder.input("ids", (rows,), DType.I32, "tokens"), *weights)
    else:
        x = builder.input("x", (rows, k), DType.ACT, "tokens")
        out = builder.apply(GatedLinear("silu") if "gated" in more else Linear(), x, *weights)
    builder.output("out", out)
    blocks = np.zeros(nbytes(Ggml(encoding), (n, k)), np.uint8)
    sources = {name: WeightSource(name, (n, k), Ggml(encoding), blocks) for name in names}
    with compiled(arch) as kernels:
        device = Compiling(arch)
        prepare(device, compile_graphs(device, {KEY: builder.finish()}), sources)[KEY].run(Live())
        if "wide" in more and "cp.async.ca" in kernels[-1].asm["ptx"]:
            return "loads have less than 16 bytes"
        return problem(arch, kernels)


MODEL = (32, 8, 128)
CHECKS: dict[str, Callable[[], str | None]] = {
    **{
        f"{op.__name__} for {arch}": lambda arch=arch, op=op: examples(arch, op)
        for arch, ops in (
            (90, (*TRITON_KERNELS, *FEW_ROWS_KERNELS)), (80, SOME), ("gfx942", TRITON_KERNELS),
            ("gfx1100", TRITON_KERNELS),
        )
        for op in dict.fromkeys(ops)
        if op is not AttentionPlan
    },
    **{
        f"attention of {heads} heads, {tokens} tokens, {splits} parts, for {arch}":
        lambda arch=arch, tokens=tokens, heads=heads, splits=splits: attention(arch, tokens, heads, splits)
        for arch, tokens, heads, splits in (
            (90, 16, MODEL, 32), (90, 32, MODEL, 1), (90, 64, MODEL, 32), (90, 256, MODEL, 8),
            (90, 8, (64, 2, 128), 1), (90, 64, (9, 3, 64), 8), (90, 256, (64, 2, 128), 8), (80, 16, MODEL, 32),
            (80, 64, MODEL, 8), (80, 16, (64, 2, 128), 1), (80, 16, (8, 1, 256), 1), (120, 16, MODEL, 32),
            ("gfx942", 16, MODEL, 32), ("gfx1100", 64, MODEL, 8), (90, 2048, MODEL, 8), (90, 384, (9, 3, 64), 8),
            (90, 2048, (32, 32, 96), 8), (90, 1024, (4, 1, 256), 8), (80, 2048, MODEL, 8), (120, 2048, MODEL, 8),
            ("gfx942", 2048, MODEL, 8),
        )
    },
    **{
        f"product {kind} {rows}x{k} to {n} for {arch}":
        lambda arch=arch, rows=rows, n=n, k=k, kind=kind: product(arch, rows, n, k, kind)
        for arch, rows, n, k, kind in (
            (90, 16, 6144, 4096, "plain"), (90, 32, 6144, 4096, "normed and bias"),
            (90, 32, 4096, 4096, "split residual"), (90, 8, 4096, 14336, "split residual"),
            (90, 32, 14336, 4096, "gated normed"), (90, 2, 1536, 576, "gated"), (90, 4, 1024, 4096, "split bias"),
            (120, 32, 14336, 4096, "gated normed"), (120, 16, 4096, 4096, "split residual"),
        )
    },
    **{
        f"packed {kind}, {rows}x{k} to {n} for {arch}":
        lambda arch=arch, rows=rows, n=n, k=k, kind=kind: packed(arch, rows, n, k, kind)
        for arch, rows, n, k, kind in (
            *(("gfx942", 2, 1024, 4096, encoding) for encoding in ENCODINGS),
            *((90, 32, 1024, 4096, encoding) for encoding in ("Q5_1", "Q3_K")),
            *((90, 1, 64, 512, f"{encoding} rows") for encoding in ("Q4_1", "Q3_K")),
            *((arch, rows, 1024, 2304, "Q4_K") for arch in SHARED for rows in (1, 16)),
            *((arch, 256, 1024, 2304, "Q4_K") for arch in (90, 80, "gfx942")),
            (90, 128, 1024, 4096, "Q8_0"), (90, 1, 256, 576, "Q4_1 gated"), (90, 64, 512, 4096, "Q5_K gated"),
            (90, 128, 512, 2048, "Q6_K gated"), (90, 300, 512, 2048, "Q2_K"), (80, 64, 512, 4096, "Q6_K gated"),
            ("gfx942", 1, 512, 4096, "Q6_K gated"), ("gfx942", 64, 512, 4096, "Q5_K gated"),
            ("gfx942", 300, 512, 2048, "Q8_0"), ("gfx1100", 4, 512, 2048, "Q3_K"), ("gfx1100", 64, 512, 2048, "Q2_K"),
            ("gfx1100", 9, 512, 2048, "Q6_K rows"), (90, 64, 256, 576, "Q4_0 wide"),
        )
    },
}  # fmt: skip

if __name__ == "__main__":
    # A text of names, or a part of them all: 1/2.
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    part = re.fullmatch(r"(\d+)/(\d+)", wanted)
    checks = list(CHECKS.items())
    if part:
        wanted, checks = "", checks[int(part[1]) - 1 :: int(part[2])]
    for name, run in checks:
        if wanted in name:
            try:
                found = run()
            except Exception as error:
                found = f"{type(error).__name__}: {str(error)[:300]}"
                if wanted:
                    traceback.print_exc()
            print(f"{'PASS' if found is None else f'FAIL {found}'} | {name}", flush=True)
