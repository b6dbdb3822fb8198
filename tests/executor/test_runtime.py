"""Compile, prepare and entries: what they refuse, and that a device without hardware can be prepared for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from poot_executor.backends.null.device import NullDevice, NullRecording
from poot_executor.devices import Live, open_device
from poot_executor.devices.protocol import Launch
from poot_executor.encodings import Dense, WeightSource
from poot_executor.errors import CapacityError, GraphError, KernelUnavailableError
from poot_executor.ir import DType, Graph, GraphBuilder
from poot_executor.ir.graph import Op
from poot_executor.kernels import Choice, KernelTable, WeightForm, select
from poot_executor.ops import GatedActivation, GatedLinear, Into, Linear, RmsNorm, Scale, all_ops
from poot_executor.ops.base import dense_weight
from poot_executor.passes import PASSES
from poot_executor.programs import FULL, LOGPROBS, PENALTIES, open_graph, sample_graph
from poot_executor.runtime import EntryKey, EntrySet, compile_graphs, prepare

KEY = EntryKey("g", 4)


def product() -> Graph:
    builder = GraphBuilder("g")
    x = builder.input("x", (4, 32), DType.ACT, "tokens")
    builder.output("y", builder.apply(Linear(), x, builder.weight("w", (8, 32), Dense("F32"))))
    return builder.finish()


def source(rows: int = 8, width: int = 32, name: str = "w") -> WeightSource:
    return dense_weight(name, torch.arange(rows * width, dtype=torch.float32).view(rows, width) / 100)


def prepared() -> EntrySet:
    device = open_device("cpu")
    return prepare(device, compile_graphs(device, {KEY: product()}), {"w": source()})


def test_a_product_from_end_to_end() -> None:
    entries = prepared()
    x = np.random.default_rng(1).standard_normal((3, 32), dtype=np.float32)
    entries[KEY].stage("x", x)
    entries[KEY].run(Live(tokens=3))
    expected = x @ (np.arange(256, dtype=np.float32).reshape(8, 32) / 100).T
    np.testing.assert_allclose(entries[KEY].read("y", 3), expected, rtol=1e-4, atol=1e-5)
    assert entries.keys() == (KEY,)
    assert str(EntryKey("sample", 8, frozenset({"full", "bias"}))) == "sample[8]+bias+full"


def test_no_live_tokens_is_a_run_too(decoder: Any) -> None:
    entries = prepared()
    entries[KEY].run(Live())
    model, device = decoder(), open_device("cpu")
    graphs = {EntryKey("step", 4): model.step(4)}
    entries = prepare(device, compile_graphs(device, graphs), model.weights())
    block, live = model.step_block(4, [])
    entries[EntryKey("step", 4)].stage("block", block)
    entries[EntryKey("step", 4)].run(live)
    assert not entries.read_state("rows.hidden").any()


def test_states_of_the_row_table_start_at_zero(decoder: Any) -> None:
    model, device = decoder(), open_device("cpu")
    entries = prepare(device, compile_graphs(device, {KEY: model.step(4)}), model.weights())
    for name in ("rows.ints", "rows.history", "rows.hidden", "rows.table.0"):
        assert not entries.read_state(name).any()


BAD_CALLS: dict[str, tuple[Callable[[EntrySet], object], str]] = {
    "input": (lambda e: e[KEY].stage("z", np.zeros(1, np.float32)), "has no input 'z'; it has x"),
    "staging an output": (lambda e: e[KEY].stage("y", np.zeros(1, np.float32)), "has no input 'y'"),
    "type": (lambda e: e[KEY].stage("x", np.zeros(1, np.float64)), r"is f32\[4x32\]@tokens, not float64\[1\]"),
    "size": (lambda e: e[KEY].stage("x", np.zeros(129, np.float32)), r"not float32\[129\]"),
    "output": (lambda e: e[KEY].read("x"), "has no output 'x'; it has y"),
    "rows": (lambda e: e[KEY].read("y", 5), "has no 5 rows"),
    "negative rows": (lambda e: e[KEY].read("y", -1), "has no -1 rows"),
    "too many": (lambda e: e[KEY].run(Live(tokens=5)), r"g\[4\] runs at most .*tokens=4"),
    "negative": (lambda e: e[KEY].run(Live(tokens=-1)), "runs at most"),
    "state": (lambda e: e.read_state("s"), "there is no state 's'; there are none"),
    "written state": (lambda e: e.write_state("s", np.zeros(1, np.float32)), "there is no state 's'"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_are_refused(name: str) -> None:
    call, message = BAD_CALLS[name]
    with pytest.raises(GraphError, match=message):
        call(prepared())


def test_a_state_is_written_in_its_type(decoder: Any) -> None:
    model, device = decoder(), open_device("cpu")
    entries = prepare(device, compile_graphs(device, {KEY: model.step(4)}), model.weights())
    for data in (np.zeros(4, np.float32), np.zeros(10_000, np.int32)):
        with pytest.raises(GraphError, match=r"state rows.ints is i32\[3x8\]"):
            entries.write_state("rows.ints", data)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "wants weight w, which the checkpoint does not have"),
        ({"w": source(9)}, r"weight w is \(9, 32\) F32; the graph g\[4\] wants \(8, 32\) F32"),
        ({"w": replace(source(8, 32), encoding=Dense("F64"), shape=(8, 16))}, "F64"),
    ],
)
def test_weights_are_checked(weights: dict[str, WeightSource], message: str) -> None:
    device = open_device("cpu")
    with pytest.raises(GraphError, match=message):
        prepare(device, compile_graphs(device, {KEY: product()}), weights)


def test_progress_is_told() -> None:
    device, seen = open_device("cpu"), []
    compiled = compile_graphs(device, {KEY: product(), EntryKey("other", 4): product()})
    prepare(device, compiled, {"w": source()}, lambda *step: seen.append(step))
    assert seen[-2:] == [("entries", 1, 2), ("entries", 2, 2)]
    assert [phase for phase, _, _ in seen[:-2]] == ["weights"] * len(compiled.forms)
    assert seen[len(compiled.forms) - 1][1:] == (compiled.weights, compiled.weights)


def test_a_state_has_one_type_in_all_entries() -> None:
    def graph(width: int) -> Graph:
        builder = GraphBuilder("g")
        x = builder.apply(Scale(2.0), builder.input("x", (2, width), DType.ACT, "rows"))
        builder.apply(Into(), x, builder.state("s", (2, width), DType.ACT))
        return builder.finish()

    with pytest.raises(GraphError, match=r"state s has two types: f32\[2x8\] and, in b\[1\], f32\[2x9\]"):
        compile_graphs(open_device("cpu"), {EntryKey("a", 1): graph(8), EntryKey("b", 1): graph(9)})


class Two:
    """A kernel that wants its weight in a layout of its own for each width of x."""

    name = "two"

    def accepts(self, site: Any) -> str | None:
        return "a bias" if site.op.bias else None

    def forms(self, site: Any) -> tuple[WeightForm, ...]:
        return (WeightForm(f"for {site.inputs[0].shape[0]}", ("w",), 8),)

    def workspace(self, site: Any) -> int:
        return 0

    def bind(self, site: Any, operands: Any, device: Any) -> Any:
        return lambda live: lambda: None


def test_no_weight_is_held_twice() -> None:
    def graph(tokens: int) -> Graph:
        builder = GraphBuilder("g")
        x = builder.input("x", (tokens, 32), DType.ACT)
        builder.output("y", builder.apply(Linear(), x, builder.weight("w", (8, 32), Dense("F32"))))
        return builder.finish()

    device = open_device("cpu")
    device.kernels = KernelTable("third")
    device.kernels.register(Linear)(Two)
    assert compile_graphs(device, {EntryKey("a", 1): graph(3), EntryKey("b", 1): graph(3)}).weights == 8
    with pytest.raises(GraphError, match="weight w would be held twice: as for 3 and as for 4"):
        compile_graphs(device, {EntryKey("a", 1): graph(3), EntryKey("b", 1): graph(4)})


def test_selection_names_every_refusal() -> None:
    builder = GraphBuilder("g")
    x, weight = builder.input("x", (4, 32), DType.ACT), builder.weight("w", (8, 32), Dense("F32"))
    builder.apply(Linear(bias=True), x, weight, builder.weight("b", (8,), Dense("F32")))
    graph, table = builder.finish(), KernelTable("third")
    table.register(Linear)(Two)
    with pytest.raises(KernelUnavailableError, match=r"third cannot run Linear\(.*\) on f32\[4x32\], .*: two: a bias$"):
        select(graph, table, DType.F32)
    with pytest.raises(KernelUnavailableError, match="it has no kernel for this op"):
        select(graph, KernelTable("empty"), DType.F32)


def test_a_preferred_kernel_comes_first_and_a_choice_keeps_the_refusals() -> None:
    class Never(Two):
        name = "never"

        def accepts(self, site: Any) -> str | None:
            return "not today"

    table = KernelTable("third")
    table.register(Linear)(Two)
    table.register(Linear, preferred=True)(Never)
    (choice,) = select(product(), table, DType.F32)
    assert choice is not None
    assert (choice.kernel.name, choice.refusals) == ("two", ("never: not today",))
    assert list(table) == [Linear]
    device = open_device("cpu")
    device.kernels = table
    report = compile_graphs(device, {KEY: product()}).entries[KEY].report()
    assert report == "g[4]: 1 dispatches, 0 bytes of temporaries\n  1 x Linear: two (never: not today)"


def test_an_op_that_a_pass_makes_is_made_where_there_is_a_kernel_for_it(decoder: Any) -> None:
    class Willing(Two):
        def accepts(self, site: Any) -> str | None:
            return None

        def forms(self, site: Any) -> tuple[WeightForm, ...]:
            return ()

    def made(table: KernelTable) -> set[type[Op]]:
        device = open_device("cpu")
        device.kernels = table
        compiled = compile_graphs(device, {KEY: decoder().step(4)})
        return {type(node.op) for node in compiled.entries[KEY].graph.nodes}

    table = KernelTable("third")
    for op in set(all_ops()) - {op for step in PASSES for op in step.makes}:
        table.register(op)(Willing)
    assert made(table) >= {Linear, GatedActivation}
    assert GatedLinear not in made(table)
    table.register(GatedLinear)(Willing)
    assert made(table) >= {Linear, GatedLinear}
    assert GatedActivation not in made(table)


def ladder(model: Any) -> dict[EntryKey, Graph]:
    graphs = {EntryKey("step", tokens): model.step(tokens) for tokens in (1, 2, 4, 8)}
    graphs |= {EntryKey("head", rows): model.head_graph(rows) for rows in (1, 2)}
    for features in ([], [FULL], [FULL, PENALTIES], [FULL, PENALTIES, LOGPROBS]):
        chosen = frozenset(features)
        sample = sample_graph(model.table, 2, model.vocabulary, chosen, ends=(1,), top=3)
        graphs[EntryKey("sample", 2, chosen)] = sample
    return graphs | {EntryKey("open", 1): open_graph(model.table)}


def test_the_null_device_prepares_and_counts(decoder: Any) -> None:
    model, device = decoder(), NullDevice()
    graphs = ladder(model)
    compiled = compile_graphs(device, graphs)
    entries = prepare(device, compiled, model.weights())
    assert entries.keys() == tuple(graphs)
    assert len(device.recordings) == len(graphs)
    assert [r.launches for r in device.recordings] == [entry.dispatches for entry in compiled.entries.values()]
    for _ in range(3):
        entries[EntryKey("step", 4)].run(Live(tokens=4, runs=1))
    entries[EntryKey("head", 2)].run(Live(rows=1))
    replays = dict(zip(graphs, (r.replays for r in device.recordings), strict=True))
    assert replays.pop(EntryKey("step", 4)) == 3
    assert replays.pop(EntryKey("head", 2)) == 1
    assert set(replays.values()) == {0}
    sample = entries[EntryKey("sample", 2, frozenset([FULL]))]
    assert sample.read("tokens").tolist() == [0, 0]
    account = device.account
    assert account.of("weights") == compiled.weights == sum(source.data.size for source in model.weights().values())
    assert account.of("kv") == compiled.state_bytes("kv") == 2 * 2 * 4 * 3 * 40 * 2 * 8
    assert account.of("rows") == compiled.state_bytes("rows")
    assert (account.of("arena"), account.of("staging")) == (compiled.arena, compiled.staging)


def test_launches_that_are_like_those_before_are_not_fresh(decoder: Any) -> None:
    class Asked(NullDevice):
        def record(self, launches: Sequence[Launch], fresh: Sequence[bool]) -> NullRecording:
            assert len(fresh) == len(launches)
            told.append(list(fresh))
            return super().record(launches, fresh)

    told: list[list[bool]] = []
    device = Asked()
    for layers in (2, 5):
        model = decoder(layers=layers)
        graphs = {EntryKey("step", tokens): model.step(tokens) for tokens in (4, 5)}
        graphs[EntryKey("again", 4)] = graphs[EntryKey("step", 4)]
        prepare(device, compile_graphs(device, graphs), model.weights())
    # More layers do the same with other weights and pools; each size of step has its own; what was there before is not
    # fresh, but for a later preparation, which knows nothing of it.
    few, few_of_five, again, many, many_of_five, once_more = told
    assert len(many) > len(few)
    assert sum(few) == sum(few_of_five) == sum(many) == sum(many_of_five) > 0
    assert not any(again) and not any(once_more)


def test_a_device_that_looks_ahead_hears_of_all_kernels_before_weights_come(decoder: Any) -> None:
    class Ahead(NullDevice):
        def foresee(self, choices: Iterable[Choice]) -> None:
            told.append(("foreseen", list(choices)))

        def hold(self, form: WeightForm, sources: Sequence[WeightSource]) -> Any:
            told.append(("held", form))
            return super().hold(form, sources)

    told: list[tuple[str, Any]] = []
    model = decoder(layers=2)
    compiled = compile_graphs(Ahead(), {EntryKey("step", tokens): model.step(tokens) for tokens in (4, 5)})
    prepare(Ahead(), compiled, model.weights())
    (first, choices), *others = told
    assert first == "foreseen"
    assert choices == [choice for entry in compiled.entries.values() for choice in entry.choices if choice is not None]
    assert {what for what, _ in others} == {"held"}


def test_the_null_device_runs_out() -> None:
    device = NullDevice(capacity=1024)
    with pytest.raises(CapacityError, match="the null device has no 256 bytes for arena: 256 short") as found:
        prepare(device, compile_graphs(device, {KEY: product()}), {"w": source()})
    assert found.value.shortfall == 256


def test_the_host_runs_out() -> None:
    device = open_device("cpu")
    with pytest.raises(CapacityError, match="the host has no"):
        device.allocate("kv", 2**60)
    assert device.account.total == 0


def test_the_whole_norm_is_refused_by_offset() -> None:
    builder = GraphBuilder("g")
    x = builder.input("x", (4, 32), DType.ACT)
    builder.apply(RmsNorm(1e-5, 0.5), x, builder.weight("w", (32,), Dense("F32")))
    with pytest.raises(KernelUnavailableError, match=r"the weight's offset is 0.5, not 0 or 1"):
        compile_graphs(open_device("cpu"), {KEY: builder.finish()})


def test_states_of_another_size_are_refused_where_more_depends_on_it(decoder: type) -> None:
    model, device = decoder(), open_device("null")
    compiled = compile_graphs(device, {EntryKey("step", 4): model.step(4)})
    assert compiled.with_states(compiled.states) is compiled
    hidden = compiled.states["rows.hidden"]
    with pytest.raises(GraphError, match="KeepLast"):
        compiled.with_states({"rows.hidden": hidden.with_shape(*hidden.shape[:-1], hidden.shape[-1] + 1)})
    pool = compiled.states["kv.0.k"]
    larger = pool.with_shape(2 * pool.shape[0], *pool.shape[1:])
    grown = compiled.with_states({"kv.0.k": larger, "kv.0.v": larger})
    assert grown.state_bytes("kv") == compiled.state_bytes("kv") + 2 * pool.elements * 4
    assert compiled.states["kv.0.k"] == pool
