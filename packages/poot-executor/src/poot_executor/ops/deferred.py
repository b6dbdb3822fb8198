"""Norms that are put off: of x / rms(x) * w, the product that makes x applies w, and those that read it divide by rms.

So a decode step needs no kernel for the norm between two products. The pass `defer_norms` makes these ops, for backends
that have kernels for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from poot_executor.encodings.types import Encoding, Ggml, WeightSource
from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import Example, Tolerance, dense_weight, floats, require
from poot_executor.ops.linear import GatedLinear, Linear, weight_noise
from poot_executor.ops.pointwise import Activation
from poot_executor.ops.residual import residual_case

if TYPE_CHECKING:
    import torch

# Columns whose squares are summed together.
SQUARES = 64


def squares_of(x: TensorType) -> TensorType:
    """The sums of squares of x (T, D): float32 (T, D / SQUARES, rounded up)."""
    return TensorType((x.shape[0], -(-x.shape[1] // SQUARES)), DType.F32, x.live)


def sum_squares(x: torch.Tensor) -> torch.Tensor:
    """See `squares_of`."""
    import torch

    missing = -x.shape[1] % SQUARES
    padded = torch.nn.functional.pad(x.float(), (0, missing))
    return padded.pow(2).view(len(x), -1, SQUARES).sum(-1)


def rms_scale(squares: torch.Tensor, width: int, eps: float) -> torch.Tensor:
    """1 / rms of the rows that the squares are of: (T, 1)."""
    import torch

    return torch.rsqrt(squares.sum(1, keepdim=True) / width + eps)


@dataclass(frozen=True, slots=True)
class ResidualLinear(Op):
    """A product, the residual's addition and half of the norm that follows.

    (x (T, K), weight (N, K), residual (T, N), norm weight (N,)) to: total = residual + x weight^T; total times
    (norm weight + offset); and total's sums of squares.
    """

    offset: float = 0.0

    tolerance: ClassVar = Tolerance(2e-4, 2e-4, 100.0)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, weight, residual, norm = inputs
        total = TensorType((x.shape[0], weight.shape[0]), DType.ACT, x.live)
        require(
            residual == total and norm.shape == weight.shape[:1], self, "{} and {} do not fit {}", residual, norm, total
        )
        return (total, total, squares_of(total))

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight, residual, norm = inputs
        total = residual.float() + x.float() @ weight.T
        return total, total * (norm + self.offset), sum_squares(total)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            residual_case(cls(), 2, 48, 128),
            residual_case(cls(1.0), 5, 1056, 72),
            residual_case(cls(), 29, 512, 200),
            residual_case(cls(), 1, 512, 200, Ggml("Q4_K")),
            residual_case(cls(1.0), 4, 1056, 72, Ggml("Q8_0")),
            residual_case(cls(), 40, 512, 72, Ggml("Q6_K")),
        )


@dataclass(frozen=True, slots=True)
class NormedLinear(Op):
    """A `Linear` of x / rms(x), where x is already times the norm's weight and its squares are given.

    (x (T, K), squares (T, K / SQUARES), weights, biases).
    """

    eps: float
    weights: int = 1
    bias: bool = False

    tolerance: ClassVar = Tolerance(2e-4, 2e-4, 100.0)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, squares, *rest = inputs
        require(squares == squares_of(x), self, "{} are not those of {}", squares, x)
        return Linear(self.weights, self.bias).infer(x, *rest)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, squares, *rest = inputs
        scaled = x.float() * rms_scale(squares, x.shape[1], self.eps)
        return Linear(self.weights, self.bias).reference(scaled, *rest)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            _normed_case(cls(1e-5), 3, 64, (24,)),
            _normed_case(cls(1e-6, 3, True), 31, 200, (32, 8, 8)),
            _normed_case(cls(1e-5, 3), 2, 512, (32, 8, 8), Ggml("Q4_K"), Ggml("Q4_K"), Ggml("Q6_K")),
            _normed_case(cls(1e-6, 2, True), 17, 256, (24, 16), Ggml("Q5_1")),
            _normed_case(cls(1e-5), 2, 96, (24,), Ggml("Q8_0")),
        )


@dataclass(frozen=True, slots=True)
class NormedGatedLinear(Op):
    """A `GatedLinear` of x / rms(x), where x is already times the norm's weight: (x, squares, gate, up)."""

    activation: Activation
    eps: float

    tolerance: ClassVar = Tolerance(2e-4, 2e-4, 100.0)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, squares, gate, up = inputs
        require(squares == squares_of(x), self, "{} are not those of {}", squares, x)
        return GatedLinear(self.activation).infer(x, gate, up)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, squares, gate, up = inputs
        return GatedLinear(self.activation).reference(x.float() * rms_scale(squares, x.shape[1], self.eps), gate, up)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            _normed_case(cls("silu", 1e-5), 2, 64, (40, 40)),
            _normed_case(cls("gelu_tanh", 1e-6), 31, 200, (72, 72)),
            _normed_case(cls("silu", 1e-5), 3, 512, (33, 33), Ggml("Q4_K")),
            _normed_case(cls("silu", 1e-5), 20, 256, (40, 40), Ggml("Q2_K")),
            _normed_case(cls("gelu_tanh", 1e-6), 5, 256, (24, 24), Ggml("Q5_K"), Ggml("Q3_K")),
        )


def _normed_case(
    op: NormedLinear | NormedGatedLinear, rows: int, width: int, outs: tuple[int, ...], *encodings: Encoding
) -> Example:
    """x with its squares, and weights (and biases) of these heights; one encoding is that of all."""
    bias = isinstance(op, NormedLinear) and op.bias

    def make(generator: torch.Generator) -> tuple[torch.Tensor | WeightSource, ...]:
        x = 3 * floats(generator, rows, width)
        of = encodings if len(encodings) == len(outs) else (encodings or (None,)) * len(outs)
        made = zip(outs, of, strict=True)
        weights = [weight_noise(generator, f"w{i}", n, width, encoding) for i, (n, encoding) in enumerate(made)]
        biases = [dense_weight(f"b{i}", floats(generator, n)) for i, n in enumerate(outs)] if bias else []
        return (x, sum_squares(x), *weights, *biases)

    x = TensorType((rows, width), DType.ACT, "tokens")
    types = [x, squares_of(x), *(TensorType((n, width), DType.F32) for n in outs)]
    if bias:
        types += [TensorType((n,), DType.F32) for n in outs]
    roles = (Role.INPUT, Role.INPUT, *(Role.WEIGHT for _ in types[2:]))
    name = f"{op} {rows}x{width} {', '.join(map(str, encodings))}".rstrip()
    return Example(name, op, tuple(types), roles, make, {"tokens": max(1, rows - 1)})
