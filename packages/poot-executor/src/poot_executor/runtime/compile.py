"""Passes, kernel choice and memory plan of every entry. Nothing is allocated, so the fit can ask what-if questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from poot_executor.devices.protocol import Device, Live
from poot_executor.errors import GraphError
from poot_executor.ir.graph import Graph
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ir.verify import verify
from poot_executor.kernels.kernel import WeightForm
from poot_executor.kernels.select import Choice, runs_all, select, site_of
from poot_executor.memory.account import MemoryClass
from poot_executor.memory.plan import ArenaPlan, plan_arena
from poot_executor.passes import PASSES, narrow


class EntryKey(NamedTuple):
    """A program at a capacity, with the features that cost when present (adapters, penalties, log-probabilities)."""

    program: str
    capacity: int
    features: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.program}[{self.capacity}]" + "".join(f"+{f}" for f in sorted(self.features))


@dataclass(frozen=True, slots=True)
class CompiledEntry:
    key: EntryKey
    graph: Graph
    choices: tuple[Choice | None, ...]
    arena: ArenaPlan

    @property
    def dispatches(self) -> int:
        """Kernels that one run launches."""
        return self.graph.dispatches

    @property
    def activation_peak(self) -> int:
        """Bytes of temporaries at their worst moment."""
        return self.arena.peak

    @property
    def live_capacity(self) -> Live:
        """The greatest live counts that a run may have; a count that bounds no value of the graph is free."""
        most = dict.fromkeys(Live._fields, 2**31 - 1)
        for value in self.graph.values:
            if value.type.live is not None:
                most[value.type.live] = min(most[value.type.live], value.type.shape[0])
        return Live(**most)

    def report(self) -> str:
        """For people: each kernel chosen, how often, and what was refused before it."""
        counts: dict[str, int] = {}
        for choice in self.choices:
            if choice is not None:
                label = f"{type(choice.site.op).__name__}: {choice.kernel.name}"
                label += f" ({'; '.join(choice.refusals)})" if choice.refusals else ""
                counts[label] = counts.get(label, 0) + 1
        lines = [f"{self.key}: {self.dispatches} dispatches, {self.activation_peak} bytes of temporaries"]
        return "\n".join([*lines, *(f"  {n} x {label}" for label, n in sorted(counts.items()))])


@dataclass(frozen=True, slots=True)
class Compiled:
    """All entries of one model on one device. Sizes in bytes."""

    entries: dict[EntryKey, CompiledEntry]
    forms: tuple[WeightForm, ...]
    states: dict[str, TensorType]
    arena: int
    staging: int

    @property
    def weights(self) -> int:
        return sum(form.nbytes for form in self.forms)

    def state_bytes(self, kind: MemoryClass) -> int:
        return sum(_bytes(type_) for name, type_ in self.states.items() if state_class(name) == kind)

    def with_states(self, types: Mapping[str, TensorType]) -> Compiled:
        """The same entries over states of other sizes, such as KV pools: far quicker than compiling anew.

        States that `types` does not name stay as they are. Raises GraphError where a size would change anything but
        the states themselves: another state, a temporary, a kernel's choice or its workspace.
        """
        states = {name: types.get(name, type_) for name, type_ in self.states.items()}
        changed = {name for name, type_ in states.items() if type_ != self.states[name]}
        if not changed:
            return self
        entries = {key: _with_states(entry, states, changed) for key, entry in self.entries.items()}
        return replace(self, entries=entries, states=states)


def state_class(name: str) -> MemoryClass:
    """States named `kv.*` are KV pools; the others belong to the row table."""
    return "kv" if name.startswith("kv.") else "rows"


def state_types(graph: Graph, activation: DType) -> dict[str, TensorType]:
    """The type of each state that a graph names."""
    return {name: graph.values[first].type.resolve(activation) for name, (first, _) in graph.states.items()}


def compile_graphs(device: Device, graphs: Mapping[EntryKey, Graph]) -> Compiled:
    """Run the passes over each graph, choose kernels, plan the arena.

    Raises GraphError, and KernelUnavailableError with the reasons.
    """
    entries: dict[EntryKey, CompiledEntry] = {}
    forms: dict[WeightForm, None] = {}
    states: dict[str, TensorType] = {}
    staging = 0
    for key, source in graphs.items():
        graph = narrow(source, lambda tokens, share, width: (device.tile(tokens, share), device.splits(tokens, width)))
        for step in PASSES:
            made = step.run(graph)
            if runs_all(made, step.makes, device.kernels, device.activation):
                graph = made
        if graph is not source:
            verify(graph)
        choices = select(graph, device.kernels, device.activation)
        workspaces = [choice.kernel.workspace(choice.site) if choice else 0 for choice in choices]
        plan = plan_arena(graph, device.activation, workspaces, device.alignment)
        entries[key] = CompiledEntry(key, graph, choices, plan)
        for choice in choices:
            if choice is not None:
                forms |= dict.fromkeys(choice.kernel.forms(choice.site))
        for name, type_ in state_types(graph, device.activation).items():
            if states.setdefault(name, type_) != type_:
                raise GraphError(f"state {name} has two types: {states[name]} and, in {key}, {type_}")
        staging += sum(v.type.nbytes(device.activation) for v in graph.values if v.role in (Role.INPUT, Role.OUTPUT))
    _check_single_copy(tuple(forms))
    arena = max((entry.arena.peak for entry in entries.values()), default=0)
    return Compiled(entries, tuple(forms), states, arena, staging)


def _with_states(entry: CompiledEntry, states: Mapping[str, TensorType], changed: set[str]) -> CompiledEntry:
    graph = entry.graph
    values = tuple(
        replace(value, type=value.type.with_shape(*states[value.state].shape)) if value.state in changed else value
        for value in graph.values
    )
    touched = {value.id for value in values if value.state in changed}
    if not touched:
        return entry
    graph, choices = replace(graph, values=values), list(entry.choices)
    for index, node in enumerate(graph.nodes):
        if touched.isdisjoint((*node.inputs, *node.outputs)):
            continue
        if node.op.infer(*graph.types(node.inputs)) != graph.types(node.outputs):
            raise GraphError(f"{entry.key}: {type(node.op).__name__} makes more than states of another size")
        if (choice := choices[index]) is not None:
            site, kernel = site_of(graph, node, choice.site.activation), choice.kernel
            if kernel.accepts(site) is not None or kernel.workspace(site) != kernel.workspace(choice.site):
                raise GraphError(f"{entry.key}: {kernel.name} depends on the size of a state")
            choices[index] = replace(choice, site=site)
    return replace(entry, graph=graph, choices=tuple(choices))


def _check_single_copy(forms: tuple[WeightForm, ...]) -> None:
    """No weight may be held twice: a form that takes bytes must be its weights' only one that does."""
    holder: dict[str, WeightForm] = {}
    for form in forms:
        for name in form.names if form.nbytes else ():
            if holder.setdefault(name, form) is not form:
                raise GraphError(f"weight {name} would be held twice: as {holder[name].layout} and as {form.layout}")


def _bytes(type_: TensorType) -> int:
    return type_.elements * type_.dtype.size
