"""A product with what follows it in a decoder: the residual's addition and the next norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from poot_executor.encodings.types import Encoding, WeightSource
from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import Example, Tolerance, dense_weight, floats, require
from poot_executor.ops.linear import weight_noise
from poot_executor.ops.norm import rms_norm

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LinearAddRmsNorm(Op):
    """(x (T, K), weight (N, K), residual (T, N), norm weight (N,)) to (RmsNorm(total), total), both (T, N).

    total = residual + x weight^T. The pass `fuse_product_norm` makes it, for backends that add up a product's parts
    themselves. `eps` and `offset` are RmsNorm's.
    """

    eps: float
    offset: float = 0.0

    tolerance: ClassVar = Tolerance(2e-4, 2e-4, 100.0)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, weight, residual, norm = inputs
        total = TensorType((x.shape[0], weight.shape[0]), DType.ACT, x.live)
        require(x.shape[1:] == weight.shape[1:], self, "{} does not fit {}", weight, x)
        require(
            residual == total and norm.shape == weight.shape[:1], self, "{} and {} do not fit {}", residual, norm, total
        )
        return (total, total)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight, residual, norm = inputs
        total = residual.float() + x.float() @ weight.T
        return rms_norm(total, norm, self.eps, self.offset), total

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            residual_case(cls(1e-5), 72, 64, 128),
            residual_case(cls(1e-6, 1.0), 100, 1056, 72),
            residual_case(cls(1e-6), 256, 24, 200),
        )


def residual_case(op: Op, rows: int, width: int, out: int, encoding: Encoding | None = None) -> Example:
    """x (rows, width), a weight to `out` columns, a residual and a norm's weight; all rows but one live."""

    def make(generator: torch.Generator) -> tuple[torch.Tensor | WeightSource, ...]:
        weight = weight_noise(generator, "w", out, width, encoding)
        norm = dense_weight("norm", floats(generator, out))
        return floats(generator, rows, width), weight, floats(generator, rows, out), norm

    x, total = (TensorType((rows, size), DType.ACT, "tokens") for size in (width, out))
    types = (x, TensorType((out, width), DType.F32), total, TensorType((out,), DType.F32))
    roles = (Role.INPUT, Role.WEIGHT, Role.INPUT, Role.WEIGHT)
    return Example(
        f"{op} {rows}x{width} to {out} {encoding or ''}".rstrip(), op, types, roles, make, {"tokens": max(1, rows - 1)}
    )
