"""Products with packed weights in CUDA C++, run on the host by emulation, against dequantised weights in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from cuda_host_device import HostDevice
from cuda_on_host import compiler

from poot_executor.backends.cuda.packed_product import Tiling, packed_product, parts_bytes, tiling
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import LAYOUTS
from poot_executor.encodings import Ggml
from poot_executor.encodings.dequantise import dequantise
from poot_executor.kernels import WeightForm
from poot_executor.ops.linear import weight_noise

pytestmark = pytest.mark.skipif(compiler() is None, reason="no g++ to compile kernels with")
# Weights, scales and minimums are rounded to bfloat16: 2^-9 of a number at most, and offsets cancel some.
TOLERANCE = 6e-3


@dataclass(frozen=True)
class Case:
    """A product of rows (rows, k) with (n, k)."""

    name: str
    rows: int
    n: int
    k: int
    gate: str | None = None
    normed: bool = False
    residual: bool = False
    bias: bool = False
    out: torch.dtype = torch.bfloat16
    how: Tiling | None = None


def run(case: Case, *, backwards: bool = False) -> tuple[Around, torch.Tensor]:
    """What the kernel made, and the product by the definition."""
    generator = torch.Generator().manual_seed(case.rows)
    rows, n, k = case.rows, case.n, case.k
    source = weight_noise(generator, "w", n * (2 if case.gate else 1), k, Ggml(case.name))
    device = HostDevice()
    device.backwards = backwards
    (segment,) = device.hold(WeightForm("packed", ("w",), 0), [source])
    x = torch.randn(rows, k, generator=generator).bfloat16()
    around = Around(torch.full((rows, n), torch.nan, dtype=case.out), gate=case.gate)
    wanted = x.double() @ dequantise(source).double().T
    if case.normed:
        squares = torch.rand(rows, -(-k // 64), generator=generator)
        around = replace(around, squares=squares, eps=1e-5)
        wanted /= torch.sqrt(squares.double().sum(1) / k + 1e-5)[:, None]
    if case.bias:
        around = replace(around, bias=torch.randn(n, generator=generator))
        assert around.bias is not None
        wanted += around.bias
    if case.gate:
        inner, up = wanted[:, :n], wanted[:, n:]
        silu = case.gate == "silu"
        wanted = up * (torch.nn.functional.silu(inner) if silu else torch.nn.functional.gelu(inner, approximate="tanh"))
    if case.residual:
        residual, gain = torch.randn(rows, n, generator=generator).bfloat16(), torch.randn(n, generator=generator)
        scaled, sums = torch.full((rows, n), torch.nan).bfloat16(), torch.full((rows, -(-n // 64)), torch.nan)
        around = replace(around, residual=residual, gain=gain, offset=1.0, scaled=scaled, sums=sums)
        wanted += residual
    parts = torch.full((parts_bytes(rows, n, k) // 4,), torch.nan)
    launch = packed_product(x, segment, around, parts, device, how=case.how)
    launch()
    first = around.out.clone()
    launch()  # locks are as they were
    assert torch.equal(first, around.out)
    return around, wanted


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("rows", [5, 50])
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_codes_of_every_layout(name: str, rows: int) -> None:
    """5 rows by mma.m16n8k16, 50 by the asynchronous matrix unit."""
    around, wanted = run(Case(name, rows, 72, 512 if name.endswith("K") else 576))
    assert off(around.out, wanted) < TOLERANCE


CASES = [
    Case("Q4_K", 1, 128, 2048, bias=True, out=torch.float32),
    Case("Q6_K", 33, 80, 1024, gate="silu", normed=True),
    Case("Q5_0", 130, 40, 320, gate="gelu_tanh", normed=True),
    Case("Q8_0", 70, 128, 320, bias=True),
    Case("Q4_1", 40, 66, 192, bias=True, out=torch.float32, how=Tiling(64, 4, 1, 1, 128, 2, wide=True, resident=2)),
    Case("Q5_1", 20, 72, 320, gate="silu", how=Tiling(32, 2, 2, 4, 256, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_around_a_product(case: Case) -> None:
    around, wanted = run(case)
    assert off(around.out, wanted) < TOLERANCE


@pytest.mark.parametrize(
    "case",
    [
        Case("Q4_K", 20, 100, 2048, residual=True),
        Case("Q6_K", 100, 130, 1024, residual=True),
        Case("Q4_1", 3, 130, 64, residual=True, bias=True, how=Tiling(8, 8, 1, 1, 128, 2)),
    ],
    ids=str,
)
def test_the_sum_with_a_residual_and_the_norm_that_is_put_off(case: Case) -> None:
    around, wanted = run(case)
    assert off(around.out, wanted) < TOLERANCE
    kept = around.out.double()
    assert around.scaled is not None
    assert around.gain is not None
    assert off(around.scaled, kept * (around.gain + 1.0)) < 2**-8
    squares = torch.nn.functional.pad(kept * kept, (0, -case.n % 64)).view(case.rows, -1, 64).sum(2)
    assert around.sums is not None
    torch.testing.assert_close(around.sums.double(), squares, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [9, 40])
def test_results_do_not_depend_on_who_comes_first(rows: int) -> None:
    case = Case("Q4_K", rows, 64, 2048, residual=True)
    (forward, _), (backward, _) = run(case), run(case, backwards=True)
    for one, other in ((forward.out, backward.out), (forward.sums, backward.sums), (forward.scaled, backward.scaled)):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


@pytest.mark.parametrize("shared", [48 * 1024, 99 * 1024, 227 * 1024])
@pytest.mark.parametrize("rows", [1, 8, 17, 64, 100, 256])
@pytest.mark.parametrize("n", [1024, 4096, 28672, 128256])
def test_blocks_fit_into_shared_memory(rows: int, n: int, shared: int) -> None:
    for layout in LAYOUTS.values():
        for gated in (False, True):
            how = tiling(rows, n, 4096, layout, gated=gated, processors=84, shared=shared, wide=shared > 2**17)
            assert how.shared(layout) <= shared
            assert 32 <= how.threads <= 1024
            assert how.splits == 1 or how.splits * n <= 2**16
            assert 4 * rows * n * how.splits <= parts_bytes(rows, n, 4096) or how.splits == 1
