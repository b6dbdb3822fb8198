"""Elementwise ops and gated activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import Example, Tolerance, floats, require

if TYPE_CHECKING:
    import torch

Activation = Literal["silu", "gelu_tanh"]


def _example(op: Op, *shapes: tuple[int, ...], scale: float = 1.0) -> Example:
    """Float inputs of these shapes, all but one leading row live."""
    types = tuple(TensorType(shape, DType.ACT, "tokens") for shape in shapes)
    return Example(
        f"{op} {shapes}",
        op,
        types,
        (Role.INPUT,) * len(shapes),
        lambda generator: tuple(floats(generator, *shape, scale=scale) for shape in shapes),
        {"tokens": shapes[0][0] - 1},
    )


@dataclass(frozen=True, slots=True)
class Add(Op):
    """x + y."""

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, y = inputs
        require(x == y, self, f"{x} and {y} differ")
        return (x,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (inputs[0] + inputs[1],)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (_example(cls(), (5, 24), (5, 24)),)


@dataclass(frozen=True, slots=True)
class Mul(Op):
    """x * y."""

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, y = inputs
        require(x == y, self, f"{x} and {y} differ")
        return (x,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (inputs[0] * inputs[1],)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (_example(cls(), (5, 24), (5, 24)),)


@dataclass(frozen=True, slots=True)
class Scale(Op):
    """factor * x."""

    factor: float

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (inputs[0] * self.factor,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (_example(cls(0.25), (5, 24)),)


@dataclass(frozen=True, slots=True)
class SoftCap(Op):
    """cap * tanh(x / cap): keeps values within (-cap, cap) (Gemma 2, arXiv 2408.00118)."""

    cap: float

    tolerance: ClassVar = Tolerance(1e-4, 1e-5)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        return (torch.tanh(inputs[0] / self.cap) * self.cap,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (_example(cls(30.0), (5, 24), scale=40.0),)


@dataclass(frozen=True, slots=True)
class GatedActivation(Op):
    """activation(gate) * up over x = [gate | up] of width 2 F (GLU variants, arXiv 2002.05202)."""

    activation: Activation

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = inputs
        require(x.shape[-1] % 2 == 0, self, f"{x} has no two halves")
        return (x.with_shape(*x.shape[:-1], x.shape[-1] // 2),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from torch.nn import functional

        gate, up = inputs[0].chunk(2, dim=-1)
        if self.activation == "silu":
            return (functional.silu(gate) * up,)
        return (functional.gelu(gate, approximate="tanh") * up,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            _example(cls("silu"), (5, 48), scale=3.0),
            _example(cls("silu"), (3, 64), scale=8.0),
            _example(cls("gelu_tanh"), (2, 32), scale=3.0),
        )
