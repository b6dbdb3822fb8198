"""Root mean square norms (arXiv 1910.07467) and layer norms (arXiv 1607.06450)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import Example, Tolerance, dense_weight, floats, require

if TYPE_CHECKING:
    import torch

    from poot_executor.encodings.types import WeightSource


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
        require(weight.shape == (x.shape[-1],), self, "weight {} does not fit {}", weight, x)
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
        require(x == residual, self, "{} and residual {} differ", x, residual)
        require(weight.shape == (x.shape[-1],), self, "weight {} does not fit {}", weight, x)
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


@dataclass(frozen=True, slots=True)
class LayerNorm(Op):
    """(x - mean) / sqrt(variance + eps) [* weight] [+ bias] over the last dimension, in float32.

    Inputs: x (..., D), the weight if `weight`, the bias if `bias`. Both are (D,), or (H, D) for x (T, H, D) whose heads
    have weights of their own (Command-R).
    """

    eps: float
    weight: bool = True
    bias: bool = False

    tolerance: ClassVar = Tolerance(2e-5, 1e-5)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, *weights = inputs
        require(len(weights) == self.weight + self.bias, self, "{} weights and biases given", len(weights))
        for weight in weights:
            fits = weight.shape in (x.shape[-1:], x.shape[1:]) and weight.shape == weights[0].shape
            require(fits, self, "weight {} does not fit {}", weight, x)
        return (x,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        x, *weights = inputs
        centred = x.float() - x.float().mean(-1, keepdim=True)
        result = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.weight:
            result = result * weights[0]
        return (result + weights[-1] if self.bias else result,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            _layer_norm_case(cls(1e-5), (4, 64), (64,)),
            _layer_norm_case(cls(1e-5, bias=True), (5, 40), (40,)),
            _layer_norm_case(cls(1e-5, weight=False), (3, 72), ()),
            _layer_norm_case(cls(1e-5, weight=False, bias=True), (1, 48), (48,)),
            _layer_norm_case(cls(1e-5), (4, 3, 24), (3, 24)),
            _layer_norm_case(cls(1e-6, bias=True), (3, 2, 16), (2, 16)),
            _layer_norm_case(cls(1e-6, bias=True), (3, 2, 16), (16,)),
            _layer_norm_case(cls(1e-5, bias=True), (2, 640), (640,)),
        )


def _layer_norm_case(op: LayerNorm, shape: tuple[int, ...], weight: tuple[int, ...]) -> Example:
    """Rows whose mean is far from zero, all but one live."""
    names = [name for name, there in (("w", op.weight), ("b", op.bias)) if there]

    def make(generator: torch.Generator) -> tuple[torch.Tensor | WeightSource, ...]:
        weights = [dense_weight(name, floats(generator, *weight)) for name in names]
        return (floats(generator, *shape) + 3.0, *weights)

    types = (TensorType(shape, DType.ACT, "tokens"), *(TensorType(weight, DType.F32) for _ in names))
    roles = (Role.INPUT, *(Role.WEIGHT for _ in names))
    return Example(f"{op} {shape} by {weight}", op, types, roles, make, {"tokens": max(1, shape[0] - 1)})
