"""Prepared entries: stage inputs, run, read outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from poot_executor.devices.protocol import Allocation, Device, Fetch, Live, Recording
from poot_executor.errors import GraphError
from poot_executor.ir.types import DType, TensorType
from poot_executor.kernels.kernel import Operand
from poot_executor.runtime.compile import Compiled, CompiledEntry, EntryKey

Array = npt.NDArray[Any]

# bfloat16 has no numpy type: it is read as its bits.
NUMPY_TYPES: dict[DType, npt.DTypeLike] = {
    DType.F32: np.float32,
    DType.F16: np.float16,
    DType.BF16: np.uint16,
    DType.I32: np.int32,
    DType.U8: np.uint8,
}


@dataclass(frozen=True, slots=True)
class Pending:
    """An array on its way to the host."""

    fetch: Fetch
    shape: tuple[int, ...]
    dtype: npt.DTypeLike

    def result(self) -> Array:
        """Wait for it. Raises DeviceError if the work before it failed."""
        return self.fetch.result().view(self.dtype).reshape(self.shape)


class Entry:
    """One recorded graph with its staging buffers."""

    def __init__(
        self,
        device: Device,
        compiled: CompiledEntry,
        recording: Recording,
        inputs: Mapping[str, Operand],
        outputs: Mapping[str, Operand],
    ) -> None:
        self.key = compiled.key
        self.compiled = compiled
        self._device, self._recording = device, recording
        self._inputs, self._outputs = inputs, outputs
        self._most = compiled.live_capacity

    def stage(self, name: str, data: Array) -> None:
        """Copy the leading elements of input `name` to the device; `data` may be shorter than the input.

        Raises GraphError for an unknown name, another element type or too many elements.
        """
        operand = self._named(self._inputs, "input", name)
        if data.dtype != NUMPY_TYPES[operand.type.dtype] or data.size > operand.type.elements:
            raise GraphError(f"input {name} of {self.key} is {operand.type}, not {data.dtype}[{data.size}]")
        self._device.write(operand.allocation, operand.offset, data)

    def run(self, live: Live) -> None:
        """Enqueue one run. Raises GraphError for counts that the entry was not prepared for."""
        tokens, runs, rows = live
        most = self._most
        if not (0 <= tokens <= most.tokens and 0 <= runs <= most.runs and 0 <= rows <= most.rows):
            raise GraphError(f"{self.key} runs at most {most}, not {live}")
        self._recording.replay(live)

    def fetch(self, name: str, rows: int | None = None) -> Pending:
        """Enqueue a copy of the leading `rows` (default all) of output `name`: a later run may overwrite it."""
        operand = self._named(self._outputs, "output", name)
        return _fetch(self._device, operand.allocation, operand.offset, operand.type, rows)

    def read(self, name: str, rows: int | None = None) -> Array:
        """`fetch`, waited for."""
        return self.fetch(name, rows).result()

    def _named(self, operands: Mapping[str, Operand], kind: str, name: str) -> Operand:
        operand = operands.get(name)
        if operand is None:
            raise GraphError(f"{self.key} has no {kind} {name!r}; it has {', '.join(operands) or 'none'}")
        return operand


class EntrySet:
    """Every entry of one model on one device, and the states that they share."""

    def __init__(
        self, device: Device, compiled: Compiled, entries: Mapping[EntryKey, Entry], states: Mapping[str, Allocation]
    ) -> None:
        self.device, self.compiled = device, compiled
        self._entries, self._states = entries, states

    def __getitem__(self, key: EntryKey) -> Entry:
        return self._entries[key]

    def keys(self) -> tuple[EntryKey, ...]:
        return tuple(self._entries)

    def read_state(self, name: str, rows: int | None = None) -> Array:
        """Wait, then copy the leading `rows` of a state to the host (full logits leave the device only this way)."""
        type_ = self._state(name)
        return _fetch(self.device, self._states[name], 0, type_, rows).result()

    def mark(self) -> Pending:
        """To wait for what is enqueued so far, and for nothing later: a copy of no rows."""
        name = next(iter(self._states))
        return _fetch(self.device, self._states[name], 0, self._state(name), 0)

    def write_state(self, name: str, data: Array) -> None:
        """Overwrite the leading elements of a state."""
        type_ = self._state(name)
        if data.dtype != NUMPY_TYPES[type_.dtype] or data.size > type_.elements:
            raise GraphError(f"state {name} is {type_}, not {data.dtype}[{data.size}]")
        self.device.write(self._states[name], 0, data)

    def _state(self, name: str) -> TensorType:
        type_ = self.compiled.states.get(name)
        if type_ is None:
            raise GraphError(f"there is no state {name!r}; there are {', '.join(self.compiled.states) or 'none'}")
        return type_


def _fetch(device: Device, allocation: Allocation, offset: int, type_: TensorType, rows: int | None) -> Pending:
    shape = type_.shape if rows is None else (rows, *type_.shape[1:])
    if not 0 <= shape[0] <= type_.shape[0]:
        raise GraphError(f"{type_} has no {shape[0]} rows")
    nbytes = prod(shape) * type_.dtype.size
    return Pending(device.fetch(allocation, offset, nbytes), shape, NUMPY_TYPES[type_.dtype])
