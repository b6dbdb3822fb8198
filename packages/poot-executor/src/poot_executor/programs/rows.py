"""The row table as states of a graph, and the programs that open a row."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.ir import DType, Graph, GraphBuilder, Value, verify
from poot_executor.ops import OpenRow, RowLayout, WriteHistory


@dataclass(frozen=True, slots=True)
class RowTableShape:
    """Sizes of the row table.

    `positions` a row may hold, one more than the tokens it runs (the last one sampled is kept too); `bias` entries of
    sparse logit bias; `tables` the blocks of a row in each KV group, in the order of the groups.
    """

    rows: int
    positions: int
    bias: int
    tables: tuple[int, ...]

    @property
    def open_block(self) -> int:
        """Elements of the block that opens a row."""
        return RowLayout.open_block(self.bias, self.tables)

    def step_block(self, tokens: int) -> int:
        """Elements of the block of a step of at most `tokens`."""
        return RowLayout.step_block(tokens, self.rows)

    def ints(self, builder: GraphBuilder) -> Value:
        return builder.state("rows.ints", (self.rows, RowLayout.INTS), DType.I32)

    def floats(self, builder: GraphBuilder) -> Value:
        return builder.state("rows.floats", (self.rows, RowLayout.FLOATS), DType.F32)

    def history(self, builder: GraphBuilder) -> Value:
        return builder.state("rows.history", (self.rows, self.positions), DType.I32)

    def bias_ids(self, builder: GraphBuilder) -> Value:
        return builder.state("rows.bias_ids", (self.rows, self.bias), DType.I32)

    def bias_values(self, builder: GraphBuilder) -> Value:
        return builder.state("rows.bias_values", (self.rows, self.bias), DType.F32)

    def table(self, builder: GraphBuilder, group: int) -> Value:
        return builder.state(f"rows.table.{group}", (self.rows, self.tables[group]), DType.I32)

    def hidden(self, builder: GraphBuilder, width: int) -> Value:
        """Hidden states of the rows' last tokens: what `step` leaves for `head`."""
        return builder.state("rows.hidden", (self.rows, width), DType.ACT)

    def logits(self, builder: GraphBuilder, vocabulary: int) -> Value:
        """What `head` leaves for `sample`, dense over the rows that sample."""
        return builder.state("rows.logits", (self.rows, vocabulary), DType.F32)


def open_graph(shape: RowTableShape) -> Graph:
    """`open`: input `block` (int32, `shape.open_block` elements) becomes a row of the table."""
    builder = GraphBuilder("open")
    block = builder.input("block", (shape.open_block,), DType.I32)
    tables = [shape.table(builder, group) for group in range(len(shape.tables))]
    states = [shape.ints(builder), shape.floats(builder), shape.bias_ids(builder), shape.bias_values(builder)]
    builder.apply_many(OpenRow(len(tables)), block, *states, *tables)
    graph = builder.finish()
    verify(graph)
    return graph


def recall_graph(shape: RowTableShape, tokens: int) -> Graph:
    """`recall`: input `block` (int32, `RowLayout.recall_block(tokens)` elements) puts tokens into a row's history.

    For a row whose first positions are never run, since their keys and values are there already.
    """
    builder = GraphBuilder("recall")
    block = builder.input("block", (RowLayout.recall_block(tokens),), DType.I32)
    builder.apply(WriteHistory(), block, shape.history(builder))
    graph = builder.finish()
    verify(graph)
    return graph
