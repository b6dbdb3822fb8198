"""Rotary position embedding (arXiv 2104.09864)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import Example, Tolerance, floats, require

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class RotarySpec:
    """Inverse frequencies of the `dim` rotated dimensions, each already scaled as the model's long-context rule says.

    `magnitude` multiplies cosines and sines (1 unless a rule such as YaRN says otherwise).
    """

    inverse_frequencies: tuple[float, ...]
    magnitude: float = 1.0

    @property
    def dim(self) -> int:
        return 2 * len(self.inverse_frequencies)

    @staticmethod
    def plain(dim: int, theta: float, factor: float = 1.0) -> RotarySpec:
        """theta^(-2i/dim), divided by `factor` (linear position scaling)."""
        return RotarySpec(tuple(theta ** (-2 * i / dim) / factor for i in range(dim // 2)))

    def __str__(self) -> str:
        return f"RotarySpec(dim={self.dim}, slowest={self.inverse_frequencies[-1]:.3g})"


@dataclass(frozen=True, slots=True)
class RotaryTable(Op):
    """Cosines and sines of a step's positions: (T,) to float32 (T, dim), cosines first. Shared by all layers."""

    spec: RotarySpec

    tolerance: ClassVar = Tolerance(2e-4, 1e-5, 1.0)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (positions,) = inputs
        return (TensorType((positions.shape[0], self.spec.dim), DType.F32, positions.live),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        angles = torch.outer(inputs[0].float(), torch.tensor(self.spec.inverse_frequencies, dtype=torch.float32))
        return (torch.cat([angles.cos(), angles.sin()], dim=-1) * self.spec.magnitude,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        import torch

        return (
            Example(
                "positions to 4000",
                cls(RotarySpec.plain(16, 10000.0)),
                (TensorType((5,), DType.I32, "tokens"),),
                (Role.INPUT,),
                lambda _: (torch.tensor([0, 1, 77, 4000, 0], dtype=torch.int32),),
                {"tokens": 4},
            ),
        )


@dataclass(frozen=True, slots=True)
class Rotary(Op):
    """Rotate the first `dim` columns of each head: x (T, H, D), table (T, dim).

    "half" pairs column i with i + dim/2 (transformers), "interleaved" pairs 2i with 2i + 1 (GGUF files of the llama
    architecture).
    """

    style: Literal["half", "interleaved"]

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, table = inputs
        require(len(x.shape) == 3 and table.shape[0] == x.shape[0], self, f"table {table} does not fit {x}")
        require(table.shape[1] <= x.shape[2] and table.shape[1] % 2 == 0, self, f"table {table} is too wide for {x}")
        return (x,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        x, table = inputs
        dim = table.shape[1]
        cos, sin = table[:, None, : dim // 2], table[:, None, dim // 2 :]
        rotated = x.clone()
        if self.style == "half":
            a, b = x[..., : dim // 2], x[..., dim // 2 : dim]
            rotated[..., :dim] = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        else:
            a, b = x[..., 0:dim:2], x[..., 1:dim:2]
            rotated[..., 0:dim:2] = a * cos - b * sin
            rotated[..., 1:dim:2] = b * cos + a * sin
        return (rotated,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def case(op: Op, heads: int, width: int, dim: int) -> Example:
            return Example(
                f"{op} {heads}x{width}/{dim}",
                op,
                (TensorType((4, heads, width), DType.ACT, "tokens"), TensorType((4, dim), DType.F32, "tokens")),
                (Role.INPUT, Role.INPUT),
                lambda generator: (floats(generator, 4, heads, width), floats(generator, 4, dim)),
                {"tokens": 3},
            )

        return (
            case(cls("half"), 2, 16, 16),
            case(cls("half"), 3, 16, 8),
            case(cls("interleaved"), 2, 16, 16),
            case(cls("interleaved"), 1, 24, 8),
        )
