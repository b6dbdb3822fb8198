"""Integer dot products with packed weights in CUDA C++, run on the host by emulation, against float64.

Rows are whole numbers that no quantisation changes, so results must be as good as in float32.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch
from cuda_host_device import HostDevice
from cuda_on_host import compiler
from cuda_products import Case, check_residual, surround

from poot_executor.backends.cuda.packed_dot import MOST_ROWS, Tiling, faster_rows, most_rows, packed_dot, tiling
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import LAYOUTS, empty_segment
from poot_executor.encodings import Ggml
from poot_executor.encodings.dequantise import dequantise
from poot_executor.kernels import WeightForm
from poot_executor.ops.linear import weight_noise

pytestmark = pytest.mark.skipif(compiler() is None, reason="no g++ to compile kernels with")
FLOAT = torch.float32
SMALL = Tiling(lanes=8, outs=2, cuts=1, warps=2, stages=2)


class Device(HostDevice):
    """Of so few multiprocessors that a block has several turns."""

    processors = 2


def whole_rows(case: Case, generator: torch.Generator) -> torch.Tensor:
    """From -127 to 127, one of them 127 in each group of 32 but for the first, which is zeros, times a power of two."""
    x = torch.randint(-127, 128, (case.rows, case.k // 32, 32), generator=generator)
    x[:, :, 5] = 127
    x[0, 0] = 0
    return x.view(case.rows, case.k).bfloat16() * case.scale


def run(case: Case, *, backwards: bool = False, x: torch.Tensor | None = None) -> tuple[Around, torch.Tensor]:
    """What the kernel made, and the product by the definition."""
    generator = torch.Generator().manual_seed(case.rows)
    rows, n, k = case.rows, case.n, case.k
    source = weight_noise(generator, "w", n * (2 if case.gate else 1), k, Ggml(case.name))
    device = Device()
    device.backwards = backwards
    (segment,) = device.hold(WeightForm("packed", ("w",), 0), [source])
    wide = torch.full((rows, k + 8), nan, dtype=torch.bfloat16)
    wide[:, :k] = whole_rows(case, generator) if x is None else x
    x = wide[:, :k]
    out = torch.full((rows, n if case.residual else n + 3), nan, dtype=case.out)
    around, wanted = surround(case, Around(out[:, :n]), x.double() @ dequantise(source).double().T, generator)
    how = case.how or SMALL
    assert isinstance(how, Tiling)
    launch = packed_dot(x, segment, around, device, how=how)
    launch()
    first = around.out.clone()
    launch()  # locks are as they were
    assert torch.equal(first.nan_to_num(), around.out.nan_to_num())
    assert out[:, n:].isnan().all()
    return around, wanted


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_codes_of_every_layout(name: str) -> None:
    around, wanted = run(Case(name, 2, 50, 768 if name.endswith("K") else 576, out=FLOAT))
    assert off(around.out, wanted) < 1e-6


CASES = [
    Case("Q4_K", 1, 128, 2048, bias=True, out=FLOAT, how=Tiling(32, 1, 2, 4, 1)),
    Case(
        "Q6_K", 3, 21, 512, gate="silu", normed=True, out=FLOAT, squares=1e4, scale=2.0**-7, how=Tiling(16, 2, 1, 2, 2)
    ),
    Case(
        "Q5_0",
        4,
        40,
        320,
        gate="gelu_tanh",
        normed=True,
        out=FLOAT,
        squares=1e4,
        scale=2.0**-7,
        how=Tiling(8, 1, 2, 4, 2),
    ),
    Case("Q4_K", 4, 9, 256, out=FLOAT, scale=2.0**-100),
    Case("Q8_0", 8, 10, 64, bias=True, out=FLOAT, how=Tiling(4, 1, 1, 1, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_around_a_product(case: Case) -> None:
    around, wanted = run(case)
    assert off(around.out, wanted) < 1e-6


SUMMED = [
    Case("Q4_K", 1, 200, 512, residual=True, normed=True, squares=1e4),
    Case("Q4_1", 3, 130, 64, residual=True, bias=True, how=Tiling(32, 1, 1, 2, 1)),
    Case("Q3_K", 2, 64, 1024, residual=True, how=Tiling(8, 2, 2, 4, 2)),
]


@pytest.mark.parametrize("case", SUMMED, ids=str)
def test_the_sum_with_a_residual_and_the_norm_that_is_put_off(case: Case) -> None:
    around, wanted = run(case)
    assert off(around.out, wanted) < 2**-8
    check_residual(case, around)


def test_results_do_not_depend_on_who_comes_first() -> None:
    (forward, _), (backward, _) = run(SUMMED[2]), run(SUMMED[2], backwards=True)
    for one, other in ((forward.out, backward.out), (forward.sums, backward.sums), (forward.scaled, backward.scaled)):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_rounding_is_to_the_nearest_step_of_a_group() -> None:
    """Rows of random numbers: as those that are rounded beforehand."""
    case = Case("Q4_0", 2, 16, 128, out=FLOAT)
    x = torch.randn(2, 128, generator=torch.Generator().manual_seed(3)).bfloat16()
    groups = x.double().view(2, -1, 32)
    step = groups.abs().amax(2, keepdim=True) / 127
    rounded = (torch.floor(groups / step + 0.5) * step).view(2, 128)
    (segment_out, _), source = (
        run(case, x=x),
        weight_noise(torch.Generator().manual_seed(2), "w", 16, 128, Ggml("Q4_0")),
    )
    assert off(segment_out.out, rounded @ dequantise(source).double().T) < 1e-6


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
@pytest.mark.parametrize("largest", [1e-40, inf, nan])
def test_a_group_without_a_step(name: str, largest: float) -> None:
    """Numbers too small for their step to have an inverse are zeros; infinite ones are a row's end, and no others'."""
    case = Case(name, 2, 16, 512, out=FLOAT)
    x = torch.zeros(2, 512).bfloat16()
    x[0, 32:64], x[0, 40], x[1] = largest, -largest, 1.0
    around, wanted = run(case, x=x)
    assert off(around.out[1], wanted[1]) < 1e-6
    assert (around.out[0] == 0).all() if largest < 1 else around.out[0].isnan().all()


@pytest.mark.parametrize("shared", [99 * 1024, 227 * 1024])
@pytest.mark.parametrize("k", [576, 4096, 14336, 53248])
def test_blocks_fit(k: int, shared: int) -> None:
    for layout in LAYOUTS.values():
        for rows in range(1, most_rows(k, layout, shared) + 1):
            for n, gated in ((64, False), (4096, False), (14336, True), (128256, False)):
                how = tiling(rows, n, k, layout, gated=gated)
                assert how.shared(layout, rows, k, gated=gated) <= shared
                assert 64 % how.warp_outs == 0
                assert how.warps % how.cuts == 0
                assert how.threads <= 1024
    assert most_rows(4096, LAYOUTS["Q4_K"], shared) == MOST_ROWS
    assert most_rows(10**6, LAYOUTS["Q4_K"], shared) == 0


@pytest.mark.parametrize(("k", "rows"), [(576, 0), (1536, 0), (2048, 2), (14336, 2), (10**6, 0)])
def test_rows_of_small_models_are_not_rounded(k: int, rows: int) -> None:
    assert faster_rows(empty_segment(LAYOUTS["Q8_0"], 0, 64, k, "meta"), 227 * 1024) == rows


def test_other_x_is_refused() -> None:
    case: Any = Case("Q4_0", 1, 16, 64)
    with pytest.raises(ValueError, match="rows"):
        run(replace(case, rows=MOST_ROWS + 1))
