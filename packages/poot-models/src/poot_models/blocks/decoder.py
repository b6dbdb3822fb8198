"""Building a decoder's programs: `step` runs tokens and keeps hidden states, `head` turns those into logits, `score`
runs tokens and says how likely each one's successor is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from poot_executor.encodings import WeightSource
from poot_executor.ir import DType, Graph, GraphBuilder, Value, verify
from poot_executor.ops import (
    Add,
    AttentionPlan,
    Clamp,
    Embed,
    GatedActivation,
    GatherRows,
    Into,
    KeepLast,
    LayerNorm,
    Linear,
    PagedAttention,
    Reshape,
    RmsNorm,
    RotaryKvWrite,
    RotarySpec,
    RotaryTable,
    Scale,
    SlotMap,
    SoftCap,
    Split,
    TopLogProbs,
    UnpackStep,
)
from poot_models.blocks.config import DecoderConfig, LongRotary
from poot_models.blocks.shape import StepShape, kv_groups
from poot_models.errors import CheckpointFormatError, TensorMissingError

Weights = Mapping[str, WeightSource]
LayerFunction = Callable[["DecoderBuilder", int, Value], Value]


class DecoderBuilder:
    """The vocabulary that a family's layer is written in. Weight names are GGUF's, without `.weight`."""

    def __init__(self, name: str, config: DecoderConfig, weights: Weights, shape: StepShape) -> None:
        self.config, self.shape = config, shape
        self.graph = GraphBuilder(name)
        self._weights = weights
        self._groups = kv_groups(config)
        self._tables: dict[RotarySpec, Value] = {}
        self._slots: dict[int, Value] = {}
        self._plans: dict[int, Value] = {}
        self._positions: Value | None = None

    def weight(self, name: str, *shape: int) -> Value:
        """Raises TensorMissingError, or CheckpointFormatError when the file's shape is another."""
        source = self._weights.get(name)
        if source is None:
            raise TensorMissingError(f"the checkpoint has no tensor {name}")
        if source.shape != shape:
            raise CheckpointFormatError(f"tensor {source.name} is {source.shape}; the configuration says {shape}")
        return self.graph.weight(name, shape, source.encoding)

    def has(self, name: str) -> bool:
        return name in self._weights

    def norm(self, x: Value, name: str) -> Value:
        """The configuration's norm of x over its last dimension: x (T, D), or (T, H, D) with a weight for each head."""
        kind, eps = self.config.norm, self.config.eps
        if kind == "layer bare":
            return self.graph.apply(LayerNorm(eps, weight=False), x)
        weight = self.weight(f"{name}.weight", *x.type.shape[1:])
        if kind == "rms":
            return self.graph.apply(RmsNorm(eps, self.config.norm_offset), x, weight)
        if kind == "layer":
            return self.graph.apply(LayerNorm(eps), x, weight)
        return self.graph.apply(LayerNorm(eps, bias=True), x, weight, self.weight(f"{name}.bias", *x.type.shape[1:]))

    def add(self, x: Value, y: Value) -> Value:
        return self.graph.apply(Add(), x, y)

    def scale(self, x: Value, factor: float) -> Value:
        return x if factor == 1.0 else self.graph.apply(Scale(factor), x)

    def residual(self, h: Value, x: Value) -> Value:
        """h + residual_scale * x."""
        return self.add(h, self.scale(x, self.config.residual_scale))

    def linear(self, x: Value, *outputs: tuple[str, int], out: DType = DType.ACT) -> Value:
        """One product with each (name, width), side by side. All have a bias, or none."""
        width = x.type.shape[-1]
        weights = [self.weight(f"{name}.weight", size, width) for name, size in outputs]
        biases = [self.weight(f"{name}.bias", size) for name, size in outputs if self._has_bias(name)]
        if biases and len(biases) != len(weights):
            raise CheckpointFormatError(f"of {', '.join(name for name, _ in outputs)} only some have a bias")
        return self.graph.apply(Linear(len(weights), bool(biases), out), x, *weights, *biases)

    def _has_bias(self, name: str) -> bool:
        stated = self.config.biases
        return self.has(f"{name}.bias") if stated is None else name.rpartition(".")[2] in stated

    def gated(self, x: Value, gate: str, up: str, ff: int) -> Value:
        """activation(x gate) * (x up)."""
        assert self.config.activation is not None, "the family has no gates"
        return self.graph.apply(GatedActivation(self.config.activation), self.linear(x, (gate, ff), (up, ff)))

    def ungated(self, layer: int, x: Value, up: str) -> Value:
        """The layer's activation of x up."""
        spec = self.config.layers[layer]
        assert spec.between is not None, "the family has gates"
        return self.graph.apply(spec.between, self.linear(x, (up, spec.ff)))

    def attention(self, layer: int, x: Value, *, qk_norm: bool = False, wide_norm: bool = False) -> Value:
        """Queries, keys and values of x, rotated, written and attended: (T, heads x dim).

        Before that, queries and keys are normed each head by itself (`qk_norm`) or over all heads (`wide_norm`). RMS
        norms of single heads have one weight for all heads, layer norms one for each.
        """
        spec, prefix = self.config.layers[layer], f"blk.{layer}."
        q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        qkv = self.linear(x, (f"{prefix}attn_q", q_width), (f"{prefix}attn_k", kv_width), (f"{prefix}attn_v", kv_width))
        if self.config.qkv_clip is not None:
            qkv = self.graph.apply(Clamp(self.config.qkv_clip), qkv)
        q, k, v = self.graph.apply_many(Split((q_width, kv_width, kv_width)), qkv)
        if wide_norm:
            q, k = self.norm(q, f"{prefix}attn_q_norm"), self.norm(k, f"{prefix}attn_k_norm")
        heads = [self._heads(part, spec.head_dim) for part in (q, k, v)]
        names = [f"{prefix}attn_{part}_norm" for part in ("q", "k")] if qk_norm else []
        if names and self.config.norm != "rms":
            heads[:2] = [self.norm(part, name) for part, name in zip(heads, names, strict=False)]
            names = []
        attended = self._attend(layer, heads, [self.weight(f"{name}.weight", spec.head_dim) for name in names])
        return self.graph.apply(Reshape((q_width,)), attended)

    def embed(self, block: Value) -> Value:
        """Unpack the step and look its tokens up. Must come before any layer."""
        shape, table = self.shape, self.shape.row_table
        ids, positions, rows, runs, *_ = self.graph.apply_many(
            UnpackStep(shape.tokens), block, table.ints(self.graph), table.history(self.graph)
        )
        self._positions = positions
        self.runs = runs
        for index, group in enumerate(self._groups):
            blocks = table.table(self.graph, index)
            self._slots[index] = self.graph.apply(SlotMap(shape.block), positions, rows, blocks)
            plan = AttentionPlan(shape.tokens, shape.tile, group.window, shape.splits)
            self._plans[index] = self.graph.apply(plan, runs)
        weight = self.weight("token_embd.weight", self.config.vocabulary, self.config.hidden)
        return self.graph.apply(Embed(self.config.embed_scale), ids, weight)

    def _heads(self, x: Value, head_dim: int) -> Value:
        return self.graph.apply(Reshape((x.type.shape[-1] // head_dim, head_dim)), x)

    def _rotary_table(self, spec: RotarySpec) -> Value:
        if spec not in self._tables:
            assert self._positions is not None
            self._tables[spec] = self.graph.apply(RotaryTable(spec), self._positions)
        return self._tables[spec]

    def _attend(self, layer: int, heads: Sequence[Value], norms: Sequence[Value]) -> Value:
        """Attention of a layer's queries; `heads` are queries, keys and values, `norms` the weights for q and k."""
        index = next(i for i, group in enumerate(self._groups) if layer in group.layers)
        group, shape, config = self._groups[index], self.shape, self.config
        pool = (shape.pool_blocks[index] * shape.block, group.kv_heads, group.head_dim)
        pools = [self.graph.state(f"kv.{index}.{layer}.{part}", pool, DType.ACT) for part in ("k", "v")]
        eps, offset = (config.eps, config.norm_offset) if norms else (None, 0.0)
        rotary = config.layers[layer].rotary
        table = self._rotary_table(rotary.at(shape.max_seq) if isinstance(rotary, LongRotary) else rotary)
        write = RotaryKvWrite(config.rotary_style, eps, offset)
        q, k_pool, v_pool = self.graph.apply_many(write, *heads, table, self._slots[index], *pools, *norms)
        softcap = config.attention_softcap
        op = PagedAttention(config.query_scale, shape.block, group.window, softcap, shape.tile, shape.splits)
        blocks = shape.row_table.table(self.graph, index)
        return self.graph.apply(op, q, k_pool, v_pool, self._plans[index], blocks)


def step_graph(config: DecoderConfig, weights: Weights, layer: LayerFunction, shape: StepShape) -> Graph:
    """`step`: input `block` (int32); leaves each run's last hidden vector in state rows.hidden."""
    builder = DecoderBuilder("step", config, weights, shape)
    _layers(builder, layer)
    return _finished(builder)


def head_graph(config: DecoderConfig, weights: Weights, rows: int, shape: StepShape) -> Graph:
    """`head`: input `rows` (int32, live count "rows"); leaves their logits in state rows.logits, in that order."""
    builder = DecoderBuilder("head", config, weights, shape)
    index = builder.graph.input("rows", (rows,), DType.I32, "rows")
    hidden = builder.graph.apply(GatherRows(), shape.row_table.hidden(builder.graph, config.hidden), index)
    builder.graph.apply(Into(), _logits(builder, hidden), shape.row_table.logits(builder.graph, config.vocabulary))
    return _finished(builder)


def score_graph(config: DecoderConfig, weights: Weights, layer: LayerFunction, shape: StepShape, top: int) -> Graph:
    """`score`: what `step` does, and log-probabilities at every position (T = `shape.tokens`).

    Inputs `block`, as step's, and `targets` (T,) int32: the token that follows each position. Outputs `chosen` (T,)
    float32, the targets' log-probabilities, `top_ids` (T, `top`) int32 and `top_values` (T, `top`) float32, those of
    the likeliest tokens. The logits of all T positions are temporaries: T x vocabulary float32.
    """
    builder = DecoderBuilder("score", config, weights, shape)
    hidden = _layers(builder, layer)
    targets = builder.graph.input("targets", (shape.tokens,), DType.I32, "tokens")
    found = builder.graph.apply_many(TopLogProbs(top), _logits(builder, hidden), targets)
    for name, value in zip(("chosen", "top_ids", "top_values"), found, strict=True):
        builder.graph.output(name, value)
    return _finished(builder)


def _layers(builder: DecoderBuilder, layer: LayerFunction) -> Value:
    """Input `block` through all layers, and each run's last hidden vector kept: hidden vectors of the tokens (T, D)."""
    config, table = builder.config, builder.shape.row_table
    block = builder.graph.input("block", (table.step_block(builder.shape.tokens),), DType.I32)
    hidden = builder.embed(block)
    for index in range(len(config.layers)):
        hidden = layer(builder, index, hidden)
    builder.graph.apply(KeepLast(), hidden, builder.runs, table.hidden(builder.graph, config.hidden))
    return hidden


def _logits(builder: DecoderBuilder, hidden: Value) -> Value:
    """Hidden vectors (N, D) to float32 logits (N, V)."""
    config = builder.config
    name = "token_embd" if config.tied else "output"
    logits = builder.linear(builder.norm(hidden, "output_norm"), (name, config.vocabulary), out=DType.F32)
    logits = builder.scale(logits, config.logit_scale)
    return logits if config.logit_softcap is None else builder.graph.apply(SoftCap(config.logit_softcap), logits)


def _finished(builder: DecoderBuilder) -> Graph:
    graph = builder.graph.finish()
    verify(graph)
    return graph
