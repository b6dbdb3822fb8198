"""Elementwise ops: arithmetic, activations and gated activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import EXACT, Example, Tolerance, floats, require

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
        require(x == y, self, "{} and {} differ", x, y)
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
        require(x == y, self, "{} and {} differ", x, y)
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
class Clamp(Op):
    """x, no further from zero than `limit`."""

    limit: float

    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (inputs[0].clamp(-self.limit, self.limit),)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        # A limit that every element type holds exactly.
        return (_example(cls(0.75), (5, 24), scale=2.0),)


@dataclass(frozen=True, slots=True)
class Gelu(Op):
    """x Phi(x) (arXiv 1606.08415): with the normal distribution itself ("erf") or the paper's "tanh" form of it."""

    form: Literal["tanh", "erf"]

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from torch.nn import functional

        return (functional.gelu(inputs[0], approximate="tanh" if self.form == "tanh" else "none"),)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            _example(cls("tanh"), (5, 24), scale=3.0),
            _example(cls("erf"), (5, 24), scale=3.0),
            _example(cls("tanh"), (2, 1200), scale=8.0),
        )


@dataclass(frozen=True, slots=True)
class XIelu(Op):
    """xIELU (arXiv 2411.13010), whose slopes are learned: a parabola above zero, an exponential below.

    x > 0: alpha_p x^2 + beta x; else alpha_n (exp(min(x, eps)) - 1 - x) + beta x. `alpha_p` and `alpha_n` are the
    slopes themselves, not what checkpoints store for them; `eps` is a little below zero.
    """

    alpha_p: float
    alpha_n: float
    beta: float
    eps: float

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        (x,) = inputs
        below = (torch.expm1(x.clamp(max=self.eps)) - x) * self.alpha_n
        return (torch.where(x > 0, self.alpha_p * x * x, below) + self.beta * x,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        # Slopes as after training, and an eps that is not as good as zero.
        return (
            _example(cls(0.8, 0.8, 0.5, -1e-6), (5, 24), scale=3.0),
            _example(cls(1.7, 2.3, 0.25, -0.125), (3, 1200), scale=0.3),
        )


@dataclass(frozen=True, slots=True)
class GatedActivation(Op):
    """activation(gate) * up over x = [gate | up] of width 2 F (GLU variants, arXiv 2002.05202)."""

    activation: Activation

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = inputs
        require(x.shape[-1] % 2 == 0, self, "{} has no two halves", x)
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
