"""`sample`: logits of the rows that sample to tokens, apart from the forward pass."""

from __future__ import annotations

from poot_executor.ir import DType, Graph, GraphBuilder, verify
from poot_executor.ops import AdjustLogits, CommitTokens, Draw, Greedy, TopLogProbs
from poot_executor.programs.rows import RowTableShape

# Features of a sample entry: what a step pays for only when a row asks for it.
FULL = "full"  # temperature and cuts; without it every row is greedy
PENALTIES = "penalties"  # bias, penalties, a least length
LOGPROBS = "logprobs"


def sample_graph(
    shape: RowTableShape, rows: int, vocabulary: int, features: frozenset[str], *, ends: tuple[int, ...], top: int
) -> Graph:
    """Sample for the rows listed in input `rows` (int32, live count "rows").

    Reads state rows.logits, whose leading rows are in the order of `rows`. Outputs `tokens` and `flags` (int32), with
    LOGPROBS also `chosen` (float32), `top_ids` and `top_values` (N, `top`) of the unadjusted logits. The tokens are
    appended to their rows' histories. `ends` are the tokens that a row below its least length must not choose.
    """
    builder = GraphBuilder("sample")
    index = builder.input("rows", (rows,), DType.I32, "rows")
    ints, floats, history = shape.ints(builder), shape.floats(builder), shape.history(builder)
    logits = shape.logits(builder, vocabulary)
    adjusted = logits
    if PENALTIES in features:
        bias = shape.bias_ids(builder), shape.bias_values(builder)
        adjusted = builder.apply(AdjustLogits(ends), logits, index, ints, floats, *bias, history)
    if FULL in features:
        tokens, flags = builder.apply_many(Draw(), adjusted, index, ints, floats)
    else:
        tokens, flags = builder.apply_many(Greedy(), adjusted, index)
    if LOGPROBS in features:
        for name, value in zip(
            ("chosen", "top_ids", "top_values"), builder.apply_many(TopLogProbs(top), logits, tokens), strict=True
        ):
            builder.output(name, value)
    builder.output("tokens", tokens)
    builder.output("flags", flags)
    builder.apply(CommitTokens(), tokens, index, ints, history)
    graph = builder.finish()
    verify(graph)
    return graph
