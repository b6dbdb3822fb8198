"""Ops that move whole rows between a step's tokens and the row table, and find tokens' places in the KV pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import EXACT, Example, floats, require
from poot_executor.ops.rows import RowLayout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class SlotMap(Op):
    """KV slots of a step's tokens in one group: (positions, rows, table) to int32 (T,).

    Position p of row r lies in block table[r, (p // block) mod width] of `block` tokens; the modulus makes a window
    group's table a ring.
    """

    block: int

    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        positions, rows, _ = inputs
        require(positions == rows, self, "{} and {} differ", positions, rows)
        return (positions,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        positions, rows, table = (x.long() for x in inputs)
        blocks = table[rows, (positions // self.block) % table.shape[1]]
        return ((blocks * self.block + positions % self.block).to(torch.int32),)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        import torch

        flat = TensorType((6,), DType.I32, "tokens")

        def make(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
            positions = torch.tensor([0, 3, 4, 11, 13, 0], dtype=torch.int32)
            rows = torch.tensor([0, 1, 1, 0, 1, 0], dtype=torch.int32)
            return positions, rows, torch.randint(0, 50, (2, 3), generator=generator, dtype=torch.int32)

        types = (flat, flat, TensorType((2, 3), DType.I32))
        return (Example("ring", cls(4), types, (Role.INPUT, Role.INPUT, Role.STATE), make, {"tokens": 5}),)


@dataclass(frozen=True, slots=True)
class KeepLast(Op):
    """Keep each run's last hidden vector: (hidden (T, D), runs, kept (R, D)) to kept'.

    With `taken` hidden is (R, D), what `LastRows` makes: it has no other vectors.
    """

    taken: bool = False

    writes: ClassVar = {0: 2}
    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        hidden, runs, kept = inputs
        require(
            hidden.shape[1] == kept.shape[1] and runs.shape[0] == kept.shape[0],
            self,
            "{} does not fit {}",
            hidden,
            kept,
        )
        return (kept,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden, runs, kept = inputs[0], inputs[1], inputs[2].clone()
        at = 0
        for row, _, length, _ in runs.tolist():
            at += min(length, 1) if self.taken else length
            if length:
                kept[row] = hidden[at - 1]
        return (kept,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        import torch

        def case(name: str, hidden: TensorType, op: KeepLast) -> Example:
            def make(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
                return floats(generator, *hidden.shape), _two_runs(), torch.zeros(3, 8)

            types = (hidden, _RUNS, TensorType((3, 8), DType.ACT))
            return Example(name, op, types, (Role.INPUT, Role.INPUT, Role.STATE), make, _TWO_RUNS)

        return (
            case("two runs", TensorType((6, 8), DType.ACT, "tokens"), cls()),
            case("two runs, taken", TensorType((3, 8), DType.ACT, "runs"), cls(taken=True)),
        )


@dataclass(frozen=True, slots=True)
class LastRows(Op):
    """What each run's last token has: (x (T, ...), runs (R, 4)) to (R, ...), in the order of the runs."""

    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, runs = inputs
        return (TensorType((runs.shape[0], *x.shape[1:]), x.dtype, "runs"),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, runs = inputs
        lengths = runs[:, 2].long()
        return (x[lengths.cumsum(0)[lengths > 0] - 1],)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def case(name: str, *shape: int) -> Example:
            def make(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
                return floats(generator, *shape), _two_runs()

            types = (TensorType(shape, DType.ACT, "tokens"), _RUNS)
            return Example(name, cls(), types, (Role.INPUT, Role.INPUT), make, _TWO_RUNS)

        return case("two runs", 6, 8), case("heads", 7, 3, 16), case("wide", 5, 1100)


_RUNS = TensorType((3, RowLayout.RUN), DType.I32)
_TWO_RUNS = {"tokens": 5, "runs": 2}


def _two_runs() -> torch.Tensor:
    """Of rows 2 and 0, with one token and with four."""
    import torch

    return torch.tensor([[2, 5, 1, 0], [0, 0, 4, 1], [0, 0, 0, 0]], dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class GatherRows(Op):
    """Rows of a matrix: (x (R, D), index (N,)) to (N, D)."""

    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, index = inputs
        return (TensorType((index.shape[0], *x.shape[1:]), x.dtype, index.live),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (inputs[0][inputs[1].long()],)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        import torch

        types = (TensorType((5, 8), DType.ACT), TensorType((4,), DType.I32, "rows"))
        return (
            Example(
                "three of five",
                cls(),
                types,
                (Role.STATE, Role.INPUT),
                lambda generator: (floats(generator, 5, 8), torch.tensor([4, 0, 3, 0], dtype=torch.int32)),
                {"rows": 3},
            ),
        )
