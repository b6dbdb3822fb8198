"""A small decoder as executor graphs, with random weights: what a model family would build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from poot_executor.devices import Live
from poot_executor.encodings import Dense, Encoding, Ggml, WeightSource
from poot_executor.ir import DType, Graph, GraphBuilder, Value, verify
from poot_executor.ops import (
    Add,
    AttentionPlan,
    Embed,
    GatedActivation,
    GatherRows,
    Into,
    KeepLast,
    Linear,
    PagedAttention,
    Reshape,
    RmsNorm,
    RotaryKvWrite,
    RotarySpec,
    RotaryTable,
    RowLayout,
    SlotMap,
    Split,
    UnpackStep,
)
from poot_executor.ops.base import dense_weight
from poot_executor.ops.linear import weight_noise
from poot_executor.programs import RowTableShape
from poot_executor.testing import interpret


@dataclass(frozen=True)
class Decoder:
    """Sizes of a llama-like decoder, and its programs."""

    layers: int = 2
    width: int = 32
    heads: int = 4
    kv_heads: int = 2
    head: int = 8
    ff: int = 48
    vocabulary: int = 61
    rows: int = 3
    positions: int = 40
    block: int = 4
    window: int | None = None
    fused: bool = False
    packed: str | None = None  # a ggml encoding, of all matrices

    @property
    def blocks(self) -> int:
        """KV blocks of a row."""
        return -(-self.positions // self.block)

    @property
    def table(self) -> RowTableShape:
        return RowTableShape(self.rows, self.positions, 2, (self.blocks,))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        q, kv = self.heads * self.head, self.kv_heads * self.head
        found = {"embed": (self.vocabulary, self.width), "norm": (self.width,)}
        for layer in range(self.layers):
            found |= {
                f"{layer}.norm": (self.width,),
                f"{layer}.q": (q, self.width),
                f"{layer}.k": (kv, self.width),
                f"{layer}.v": (kv, self.width),
                f"{layer}.o": (self.width, q),
                f"{layer}.norm2": (self.width,),
                f"{layer}.gate": (self.ff, self.width),
                f"{layer}.up": (self.ff, self.width),
                f"{layer}.down": (self.width, self.ff),
            }
        return found

    def weights(self, seed: int = 7) -> dict[str, WeightSource]:
        generator, noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        made = {}
        for name, shape in self.shapes.items():
            if isinstance(encoding := self.encoding(shape), Ggml):
                made[name] = weight_noise(noise, name, *shape, encoding)
                continue
            values = generator.standard_normal(shape, dtype=np.float32) * shape[-1] ** -0.5
            made[name] = WeightSource(name, shape, Dense("F32"), values.reshape(-1).view(np.uint8))
        return made

    def encoding(self, shape: tuple[int, ...]) -> Encoding:
        return Ggml(self.packed) if self.packed and len(shape) == 2 else Dense("F32")

    def step(self, tokens: int) -> Graph:
        """`step`: input `block`; leaves each run's last hidden vector in rows.hidden."""
        builder = GraphBuilder("step")
        table, block = self.table, builder.input("block", (self.table.step_block(tokens),), DType.I32)
        ids, positions, rows, runs, *_ = builder.apply_many(
            UnpackStep(tokens), block, table.ints(builder), table.history(builder)
        )
        blocks = table.table(builder, 0)
        slots = builder.apply(SlotMap(self.block), positions, rows, blocks)
        plan = builder.apply(AttentionPlan(tokens, window=self.window), runs)
        angles = builder.apply(RotaryTable(RotarySpec.plain(self.head, 10000.0)), positions)
        x = builder.apply(Embed(), ids, self._weight(builder, "embed"))
        for layer in range(self.layers):
            x = self._layer(builder, layer, x, (slots, plan, angles, blocks))
        builder.apply(KeepLast(), x, runs, table.hidden(builder, self.width))
        return self._done(builder)

    def _layer(self, builder: GraphBuilder, layer: int, x: Value, step: tuple[Value, Value, Value, Value]) -> Value:
        slots, plan, angles, blocks = step
        heads = [(self.heads, self.head), (self.kv_heads, self.head), (self.kv_heads, self.head)]
        normed = builder.apply(RmsNorm(1e-5), x, self._weight(builder, f"{layer}.norm"))
        parts = self._products(builder, normed, f"{layer}.q", f"{layer}.k", f"{layer}.v")
        q, k, v = (builder.apply(Reshape(shape), part) for shape, part in zip(heads, parts, strict=True))
        shape = (self.rows * self.blocks * self.block, self.kv_heads, self.head)
        pools = [builder.state(f"kv.{layer}.{part}", shape, DType.ACT) for part in "kv"]
        q, *pools = builder.apply_many(RotaryKvWrite("half"), q, k, v, angles, slots, *pools)
        attention = PagedAttention(self.head**-0.5, self.block, self.window)
        found = builder.apply(attention, q, *pools, plan, blocks)
        found = builder.apply(Reshape((self.heads * self.head,)), found)
        x = builder.apply(Add(), builder.apply(Linear(), found, self._weight(builder, f"{layer}.o")), x)
        normed = builder.apply(RmsNorm(1e-5), x, self._weight(builder, f"{layer}.norm2"))
        gate, up = self._weight(builder, f"{layer}.gate"), self._weight(builder, f"{layer}.up")
        gated = builder.apply(GatedActivation("silu"), builder.apply(Linear(2), normed, gate, up))
        return builder.apply(Add(), builder.apply(Linear(), gated, self._weight(builder, f"{layer}.down")), x)

    def head_graph(self, rows: int) -> Graph:
        """`head`: input `rows`; leaves their logits in rows.logits."""
        builder = GraphBuilder("head")
        index = builder.input("rows", (rows,), DType.I32, "rows")
        hidden = builder.apply(GatherRows(), self.table.hidden(builder, self.width), index)
        normed = builder.apply(RmsNorm(1e-5), hidden, self._weight(builder, "norm"))
        logits = builder.apply(Linear(out=DType.F32), normed, self._weight(builder, "embed"))
        builder.apply(Into(), logits, self.table.logits(builder, self.vocabulary))
        return self._done(builder)

    def _done(self, builder: GraphBuilder) -> Graph:
        graph = builder.finish()
        verify(graph)
        return graph

    def _weight(self, builder: GraphBuilder, name: str) -> Value:
        return builder.weight(name, self.shapes[name], self.encoding(self.shapes[name]))

    def _products(self, builder: GraphBuilder, x: Value, *names: str) -> tuple[Value, ...]:
        weights = [self._weight(builder, name) for name in names]
        if not self.fused:
            return tuple(builder.apply(Linear(), x, weight) for weight in weights)
        joined = builder.apply(Linear(len(weights)), x, *weights)
        return builder.apply_many(Split(tuple(weight.type.shape[0] for weight in weights)), joined)

    def open_block(self, row: int, *, prompt: int = 0, table: list[int] | None = None) -> np.ndarray:
        """The block that opens a greedy row over these KV blocks (default: its own share of the pool, in order)."""
        block = np.zeros(self.table.open_block, np.int32)
        ints, reals = block[1 : 1 + RowLayout.INTS], block[1 + RowLayout.INTS :].view(np.float32)
        block[0], ints[RowLayout.PROMPT] = row, prompt
        reals[RowLayout.TOP_P] = reals[RowLayout.REPETITION] = 1.0
        block[-self.blocks :] = range(row * self.blocks, (row + 1) * self.blocks) if table is None else table
        return block

    def step_block(self, tokens: int, runs: list[tuple[int, int, list[int] | int]]) -> tuple[np.ndarray, Live]:
        """A step's block and live counts. A run is (row, first, prompt tokens), or (row, CONTINUE, count)."""
        block, flat = np.zeros(self.table.step_block(tokens), np.int32), []
        for index, (row, first, given) in enumerate(runs):
            ids = given if isinstance(given, list) else [0] * given
            flags = RowLayout.PROMPT_RUN if isinstance(given, list) else 0
            at = RowLayout.HEADER + RowLayout.RUN * index
            block[at : at + RowLayout.RUN] = (row, first, len(ids), flags)
            flat += ids
        block[0], block[1] = len(flat), len(runs)
        at = RowLayout.HEADER + RowLayout.RUN * self.rows
        block[at : at + len(flat)] = flat
        return block, Live(tokens=len(flat), runs=len(runs))


@pytest.fixture
def decoder() -> type[Decoder]:
    """The decoder's class: `decoder(layers=3)`."""
    return Decoder


@pytest.fixture
def same() -> Callable[..., None]:
    """`same(before, after, tokens=3)`: both graphs give the same outputs on the same noise."""
    return _same


def _same(before: Graph, after: Graph, *, tokens: int, tolerance: float | None = None) -> None:
    """To `tolerance`, relative and absolute; None is that of torch for the type."""
    verify(after)
    noise = torch.Generator().manual_seed(3)
    weights = {
        value.name: dense_weight(value.name, torch.randn(value.type.shape, generator=noise))
        for value in before.values
        if value.encoding is not None
    }
    inputs = {before.values[i].name: torch.randn(before.values[i].type.shape, generator=noise) for i in before.inputs}
    live = Live(tokens=tokens)
    found, wanted = (interpret(g, live=live, inputs=inputs, weights=weights).outputs for g in (after, before))
    assert found.keys() == wanted.keys() and wanted
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=tolerance, atol=tolerance)
