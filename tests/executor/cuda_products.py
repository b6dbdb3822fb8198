"""Products with packed weights for tests of kernels in CUDA C++: what there is around one, and the same in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from poot_executor.backends.cuda import packed_dot, packed_product
from poot_executor.backends.triton.kernels.products import Around


@dataclass(frozen=True)
class Case:
    """A product of rows (rows, k) with (n, k); `squares` is the size of the sums of squares, `scale` that of rows."""

    name: str
    rows: int
    n: int
    k: int
    gate: str | None = None
    normed: bool = False
    residual: bool = False
    bias: bool = False
    out: torch.dtype = torch.bfloat16
    how: packed_dot.Tiling | packed_product.Tiling | None = None
    squares: float = 1.0
    scale: float = 1.0


def surround(case: Case, around: Around, wanted: torch.Tensor, noise: torch.Generator) -> tuple[Around, torch.Tensor]:
    """Add what a case has to a product's surroundings, and do it to the product, float64 (rows, n or 2 n)."""
    rows, n, k = case.rows, case.n, case.k
    if case.normed:
        squares = torch.rand(rows, -(-k // 64), generator=noise) * case.squares
        around = replace(around, squares=squares, eps=1e-5)
        wanted = wanted / torch.sqrt(squares.double().sum(1) / k + 1e-5)[:, None]
    if case.bias:
        bias = torch.randn(n, generator=noise)
        around, wanted = replace(around, bias=bias), wanted + bias
    if case.gate:
        inner, up = wanted[:, :n], wanted[:, n:]
        silu = case.gate == "silu"
        wanted = up * (torch.nn.functional.silu(inner) if silu else torch.nn.functional.gelu(inner, approximate="tanh"))
        around = replace(around, gate=case.gate)
    if case.residual:
        residual, gain = torch.randn(rows, n, generator=noise).bfloat16(), torch.randn(n, generator=noise)
        scaled, sums = torch.full((rows, n), torch.nan).bfloat16(), torch.full((rows, -(-n // 64)), torch.nan)
        around = replace(around, residual=residual, gain=gain, offset=1.0, scaled=scaled, sums=sums)
        wanted = wanted + residual
    return around, wanted


def check_residual(case: Case, around: Around) -> None:
    """That the next norm is put off as it should: of the sum as it is kept."""
    kept = around.out.double()
    assert around.scaled is not None
    assert around.gain is not None
    assert around.sums is not None
    weighted = kept * (around.gain + 1.0)
    assert float((around.scaled.double() - weighted).norm() / weighted.norm()) < 2**-8
    squares = torch.nn.functional.pad(kept * kept, (0, -case.n % 64)).view(case.rows, -1, 64).sum(2)
    torch.testing.assert_close(around.sums.double(), squares, rtol=1e-6, atol=1e-6)
