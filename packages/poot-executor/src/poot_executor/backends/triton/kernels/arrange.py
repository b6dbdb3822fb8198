"""A step's activations arranged for products with packed weights: as bytes for integer dot products, or by place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.codes import element, place
from poot_executor.backends.triton.kernels.kernel import begin_kernel, typed
from poot_executor.backends.triton.packed import OCT
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operand

# Elements that share a scale when activations are quantised.
QUANTISED = 32
# A group of smaller elements is zeros: a step's inverse would be infinite.
_LEAST: tl.constexpr = tl.constexpr(1e-36)
_GROUPS = 8  # groups of them that a program quantises


@triton.jit
def _quantise(x, quads, scale, sums, halves, pitch, k, GROUPS: tl.constexpr, PDL: tl.constexpr):
    """One program: a row's groups of 32, each rounded to whole steps of a 127th of its largest magnitude.

    Elements 0, 4, 1, 5 of oct i are the bytes of int32 i of a row's first k / 8, elements 2, 6, 3, 7 of its second. The
    sums of 32 and of 16 elements are those of the rounded values.
    """
    row = tl.program_id(0)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    of_group = tl.arange(0, 32)
    at = group[:, None] * 32 + of_group[None, :]
    mask = at < k
    begin_kernel(PDL)
    value = tl.load(x + row * pitch + at, mask=mask, other=0.0).to(tl.float32)
    most = tl.max(tl.abs(value), 1)
    step = most / 127.0
    whole = tl.floor(value * (127.0 / tl.where(most > _LEAST, most, 1.0))[:, None] + 0.5)
    byte = place(of_group % 8)[None, :]
    tl.store(quads + row * k + byte // 4 * (k // 2) + (at // 8) * 4 + byte % 4, whole.to(tl.int8), mask=mask)
    there = group < k // 32
    tl.store(scale + row * (k // 32) + group, step, mask=there)
    tl.store(sums + row * (k // 32) + group, step * tl.sum(whole, 1), mask=there)
    first = step * tl.sum(tl.where(of_group[None, :] < 16, whole, 0.0), 1)
    second = step * tl.sum(tl.where(of_group[None, :] < 16, 0.0, whole), 1)
    tl.store(halves + row * (k // 16) + group * 2, first, mask=there)
    tl.store(halves + row * (k // 16) + group * 2 + 1, second, mask=there)


@dataclass(frozen=True, slots=True)
class Quantised:
    """Rows as int8: quads (rows, 2, K / 8) int32, scale and sums of 32 (rows, K / 32), sums of 16 (rows, K / 16)."""

    quads: torch.Tensor
    scale: torch.Tensor
    sums: torch.Tensor
    halves: torch.Tensor

    @classmethod
    def room(cls, workspace: Operand, rows: int, k: int) -> Quantised:
        return cls(
            typed(workspace, (rows, 2, k // OCT), None, DType.I32),
            typed(workspace, (rows, k // 32), None, DType.F32, rows * k),
            typed(workspace, (rows, k // 32), None, DType.F32, rows * (k + k // 8)),
            typed(workspace, (rows, k // 16), None, DType.F32, rows * (k + k // 4)),
        )

    @staticmethod
    def nbytes(rows: int, k: int) -> int:
        return rows * (k + k // 2)

    def fill(self, x: torch.Tensor, device: Any) -> Callable[[], object]:
        """The launch that quantises x (rows, K)."""
        rows, k = x.shape
        grid = (rows, triton.cdiv(k, QUANTISED * _GROUPS))
        quads = self.quads.view(torch.int8)
        return lambda: _quantise[grid](
            x, quads, self.scale, self.sums, self.halves, x.stride(0), k, GROUPS=_GROUPS, num_warps=1, **device.launch
        )


@triton.jit
def _spread(x, out, pitch, octs, size, OCTS: tl.constexpr, PDL: tl.constexpr):
    """The element of oct i whose code is byte j, to place i of the row's j-th part; parts are `size` elements apart."""
    row = tl.program_id(0)
    of_oct = tl.program_id(1) * OCTS + tl.arange(0, OCTS)
    of_byte = tl.arange(0, 8)
    mask = (of_oct < octs)[:, None]
    begin_kernel(PDL)
    value = tl.load(x + row * pitch + of_oct[:, None] * 8 + element(of_byte)[None, :], mask=mask)
    tl.store(out + of_byte[None, :] * size + row * octs + of_oct[:, None], value, mask=mask)


def spread(x: torch.Tensor, out: torch.Tensor, device: Any) -> Callable[[], object]:
    """The launch that puts x (rows, K) into out (8, rows, K / 8): out[j, row, i] = x[row, 8 i + element(j)]."""
    rows, octs = x.shape[0], x.shape[1] // OCT
    block = min(128, triton.next_power_of_2(octs))
    grid = (rows, triton.cdiv(octs, block))
    return lambda: _spread[grid](x, out, x.stride(0), octs, rows * octs, OCTS=block, **device.launch)
