"""Products with packed weights in CUDA C++, run on the host by emulation, against dequantised weights in float64."""

from __future__ import annotations

import pytest
import torch
from cuda_host_device import HostDevice
from cuda_on_host import compiler
from cuda_products import Case, check_residual, surround

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


def run(case: Case, *, backwards: bool = False) -> tuple[Around, torch.Tensor]:
    """What the kernel made, and the product by the definition."""
    generator = torch.Generator().manual_seed(case.rows)
    rows, n, k = case.rows, case.n, case.k
    source = weight_noise(generator, "w", n * (2 if case.gate else 1), k, Ggml(case.name))
    device = HostDevice()
    device.backwards = backwards
    (segment,) = device.hold(WeightForm("packed", ("w",), 0), [source])
    x = torch.randn(rows, k, generator=generator).bfloat16()
    around = Around(torch.full((rows, n), torch.nan, dtype=case.out))
    around, wanted = surround(case, around, x.double() @ dequantise(source).double().T, generator)
    parts = torch.full((parts_bytes(rows, n, k) // 4,), torch.nan)
    assert case.how is None or isinstance(case.how, Tiling)
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
    Case("Q4_1", 40, 66, 192, bias=True, out=torch.float32, how=Tiling(64, 4, 1, 1, 128, 2, wide=True)),
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
    check_residual(case, around)


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
