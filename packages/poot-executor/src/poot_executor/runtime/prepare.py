"""Allocate, upload, bind, record: after this nothing allocates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from poot_executor.devices.protocol import Allocation, Device, Foresighted
from poot_executor.encodings.types import WeightSource
from poot_executor.errors import GraphError
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.kernels.kernel import Operand, Operands, WeightForm
from poot_executor.kernels.select import Choice
from poot_executor.memory.plan import placements
from poot_executor.runtime.compile import Compiled, CompiledEntry, state_class
from poot_executor.runtime.entry import Entry, EntrySet

Progress = Callable[[str, int, int], None]


def prepare(
    device: Device,
    compiled: Compiled,
    weights: Mapping[str, WeightSource],
    progress: Progress = lambda phase, done, total: None,
) -> EntrySet:
    """Make every entry ready to run.

    `progress(phase, done, total)` is called with phases "weights" (bytes) and "entries" (entries). Raises GraphError
    for a weight that the checkpoint lacks or that has another shape, CapacityError when the device runs out.
    """
    _check_weights(compiled, weights)
    if isinstance(device, Foresighted):
        device.foresee(choice for entry in compiled.entries.values() for choice in entry.choices if choice is not None)
    held = _hold_weights(device, compiled.forms, weights, progress)
    states = {name: _allocate_state(device, name, type_) for name, type_ in compiled.states.items()}
    arena = device.allocate("arena", max(compiled.arena, device.alignment))
    entries, recorded = {}, set[Hashable]()
    for index, (key, compiled_entry) in enumerate(compiled.entries.items()):
        entries[key] = _Binder(device, compiled_entry, held, states, arena).entry(recorded)
        progress("entries", index + 1, len(compiled.entries))
    device.synchronize()
    return EntrySet(device, compiled, entries, states)


def _check_weights(compiled: Compiled, weights: Mapping[str, WeightSource]) -> None:
    for entry in compiled.entries.values():
        for value in entry.graph.of_role(Role.WEIGHT):
            source = weights.get(value.name)
            if source is None:
                raise GraphError(f"the graph {entry.key} wants weight {value.name}, which the checkpoint does not have")
            if source.shape != value.type.shape or source.encoding != value.encoding:
                raise GraphError(
                    f"weight {value.name} is {source.shape} {source.encoding}; the graph {entry.key} wants "
                    f"{value.type.shape} {value.encoding}"
                )


def _hold_weights(
    device: Device, forms: tuple[WeightForm, ...], weights: Mapping[str, WeightSource], progress: Progress
) -> dict[WeightForm, Any]:
    total, done, held = sum(form.nbytes for form in forms), 0, {}
    for form in forms:
        held[form] = device.hold(form, [weights[name] for name in form.names])
        done += form.nbytes
        progress("weights", done, total)
    return held


def _allocate_state(device: Device, name: str, type_: TensorType) -> Allocation:
    """Zeros, but for KV pools: those are large, and no slot is read before it is written."""
    kind, nbytes = state_class(name), type_.elements * type_.dtype.size
    allocation = device.allocate(kind, nbytes)
    if kind != "kv":
        device.write(allocation, 0, np.zeros(nbytes, np.uint8))
    return allocation


class _Binder:
    """Gives every value of one entry its storage and binds the entry's kernels."""

    def __init__(
        self,
        device: Device,
        entry: CompiledEntry,
        held: Mapping[WeightForm, Any],
        states: Mapping[str, Allocation],
        arena: Allocation,
    ) -> None:
        self._device, self._entry, self._held, self._states, self._arena = device, entry, held, states, arena
        self._where = placements(entry.graph)
        self._staged: dict[int, Allocation] = {}

    def entry(self, recorded: set[Hashable]) -> Entry:
        """`recorded` are the likenesses of the launches of earlier entries; those of this one's are added."""
        graph, device = self._entry.graph, self._device
        for value in graph.values:
            if value.role in (Role.INPUT, Role.OUTPUT):
                self._staged[value.id] = device.allocate("staging", value.type.nbytes(device.activation))
        launches, fresh = [], []
        for index, (node, choice) in enumerate(zip(graph.nodes, self._entry.choices, strict=True)):
            if choice is None:
                continue
            operands = Operands(
                tuple(None if graph.values[i].role is Role.WEIGHT else self._operand(i) for i in node.inputs),
                tuple(self._operand(i) for i in node.outputs),
                tuple(self._held[form] for form in choice.kernel.forms(choice.site)),
                self._workspace(index, choice.kernel.workspace(choice.site)),
            )
            launches.append(choice.kernel.bind(choice.site, operands, device))
            likeness = self._likeness(choice, operands)
            fresh.append(likeness not in recorded)
            recorded.add(likeness)
        inputs = {graph.values[i].name: self._operand(i) for i in graph.inputs}
        outputs = {graph.values[i].name: self._operand(i) for i in graph.outputs}
        return Entry(device, self._entry, device.record(launches, fresh), inputs, outputs)

    def _likeness(self, choice: Choice, operands: Operands) -> Hashable:
        """All that a launch is told, but for where its operands and weights lie, as far as they lie alike."""
        site, alignment = choice.site, self._device.alignment
        places = (operand for operand in (*operands.inputs, *operands.outputs) if operand is not None)
        return (
            *(choice.kernel, site.op, site.inputs, site.outputs, site.encodings),
            tuple((operand.strides, operand.offset % alignment) for operand in places),
        )

    def _operand(self, value_id: int) -> Operand:
        graph, where = self._entry.graph, self._where[value_id]
        value, root = graph.values[value_id], graph.values[where.root]
        type_ = value.type.resolve(self._device.activation)
        offset = where.offset * type_.dtype.size
        if root.id in self._staged:
            return Operand(type_, self._staged[root.id], offset, where.strides)
        if root.role is Role.STATE:
            return Operand(type_, self._states[str(root.state)], offset, where.strides)
        return Operand(type_, self._arena, self._entry.arena.offsets[root.id] + offset, where.strides)

    def _workspace(self, index: int, nbytes: int) -> Operand | None:
        if not nbytes:
            return None
        return Operand(TensorType((nbytes,), DType.U8), self._arena, self._entry.arena.workspaces[index], (1,))
