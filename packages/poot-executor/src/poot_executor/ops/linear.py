"""Products with weights in any encoding, and the embedding gather."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from poot_executor.encodings.types import Encoding, Ggml, WeightSource, block_size, nbytes
from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import Example, Tolerance, dense_weight, floats, require
from poot_executor.ops.pointwise import Activation, GatedActivation

if TYPE_CHECKING:
    import torch

_GGML = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """x @ [w0; w1; ...]^T (+ [b0 | b1 | ...]): x (T, K), weights (N_i, K), biases (N_i,), result (T, sum N_i).

    More than one weight is a fused product (QKV, gate and up). Inputs: x, the weights, then the biases if `bias`.
    `out` is the result's element type: float32 for logits, else the activation type.
    """

    weights: int = 1
    bias: bool = False
    out: DType = DType.ACT

    tolerance: ClassVar = Tolerance(2e-4, 2e-4, 100.0)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, *rest = inputs
        require(len(rest) == self.weights * (2 if self.bias else 1), self, "{} weights and biases given", len(rest))
        weights, biases = rest[: self.weights], rest[self.weights :]
        for weight in weights:
            require(
                len(weight.shape) == 2 and weight.shape[1] == x.shape[-1], self, "weight {} does not fit {}", weight, x
            )
        for weight, bias in zip(weights, biases, strict=False):
            require(bias.shape == weight.shape[:1], self, "bias {} does not fit {}", bias, weight)
        return (TensorType((*x.shape[:-1], sum(w.shape[0] for w in weights)), self.out, x.live),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        x, *rest = inputs
        weight = torch.cat(rest[: self.weights])
        result = x.float() @ weight.T
        return (result + torch.cat(rest[self.weights :]) if self.bias else result,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        dense = [
            _linear_case(cls(), 3, 32, (24,)),
            _linear_case(cls(3), 5, 48, (32, 8, 8)),
            _linear_case(cls(2, True), 2, 32, (16, 16)),
            _linear_case(cls(out=DType.F32), 9, 40, (17,)),
        ]
        packed = [_linear_case(cls(), 3, 512, (40,), Ggml(name)) for name in _GGML]
        packed += [
            _linear_case(cls(2), 1, 256, (32, 16), Ggml("Q4_1")),
            _linear_case(cls(), 40, 256, (32,), Ggml("Q6_K")),
            _linear_case(cls(2), 70, 256, (32, 48), Ggml("Q5_K")),
            _linear_case(cls(3), 2, 256, (32, 8, 8), Ggml("Q4_K"), Ggml("Q4_K"), Ggml("Q6_K")),
            _linear_case(cls(2, True), 3, 256, (16, 8), Ggml("Q8_0")),
            _linear_case(cls(2, True), 300, 256, (24, 8), Ggml("Q4_K"), Ggml("Q6_K")),
        ]
        return (*dense, *packed)


@dataclass(frozen=True, slots=True)
class GatedLinear(Op):
    """activation(x gate^T) * (x up^T) (GLU variants, arXiv 2002.05202): x (T, K), gate and up (F, K), result (T, F).

    The pass `fuse_gated` makes it, for backends that have a kernel for it.
    """

    activation: Activation

    tolerance: ClassVar = Tolerance(2e-4, 2e-4, 100.0)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, gate, up = inputs
        require(gate.shape == up.shape, self, "gate {} and up {} differ", gate, up)
        require(len(gate.shape) == 2 and gate.shape[1] == x.shape[-1], self, "weight {} does not fit {}", gate, x)
        return (TensorType((*x.shape[:-1], gate.shape[0]), DType.ACT, x.live),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return GatedActivation(self.activation).reference(*Linear(2).reference(*inputs))

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            _linear_case(cls("silu"), 1, 48, (24, 24)),
            _linear_case(cls("silu"), 5, 40, (17, 17)),
            _linear_case(cls("gelu_tanh"), 9, 64, (33, 33)),
            _linear_case(cls("silu"), 1, 256, (48, 48), Ggml("Q4_K")),
            _linear_case(cls("silu"), 3, 512, (40, 40), Ggml("Q4_K"), Ggml("Q6_K")),
            _linear_case(cls("gelu_tanh"), 2, 256, (16, 16), Ggml("Q8_0")),
            _linear_case(cls("silu"), 70, 256, (32, 32), Ggml("Q5_K")),
            _linear_case(cls("silu"), 300, 256, (16, 16), Ggml("Q4_K")),
        )


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """Rows of a table (V, D), in any encoding, times `scale`: ids (T,) to (T, D)."""

    scale: float = 1.0

    tolerance: ClassVar = Tolerance(1e-5, 1e-5)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        ids, table = inputs
        require(len(ids.shape) == 1 and len(table.shape) == 2, self, "cannot gather {} from {}", ids, table)
        return (TensorType((ids.shape[0], table.shape[1]), DType.ACT, ids.live),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (inputs[1][inputs[0].long()] * self.scale,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def case(op: Op, encoding: Encoding | None, width: int) -> Example:
            import torch

            def make(generator: torch.Generator) -> tuple[torch.Tensor | WeightSource, ...]:
                ids = torch.randint(0, 12, (6,), generator=generator, dtype=torch.int32)
                return ids, weight_noise(generator, "table", 12, width, encoding)

            return Example(
                f"{op} {encoding}",
                op,
                (TensorType((6,), DType.I32, "tokens"), TensorType((12, width), DType.F32)),
                (Role.INPUT, Role.WEIGHT),
                make,
                {"tokens": 5},
            )

        return (case(cls(), None, 20), case(cls(4.0), None, 20), *(case(cls(), Ggml(name), 256) for name in _GGML))


def _linear_case(
    op: Linear | GatedLinear, rows: int, width: int, outs: tuple[int, ...], *encodings: Encoding
) -> Example:
    """Weights in these encodings: none is float32, one is that of all."""
    bias = isinstance(op, Linear) and op.bias

    def make(generator: torch.Generator) -> tuple[torch.Tensor | WeightSource, ...]:
        of = encodings if len(encodings) == len(outs) else (encodings or (None,)) * len(outs)
        made = zip(outs, of, strict=True)
        weights = [weight_noise(generator, f"w{i}", out, width, encoding) for i, (out, encoding) in enumerate(made)]
        biases = [dense_weight(f"b{i}", floats(generator, out)) for i, out in enumerate(outs)] if bias else []
        return (floats(generator, rows, width), *weights, *biases)

    types = [TensorType((rows, width), DType.ACT, "tokens"), *(TensorType((out, width), DType.F32) for out in outs)]
    if bias:
        types += [TensorType((out,), DType.F32) for out in outs]
    roles = (Role.INPUT, *(Role.WEIGHT for _ in types[1:]))
    name = f"{op} {rows}x{width} {', '.join(map(str, encodings)) or 'float32'}"
    return Example(name, op, tuple(types), roles, make, {"tokens": max(1, rows - 1)})


def weight_noise(
    generator: torch.Generator, name: str, out: int, width: int, encoding: Encoding | None
) -> WeightSource:
    """Noise in an encoding, about as large as a model's: random blocks with such scales that rows have length one."""
    import torch

    from poot_executor.encodings.dequantise import dequantise

    if encoding is None:
        return dense_weight(name, floats(generator, out, width, scale=width**-0.5))
    total = nbytes(encoding, (out, width))
    blocks = out * width // block_size(encoding)
    raw = torch.randint(0, 256, (blocks, total // blocks), generator=generator, dtype=torch.uint8)
    source = WeightSource(name, (out, width), encoding, raw.reshape(-1).numpy())
    offsets = _SCALE_OFFSETS[encoding.name if isinstance(encoding, Ggml) else ""]
    _set_scales(raw, offsets, 0.002)
    # Values are proportional to the scales: one look at them tells the right size.
    _set_scales(raw, offsets, 0.002 * width**-0.5 / float(dequantise(source).square().mean().sqrt()))
    return source


def _set_scales(raw: torch.Tensor, offsets: tuple[int, ...], size: float) -> None:
    """Put `size` in half precision at these byte offsets of every block."""
    import torch

    scale = torch.full((len(raw),), size, dtype=torch.float16).view(torch.uint8).view(-1, 2)
    for at in offsets:
        raw[:, at : at + 2] = scale


# Where a block keeps its half-precision scale (and minimum), in bytes (ggml-common.h of llama.cpp).
_SCALE_OFFSETS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
