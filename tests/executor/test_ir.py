"""The graph: what the builder and the verifier refuse, and how a graph prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from poot_executor.encodings import Dense
from poot_executor.errors import GraphError
from poot_executor.ir import DType, Graph, GraphBuilder, Node, Role, TensorType, Value, show, verify
from poot_executor.ops import Add, GatherRows, Into, KeepLast, Linear, Reshape, RmsNorm, Scale, Split

F32 = Dense("F32")


def small() -> Graph:
    """x -> norm -> product -> output y."""
    builder = GraphBuilder("small")
    x = builder.input("x", (4, 8), DType.ACT, "tokens")
    normed = builder.apply(RmsNorm(1e-5), x, builder.weight("norm", (8,), F32))
    builder.output("y", builder.apply(Linear(), normed, builder.weight("w", (6, 8), F32)))
    return builder.finish()


def keeping() -> Graph:
    """A state of two versions."""
    builder = GraphBuilder("keeping")
    x, runs = builder.input("x", (4, 8), DType.ACT, "tokens"), builder.input("runs", (2, 4), DType.I32)
    builder.apply(KeepLast(), x, runs, builder.state("kept", (2, 8), DType.ACT))
    return builder.finish()


def with_value(graph: Graph, index: int, **changes: object) -> Graph:
    values = list(graph.values)
    values[index] = replace(values[index], **changes)
    return replace(graph, values=tuple(values))


def id_of(graph: Graph, name: str) -> int:
    return next(value.id for value in graph.values if value.name == name)


def test_what_is_well_formed_passes() -> None:
    verify(small())
    verify(keeping())


MALFORMED: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "ids": (lambda g: with_value(g, 1, id=7), "has id 7 at index 1"),
    "weight without encoding": (lambda g: with_value(g, id_of(g, "w"), encoding=None), "encoding and role disagree"),
    "encoding of an input": (lambda g: with_value(g, id_of(g, "x"), encoding=F32), "encoding and role disagree"),
    "empty": (lambda g: with_value(g, id_of(g, "x"), type=TensorType((0, 8), DType.ACT, "tokens")), "empty shape"),
    "live": (lambda g: with_value(g, id_of(g, "x"), type=TensorType((4, 8), DType.ACT, "words")), "live count words"),
    "order": (lambda g: replace(g, nodes=g.nodes[::-1]), "before it is defined"),
    "twice": (lambda g: replace(g, nodes=(*g.nodes, g.nodes[-1])), "defined twice"),
    "types": (lambda g: with_value(g, id_of(g, "y"), type=TensorType((4, 7), DType.ACT, "tokens")), "infers"),
    "output never computed": (lambda g: replace(g, nodes=g.nodes[:-1]), "never computed"),
    "output not flagged": (lambda g: with_value(g, id_of(g, "y"), role=Role.TEMPORARY), "no output"),
    "names": (lambda g: replace(g, inputs=(*g.inputs, *g.inputs)), "two inputs share a name"),
    "state of a temporary": (lambda g: with_value(g, id_of(g, "rmsnorm_0"), state="s"), "does not write state s"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_each_malformed_graph_is_refused(name: str) -> None:
    change, message = MALFORMED[name]
    with pytest.raises(GraphError, match=message):
        verify(change(small()))


def test_a_state_must_end_at_its_last_version() -> None:
    graph = keeping()
    first, _ = graph.states["kept"]
    with pytest.raises(GraphError, match="does not end at its last version"):
        verify(replace(graph, states={"kept": (first, first)}))


def test_a_write_must_go_to_a_state() -> None:
    graph = keeping()
    first, _ = graph.states["kept"]
    broken = with_value(graph, first, role=Role.INPUT, state=None)
    with pytest.raises(GraphError, match="which is no state"):
        verify(replace(broken, states={}))


def test_no_old_version_is_read() -> None:
    graph = keeping()
    first, _ = graph.states["kept"]
    value = Value(len(graph.values), "late", TensorType((2, 8), DType.ACT), Role.TEMPORARY)
    late = Node(Scale(2.0), (first,), (value.id,))
    with pytest.raises(GraphError, match="an old version of state kept"):
        verify(replace(graph, values=(*graph.values, value), nodes=(*graph.nodes, late)))


def test_no_view_of_an_old_version_is_read() -> None:
    builder = GraphBuilder("g")
    x, runs = builder.input("x", (4, 8), DType.ACT, "tokens"), builder.input("runs", (2, 4), DType.I32)
    kept = builder.state("kept", (2, 8), DType.ACT)
    seen = builder.apply(Reshape((2, 4)), kept)
    builder.apply(Scale(2.0), seen)
    verify(builder.finish())
    builder.apply(KeepLast(), x, runs, kept)
    verify(builder.finish())
    builder.apply(Scale(3.0), seen)
    with pytest.raises(GraphError, match="an old version of state kept"):
        verify(builder.finish())


def test_views_of_weights_and_outputs_that_are_views_are_refused() -> None:
    builder = GraphBuilder("g")
    builder.apply(Reshape((2, 4)), builder.weight("w", (6, 8), F32))
    with pytest.raises(GraphError, match="Reshape views weight w"):
        verify(builder.finish())
    builder = GraphBuilder("g")
    x = builder.apply(Scale(2.0), builder.input("x", (4, 8), DType.ACT))
    builder.output("y", builder.apply(Reshape((2, 4)), x))
    with pytest.raises(GraphError, match="output y is a view"):
        verify(builder.finish())


class TestInto:
    """A value computed in a state: nothing may read what it overwrites."""

    def setup_method(self) -> None:
        self.builder = GraphBuilder("g")
        self.x = self.builder.input("x", (2, 8), DType.F32, "rows")
        self.state = self.builder.state("s", (3, 8), DType.F32)

    def test_the_plain_case_passes_and_the_value_may_still_be_read(self) -> None:
        value = self.builder.apply(Scale(2.0), self.x)
        self.builder.apply(Scale(3.0), value)
        self.builder.apply(Into(), value, self.state)
        self.builder.apply(Scale(4.0), value)
        verify(self.builder.finish())

    def test_the_state_is_not_read_while_the_value_is_computed_in_it(self) -> None:
        value = self.builder.apply(Scale(2.0), self.x)
        self.builder.apply(Scale(3.0), self.state)
        self.builder.apply(Into(), value, self.state)
        with pytest.raises(GraphError, match="Scale reads s, an old version of state s"):
            verify(self.builder.finish())

    def test_nor_by_the_node_that_computes_it(self) -> None:
        index = self.builder.input("index", (2,), DType.I32)
        value = self.builder.apply(GatherRows(), self.state, index)
        self.builder.apply(Into(), value, self.state)
        with pytest.raises(GraphError, match="GatherRows reads s"):
            verify(self.builder.finish())

    def test_reading_the_state_before_is_fine(self) -> None:
        self.builder.apply(Scale(3.0), self.state)
        value = self.builder.apply(Scale(2.0), self.x)
        self.builder.apply(Into(), value, self.state)
        verify(self.builder.finish())

    def test_two_values_cannot_share_the_state(self) -> None:
        first, second = self.builder.apply(Scale(2.0), self.x), self.builder.apply(Scale(3.0), self.x)
        version = self.builder.apply(Into(), first, self.state)
        self.builder.apply(Into(), second, version)
        with pytest.raises(GraphError, match="two values are computed in state s at once"):
            verify(self.builder.finish())

    def test_the_value_is_gone_once_another_is_computed_there(self) -> None:
        first = self.builder.apply(Scale(2.0), self.x)
        version = self.builder.apply(Into(), first, self.state)
        second = self.builder.apply(Scale(3.0), self.x)
        self.builder.apply(Into(), second, version)
        verify(self.builder.finish())
        self.builder.apply(Scale(4.0), first)
        with pytest.raises(GraphError, match="Scale reads scale_0, an old version"):
            verify(self.builder.finish())

    @pytest.mark.parametrize("kind", ["input", "view", "output", "twice"])
    def test_only_a_plain_temporary_can_be_computed_there(self, kind: str) -> None:
        value = self.builder.apply(Scale(2.0), self.x)
        if kind == "input":
            value = self.x
        elif kind == "view":
            value = self.builder.apply(Reshape((8,)), value)
        elif kind == "output":
            self.builder.output("y", value)
        else:
            self.builder.apply(Into(), value, self.builder.state("other", (3, 8), DType.F32))
        self.builder.apply(Into(), value, self.state)
        with pytest.raises(GraphError, match="no plain temporary"):
            verify(self.builder.finish())

    def test_it_must_fit(self) -> None:
        value = self.builder.apply(Scale(2.0), self.builder.input("wide", (4, 8), DType.F32))
        with pytest.raises(GraphError, match="more rows"):
            self.builder.apply(Into(), value, self.state)


class TestBuilder:
    def setup_method(self) -> None:
        self.builder = GraphBuilder("g")
        self.x = self.builder.input("x", (4, 8), DType.ACT, "tokens")

    def test_a_weight_or_state_has_one_type(self) -> None:
        assert self.builder.weight("w", (8,), F32) is self.builder.weight("w", (8,), F32)
        with pytest.raises(GraphError, match="weight w is used with two shapes or encodings"):
            self.builder.weight("w", (8,), Dense("F16"))
        self.builder.state("s", (2, 8), DType.ACT)
        with pytest.raises(GraphError, match="state s is used with two types"):
            self.builder.state("s", (2, 8), DType.F32)

    def test_states_move_on(self) -> None:
        runs, old = self.builder.input("runs", (2, 4), DType.I32), self.builder.state("s", (2, 8), DType.ACT)
        new = self.builder.apply(KeepLast(), self.x, runs, old)
        assert self.builder.state("s", (2, 8), DType.ACT) == new
        with pytest.raises(GraphError, match="uses an old version of state s"):
            self.builder.apply(KeepLast(), self.x, runs, old)

    def test_writing_what_is_no_state(self) -> None:
        runs = self.builder.input("runs", (2, 4), DType.I32)
        with pytest.raises(GraphError, match="writes y, which is no state"):
            self.builder.apply(KeepLast(), self.x, runs, self.builder.input("y", (2, 8), DType.ACT))

    def test_wrong_numbers_of_inputs_and_outputs(self) -> None:
        with pytest.raises(GraphError, match="Add does not take 1 inputs"):
            self.builder.apply(Add(), self.x)
        with pytest.raises(GraphError, match="has 2 outputs"):
            self.builder.apply(Split((4, 4)), self.x)

    def test_types_that_do_not_fit(self) -> None:
        with pytest.raises(GraphError, match="differ"):
            self.builder.apply(Add(), self.x, self.builder.input("y", (4, 9), DType.ACT, "tokens"))
        for wrong in (Split((4, 5)), Reshape((3, 3))):
            with pytest.raises(GraphError):
                self.builder.apply(wrong, self.x)
        with pytest.raises(GraphError, match="has no columns"):
            self.builder.apply(Split((4,)), self.builder.input("flat", (4,), DType.ACT))

    def test_only_temporaries_are_outputs_and_only_once(self) -> None:
        with pytest.raises(GraphError, match=r"x \(input\) is no temporary"):
            self.builder.output("y", self.x)
        value = self.builder.apply(Scale(2.0), self.x)
        self.builder.output("y", value)
        with pytest.raises(GraphError, match=r"y \(output\) is no temporary"):
            self.builder.output("z", value)

    def test_a_value_of_another_graph(self) -> None:
        other = GraphBuilder("other")
        other.input("y", (4, 4), DType.ACT)
        foreign = other.input("z", (4, 8), DType.ACT)
        for value in (foreign, replace(self.x, type=TensorType((4, 9), DType.ACT))):
            with pytest.raises(GraphError, match="another graph"):
                self.builder.apply(Scale(2.0), value)


def test_show() -> None:
    assert show(small()).splitlines() == [
        "graph small: 2 nodes, 2 dispatches",
        "  input %0.x!: act[4x8]@tokens",
        "  %2.rmsnorm_0: act[4x8]@tokens = RmsNorm(eps=1e-05, offset=0.0)(%0.x!, norm<F32>)",
        "  %4.y: act[4x6]@tokens = Linear(weights=1, bias=False, out=<DType.ACT: 'act'>)(%2.rmsnorm_0, w<F32>)",
    ]
    assert "  state kept: act[2x8]" in show(keeping()).splitlines()


def test_sizes_of_types() -> None:
    type_ = TensorType((3, 5), DType.ACT, "rows")
    assert (type_.nbytes(DType.BF16), type_.nbytes(DType.F32)) == (30, 60)
    assert type_.resolve(DType.F16) == TensorType((3, 5), DType.F16, "rows")
    assert [dtype.size for dtype in (DType.F32, DType.F16, DType.BF16, DType.I32, DType.U8)] == [4, 2, 2, 4, 1]
    with pytest.raises(ValueError, match="before a backend resolves it"):
        _ = DType.ACT.size
