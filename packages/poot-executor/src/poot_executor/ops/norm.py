"""Root mean square norms (arXiv 1910.07467)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import Example, Tolerance, dense_weight, floats, require

if TYPE_CHECKING:
    import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """The definition, in float32: x (..., D), weight (D,)."""
    import torch

    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (weight + offset)


@dataclass(frozen=True, slots=True)
class RmsNorm(Op):
    """x / rms(x) * (weight + offset) over the last dimension; x (..., D), weight (D,).

    `offset` is 1 for checkpoints that store the weight's distance from one (Gemma), else 0.
    """

    eps: float
    offset: float = 0.0

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, weight = inputs
        require(weight.shape == (x.shape[-1],), self, f"weight {weight} does not fit {x}")
        return (x,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (rms_norm(inputs[0], inputs[1], self.eps, self.offset),)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def case(op: Op, *shape: int) -> Example:
            return Example(
                f"{op} {shape}",
                op,
                (TensorType(shape, DType.ACT, "tokens"), TensorType(shape[-1:], DType.F32)),
                (Role.INPUT, Role.WEIGHT),
                lambda generator: (floats(generator, *shape), dense_weight("w", floats(generator, shape[-1]))),
                {"tokens": shape[0] - 1},
            )

        return (case(cls(1e-5), 4, 64), case(cls(1e-6, 1.0), 4, 40), case(cls(1e-6), 3, 2, 16), case(cls(1e-6), 2, 576))


@dataclass(frozen=True, slots=True)
class AddRmsNorm(Op):
    """(x + residual) and its RmsNorm, in one kernel: outputs (normed, sum), both shaped like x (T, D)."""

    eps: float
    offset: float = 0.0

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, residual, weight = inputs
        require(x == residual, self, f"{x} and residual {residual} differ")
        require(weight.shape == (x.shape[-1],), self, f"weight {weight} does not fit {x}")
        return (x, x)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = inputs[0] + inputs[1]
        return (rms_norm(total, inputs[2], self.eps, self.offset), total)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def case(op: Op, *shape: int) -> Example:
            x = TensorType(shape, DType.ACT, "tokens")
            return Example(
                f"{op} {shape}",
                op,
                (x, x, TensorType(shape[-1:], DType.F32)),
                (Role.INPUT, Role.INPUT, Role.WEIGHT),
                lambda generator: (
                    floats(generator, *shape),
                    floats(generator, *shape),
                    dense_weight("w", floats(generator, shape[-1])),
                ),
                {"tokens": shape[0] - 1},
            )

        return (case(cls(1e-5), 4, 64), case(cls(1e-6, 1.0), 2, 640))
