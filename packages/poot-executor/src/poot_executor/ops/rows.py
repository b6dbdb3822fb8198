"""Ops on the row table: what the device knows of each running sequence, and how a step's inputs follow from it.

The table is four states. `ints` and `floats` (R, columns of RowLayout) hold a row's length and sampling parameters;
`history` (R, positions) its tokens; `bias_ids` and `bias_values` (R, B) its sparse logit bias. Each KV group adds a
block table. The host sends runs only; token ids, positions and KV slots are derived on the device, so that a step can
be launched before the host has seen the tokens of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import EXACT, Example, floats, require

if TYPE_CHECKING:
    import torch


class RowLayout:
    """Columns of the row table, and the layout of the blocks that the host sends (all int32; floats as their bits)."""

    LENGTH, SEED_LOW, SEED_HIGH, TOP_K, PROMPT, MIN_LENGTH, BIAS_COUNT, ADAPTER = range(8)
    INTS = 8
    TEMPERATURE, TOP_P, MIN_P, PRESENCE, FREQUENCY, REPETITION = range(6)
    FLOATS = 6
    # A run: row, first position (CONTINUE: the row's length), tokens, flags.
    RUN = 4
    CONTINUE = -1
    PROMPT_RUN = 1  # flag: the run's tokens are in the block, not in the row's history
    HEADER = 4  # tokens, runs, 0, 0

    @staticmethod
    def step_block(tokens: int, rows: int) -> int:
        """Elements of a step block: header, runs, then the flat tokens of the step."""
        return RowLayout.HEADER + RowLayout.RUN * rows + tokens

    @staticmethod
    def open_block(bias: int, tables: tuple[int, ...]) -> int:
        """Elements of an open block: row, ints, floats, bias ids, bias values, then the row of each block table."""
        return 1 + RowLayout.INTS + RowLayout.FLOATS + 2 * bias + sum(tables)

    RECALL_HEADER = 3  # row, first position, tokens

    @staticmethod
    def recall_block(tokens: int) -> int:
        """Elements of a recall block: its header, then the tokens."""
        return RowLayout.RECALL_HEADER + tokens


@dataclass(frozen=True, slots=True)
class OpenRow(Op):
    """Write one row: (block, ints, floats, bias_ids, bias_values, *tables) to new versions of all states given."""

    tables: int = 1

    writes: ClassVar = {i: i + 1 for i in range(16)}
    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        block, ints, reals, ids, values, *tables = inputs
        require(len(tables) == self.tables, self, "{} block tables given", len(tables))
        size = RowLayout.open_block(ids.shape[1], tuple(t.shape[1] for t in tables))
        require(block.shape == (size,), self, "the block must have {} elements, not {}", size, block)
        return (ints, reals, ids, values, *tables)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        block, *states = inputs
        row, at, results = int(block[0]), 1, []
        for state in states:
            result, width = state.clone(), state.shape[1]
            part = block[at : at + width]
            result[row] = part.view(torch.float32) if state.dtype == torch.float32 else part
            results.append(result)
            at += width
        return tuple(results)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        import torch

        layout, tables = RowLayout, (5, 3)
        size = layout.open_block(4, tables)

        def make(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
            block = torch.randint(0, 1000, (size,), generator=generator, dtype=torch.int32)
            block[0] = 2
            start = 1 + layout.INTS
            block[start : start + layout.FLOATS] = floats(generator, layout.FLOATS).view(torch.int32)
            values = 1 + layout.INTS + layout.FLOATS + 4
            block[values : values + 4] = floats(generator, 4).view(torch.int32)
            zeros = [torch.zeros(3, width, dtype=torch.int32) for width in (layout.INTS, 4, *tables)]
            return block, zeros[0], torch.zeros(3, layout.FLOATS), zeros[1], torch.zeros(3, 4), *zeros[2:]

        types = [TensorType((size,), DType.I32)]
        for width, dtype in ((layout.INTS, DType.I32), (layout.FLOATS, DType.F32), (4, DType.I32), (4, DType.F32)):
            types.append(TensorType((3, width), dtype))
        types += [TensorType((3, width), DType.I32) for width in tables]
        return (Example("row 2 of 3", cls(2), tuple(types), (Role.INPUT, *(Role.STATE for _ in types[1:])), make),)


@dataclass(frozen=True, slots=True)
class WriteHistory(Op):
    """Put tokens that no step will run into a row's history: (block, history) to history'. The row's length stays."""

    writes: ClassVar = {0: 1}
    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        block, history = inputs
        require(len(block.shape) == 1 and block.shape[0] > RowLayout.RECALL_HEADER, self, "{} has no tokens", block)
        return (history,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        block, history = inputs
        history, start = history.clone(), RowLayout.RECALL_HEADER
        row, first, count = (int(x) for x in block[:start])
        history[row, first : first + count] = block[start : start + count]
        return (history,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return tuple(_recall_example(name, *numbers) for name, numbers in _RECALL_CASES.items())


# row, first position, tokens
_RECALL_CASES = {"part of a block": (2, 3, 5), "a whole block": (0, 0, 8), "one": (3, 11, 1)}


def _recall_example(name: str, row: int, first: int, count: int) -> Example:
    import torch

    size = RowLayout.recall_block(8)

    def make(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        block = torch.randint(0, 99, (size,), generator=generator, dtype=torch.int32)
        block[: RowLayout.RECALL_HEADER] = torch.tensor([row, first, count], dtype=torch.int32)
        return block, torch.randint(100, 200, (4, 12), generator=generator, dtype=torch.int32)

    types = (TensorType((size,), DType.I32), TensorType((4, 12), DType.I32))
    return Example(name, WriteHistory(), types, (Role.INPUT, Role.STATE), make)


@dataclass(frozen=True, slots=True)
class UnpackStep(Op):
    """Derive a step's flat inputs: (block, ints, history) to (ids, positions, rows, runs, ints', history').

    ids, positions and rows are int32 (T,); runs is (R, 4) with the first positions filled in, zero past the last run.
    Tokens of prompt runs are written into the row's history, the others are read from it. A row's length becomes
    its run's end.
    """

    tokens: int

    writes: ClassVar = {4: 1, 5: 2}
    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        block, ints, history = inputs
        size = RowLayout.step_block(self.tokens, ints.shape[0])
        require(block.shape == (size,), self, "the block must have {} elements, not {}", size, block)
        flat = TensorType((self.tokens,), DType.I32, "tokens")
        return (flat, flat, flat, TensorType((ints.shape[0], RowLayout.RUN), DType.I32), ints, history)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        block, ints, history = inputs[0], inputs[1].clone(), inputs[2].clone()
        total, count = int(block[0]), int(block[1])
        rows, header = ints.shape[0], RowLayout.HEADER
        given = block[header + RowLayout.RUN * rows :]
        ids, positions, of_row = (torch.zeros(total, dtype=torch.int32) for _ in range(3))
        runs, at = torch.zeros(rows, RowLayout.RUN, dtype=torch.int32), 0
        for index in range(count):
            start = header + RowLayout.RUN * index
            row, first, length, flags = (int(x) for x in block[start : start + RowLayout.RUN])
            first = int(ints[row, RowLayout.LENGTH]) if first == RowLayout.CONTINUE else first
            if flags & RowLayout.PROMPT_RUN:
                history[row, first : first + length] = given[at : at + length]
            ids[at : at + length] = history[row, first : first + length]
            positions[at : at + length] = torch.arange(first, first + length, dtype=torch.int32)
            of_row[at : at + length] = row
            runs[index] = torch.tensor([row, first, length, flags], dtype=torch.int32)
            ints[row, RowLayout.LENGTH] = first + length
            at += length
        return ids, positions, of_row, runs, ints, history

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return tuple(_unpack_example(name, runs) for name, runs in _UNPACK_CASES.items())


# runs of (row, first, tokens, flags)
_UNPACK_CASES = {
    "decode": ((2, -1, 1, 0), (0, -1, 1, 0)),
    "prompt": ((1, 0, 7, 1),),
    "mixed": ((3, -1, 1, 0), (0, -1, 1, 0), (1, 4, 5, 1)),
}


def _unpack_example(name: str, runs: tuple[tuple[int, int, int, int], ...]) -> Example:
    import torch

    tokens, rows, positions = 8, 4, 16
    total = sum(run[2] for run in runs)

    def make(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        block = torch.zeros(RowLayout.step_block(tokens, rows), dtype=torch.int32)
        block[0], block[1] = total, len(runs)
        flat = torch.tensor(runs, dtype=torch.int32).flatten()
        block[RowLayout.HEADER : RowLayout.HEADER + len(flat)] = flat
        given = RowLayout.HEADER + RowLayout.RUN * rows
        block[given : given + total] = torch.randint(0, 99, (total,), generator=generator, dtype=torch.int32)
        ints = torch.randint(1, 9, (rows, RowLayout.INTS), generator=generator, dtype=torch.int32)
        return block, ints, torch.randint(100, 200, (rows, positions), generator=generator, dtype=torch.int32)

    types = (
        TensorType((RowLayout.step_block(tokens, rows),), DType.I32),
        TensorType((rows, RowLayout.INTS), DType.I32),
        TensorType((rows, positions), DType.I32),
    )
    roles = (Role.INPUT, Role.STATE, Role.STATE)
    return Example(name, UnpackStep(tokens), types, roles, make, {"tokens": total, "runs": len(runs)})


@dataclass(frozen=True, slots=True)
class CommitTokens(Op):
    """Append sampled tokens to their rows' histories: (tokens (N,), rows (N,), ints, history) to history'."""

    writes: ClassVar = {0: 3}
    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        tokens, rows, _, history = inputs
        require(tokens.shape == rows.shape, self, "{} and {} differ", tokens, rows)
        return (history,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tokens, rows, ints, history = inputs
        history = history.clone()
        history[rows.long(), ints[rows.long(), RowLayout.LENGTH].long()] = tokens
        return (history,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        import torch

        flat = TensorType((3,), DType.I32, "rows")
        types = (flat, flat, TensorType((4, RowLayout.INTS), DType.I32), TensorType((4, 16), DType.I32))

        def make(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
            ints = torch.randint(1, 9, (4, RowLayout.INTS), generator=generator, dtype=torch.int32)
            tokens, rows = torch.tensor([[7, 8, 9], [3, 1, 0]], dtype=torch.int32)
            return tokens, rows, ints, torch.zeros(4, 16, dtype=torch.int32)

        roles = (Role.INPUT, Role.INPUT, Role.STATE, Role.STATE)
        return (Example("two of four rows", cls(), types, roles, make, {"rows": 2}),)
