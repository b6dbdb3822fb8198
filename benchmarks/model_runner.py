"""Driving a model's programs with the executor alone. The tests of parity and the benchmarks share it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from poot_executor.devices import Live, open_device
from poot_executor.ops import RowLayout
from poot_executor.programs import open_graph, sample_graph
from poot_executor.runtime import EntryKey, compile_graphs, prepare
from poot_models import ModelHandle
from poot_models.blocks import StepShape

# A row and the prompt tokens to append to it; None runs the token that was sampled last.
Run = tuple[int, Sequence[int] | None]


class Runner:
    """A model on a device, without an engine: every row's blocks lie scattered over the pools."""

    def __init__(
        self,
        handle: ModelHandle,
        *,
        rows: int = 3,
        max_seq: int = 96,
        chunk: int = 64,
        block: int = 4,
        tile: int = 8,
        top: int = 0,
        backend: str = "cpu",
    ) -> None:
        """Rows, their positions, prompt tokens of a step, sizes of blocks and tiles, and of how many likeliest tokens
        `score` tells, which is there only if that is not 0."""
        self.rows, self.handle, self._chunk = rows, handle, chunk
        tables = tuple(group.blocks_per_row(max_seq, block, chunk) for group in handle.groups)
        order = np.random.default_rng(7)
        self._tables = [order.permutation(rows * width).astype(np.int32).reshape(rows, width) for width in tables]
        pools = tuple(rows * width for width in tables)
        self._capacities = sorted({1, rows, chunk, rows + chunk})
        shapes = {size: StepShape(size, rows, max_seq, block, pools, tables, tile, 4) for size in self._capacities}
        self._shape = shapes[1]
        table = self._shape.row_table
        graphs = {EntryKey("step", size): handle.step(shape) for size, shape in shapes.items()}
        graphs[EntryKey("open", 1)] = open_graph(table)
        graphs[EntryKey("head", rows)] = handle.head(rows, self._shape)
        graphs[EntryKey("sample", rows)] = sample_graph(table, rows, handle.vocab_size, frozenset(), ends=(), top=1)
        if top:
            graphs[EntryKey("score", chunk)] = handle.score(shapes[chunk], top)
        device = open_device(backend)
        self._entries = prepare(device, compile_graphs(device, graphs), handle.weights)

    def open(self, row: int) -> None:
        """Make `row` an empty one."""
        table = self._shape.row_table
        block = np.zeros(table.open_block, dtype=np.int32)
        block[0] = row
        blocks = np.concatenate([group[row] for group in self._tables])
        block[-len(blocks) :] = blocks
        entry = self._entries[EntryKey("open", 1)]
        entry.stage("block", block)
        entry.run(Live())

    def step(self, *runs: Run) -> npt.NDArray[np.float32]:
        """Run all runs in one step; float32 logits (runs, V) after each run's last token."""
        total = sum(1 if tokens is None else len(tokens) for _, tokens in runs)
        size = next(size for size in self._capacities if size >= total)
        self._run("step", size, "block", self._block(size, *runs), Live(tokens=total, runs=len(runs)))
        rows = np.array([row for row, _ in runs], dtype=np.int32)
        return self._head(rows)

    def score(self, row: int, tokens: Sequence[int]) -> tuple[npt.NDArray[np.float32], ...]:
        """Run a whole prompt in chunks of the entry's capacity: log-probabilities of the tokens after the first
        (N - 1,), ids and log-probabilities of the likeliest after each (N, top), logits (V,) after the last."""
        found = []
        for at in range(0, len(tokens), self._chunk):
            part, after = tokens[at : at + self._chunk], tokens[at + 1 : at + 1 + self._chunk]
            entry = self._entries[EntryKey("score", self._chunk)]
            entry.stage("targets", np.array([*after, 0][: len(part)], dtype=np.int32))
            live = Live(tokens=len(part), runs=1)
            self._run("score", self._chunk, "block", self._block(self._chunk, (row, part)), live)
            found.append([entry.read(name, len(part)) for name in ("chosen", "top_ids", "top_values")])
        chosen, ids, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return chosen[:-1], ids, values, self._head(np.array([row], dtype=np.int32))[0]

    def _block(self, size: int, *runs: Run) -> npt.NDArray[np.int32]:
        given = [[0] if tokens is None else list(tokens) for _, tokens in runs]
        total = sum(map(len, given))
        block = np.zeros(self._shape.row_table.step_block(size), dtype=np.int32)
        block[:2] = total, len(runs)
        for index, (row, tokens) in enumerate(runs):
            flags = 0 if tokens is None else RowLayout.PROMPT_RUN
            start = RowLayout.HEADER + RowLayout.RUN * index
            block[start : start + RowLayout.RUN] = row, RowLayout.CONTINUE, len(given[index]), flags
        start = RowLayout.HEADER + RowLayout.RUN * self.rows
        block[start : start + total] = np.concatenate(given)
        return block

    def _head(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        self._run("head", self.rows, "rows", rows, Live(rows=len(rows)))
        return self._entries.read_state("rows.logits", len(rows))

    def sample(self, *rows: int) -> list[int]:
        """Greedy tokens of the rows that the last step ran, in its order; they are appended to their rows."""
        self._run("sample", self.rows, "rows", np.array(rows, dtype=np.int32), Live(rows=len(rows)))
        tokens: list[int] = self._entries[EntryKey("sample", self.rows)].read("tokens", len(rows)).tolist()
        return tokens

    def _run(self, program: str, size: int, name: str, data: npt.NDArray[np.int32], live: Live) -> None:
        entry = self._entries[EntryKey(program, size)]
        entry.stage(name, data)
        entry.run(live)
