"""Rotation and KV writes of views, and of more rows than the examples have; what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poot_executor.backends.cpu.kernels import few_rows
from poot_executor.devices import Live, open_device
from poot_executor.encodings import Dense
from poot_executor.errors import GraphError, KernelUnavailableError
from poot_executor.ir import DType, Graph, GraphBuilder, Value, verify
from poot_executor.ops import Reshape, RotaryKvWrite, Split
from poot_executor.ops.base import dense_weight
from poot_executor.runtime import EntryKey, compile_graphs, prepare
from poot_executor.testing import interpret

HEADS, KV_HEADS, WIDTH, DIM = 8, 4, 64, 48
NORMS = ("q_norm", "k_norm")


def graph(tokens: int, op: RotaryKvWrite, *, apart: bool) -> Graph:
    """Queries, keys and values as columns of one input; with `apart` each head of q is half of a wider one."""
    builder = GraphBuilder("g")
    q_width = HEADS * WIDTH * (2 if apart else 1)
    x = builder.input("x", (tokens, q_width + 2 * KV_HEADS * WIDTH), DType.ACT, "tokens")
    q, k, v = builder.apply_many(Split((q_width, KV_HEADS * WIDTH, KV_HEADS * WIDTH)), x)
    q = builder.apply(Reshape((HEADS, q_width // HEADS)), q)
    if apart:
        _, q = builder.apply_many(Split((WIDTH, WIDTH)), q)
    k, v = (builder.apply(Reshape((KV_HEADS, WIDTH)), part) for part in (k, v))
    table = builder.input("table", (tokens, DIM), DType.F32, "tokens")
    slots = builder.input("slots", (tokens,), DType.I32, "tokens")
    pools = [builder.state(f"kv.{part}", (2 * tokens, KV_HEADS, WIDTH), DType.ACT) for part in "kv"]
    norms = [builder.weight(name, (WIDTH,), Dense("F32")) for name in NORMS] if op.eps is not None else []
    builder.output("q", builder.apply_many(op, q, k, v, table, slots, *pools, *norms)[0])
    made = builder.finish()
    verify(made)
    return made


@pytest.mark.parametrize("library", [True, False], ids=["C", "torch"])
@pytest.mark.parametrize("apart", [False, True], ids=["columns", "halves of heads"])
@pytest.mark.parametrize("tokens", [3, 700])
@pytest.mark.parametrize("op", [RotaryKvWrite("half"), RotaryKvWrite("interleaved", 1e-6, 1.0)], ids=str)
def test_views_of_a_wider_product(
    op: RotaryKvWrite, tokens: int, apart: bool, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not library:
        monkeypatch.setattr(few_rows, "load_library", lambda: "no C compiler")
    device, key, live, noise = open_device("cpu"), EntryKey("g", tokens), Live(tokens=tokens - 1), torch.manual_seed(4)
    source = graph(tokens, op, apart=apart)
    shapes = {source.values[i].name: source.values[i].type.shape for i in source.inputs}
    inputs = {name: torch.randn(shapes[name], generator=noise) for name in ("x", "table")}
    inputs["slots"] = torch.randperm(2 * tokens, generator=noise)[:tokens].to(torch.int32)
    weights = {name: dense_weight(name, torch.randn(WIDTH, generator=noise)) for name in NORMS}
    before = {name: torch.randn(2 * tokens, KV_HEADS, WIDTH, generator=noise) for name in ("kv.k", "kv.v")}
    entries = prepare(device, compile_graphs(device, {key: source}), weights)
    for name, tensor in before.items():
        entries.write_state(name, tensor.numpy())
    for name, tensor in inputs.items():
        entries[key].stage(name, tensor.numpy())
    entries[key].run(live)
    expected = interpret(source, live=live, inputs=inputs, weights=weights, states=before)
    found = entries[key].read("q", tokens - 1)
    np.testing.assert_allclose(found, expected.outputs["q"].numpy(), rtol=1e-5, atol=2e-5)
    for name, wanted in expected.states.items():
        np.testing.assert_allclose(entries.read_state(name), wanted.numpy(), rtol=1e-5, atol=2e-5)


def test_an_odd_offset_is_refused() -> None:
    with pytest.raises(KernelUnavailableError, match=r"the weights' offset is 0.5, not 0 or 1"):
        compile_graphs(open_device("cpu"), {EntryKey("g", 2): graph(2, RotaryKvWrite("half", 1e-6, 0.5), apart=False)})


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (0, (3, 2, 16), "differ in head size"),
        (1, (3, 4, 8), "does not fit"),
        (2, (3, 1, 8), "does not fit"),
        (3, (3, 10), "too wide"),
        (3, (3, 5), "too wide"),
        (4, (4,), "differ in tokens"),
        (7, (8,), "1 norm weights given"),
    ],
)
def test_types_that_do_not_fit_are_refused(index: int, shape: tuple[int, ...], message: str) -> None:
    builder, shapes = GraphBuilder("g"), [(3, 4, 8), (3, 2, 8), (3, 2, 8), (3, 8), (3,), (9, 2, 8), (9, 2, 8)]
    shapes[index : index + 1] = [shape]

    def value(at: int) -> Value:
        if at in (5, 6):
            return builder.state(f"kv.{at}", shapes[at], DType.ACT)
        return builder.input(f"x{at}", shapes[at], DType.I32 if at == 4 else DType.ACT)

    with pytest.raises(GraphError, match=message):
        builder.apply_many(RotaryKvWrite("half"), *map(value, range(len(shapes))))
