"""The CPU as a device: one stream (the calling thread), nothing recorded, live work only."""

from __future__ import annotations

import platform
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from poot_executor.backends.cpu.kernels import CPU_KERNELS
from poot_executor.backends.cpu.memory import HostAllocation, allocate, available, reserve
from poot_executor.backends.cpu.native import load_library
from poot_executor.backends.cpu.weights import hold
from poot_executor.devices.fetch import HostFetch
from poot_executor.devices.protocol import Allocation, Launch, Live
from poot_executor.encodings.types import WeightSource
from poot_executor.errors import CapacityError
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import WeightForm
from poot_executor.memory.account import Account, MemoryClass

# Bound programs kept for recent live counts: a decode loop needs a few, a stream of prompts many that come once.
_KEPT_PROGRAMS = 24


class HostLoop:
    """The launches of an entry, made concrete for a step's live counts on first use and kept while they recur."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._launches = tuple(launches)
        self._programs: OrderedDict[Live, list[Callable[[], object]]] = OrderedDict()

    def replay(self, live: Live) -> None:
        program = self._programs.get(live)
        if program is None:
            program = [launch(live) for launch in self._launches]
            self._programs[live] = program
            if len(self._programs) > _KEPT_PROGRAMS:
                self._programs.popitem(last=False)
        else:
            self._programs.move_to_end(live)
        with torch.inference_mode():
            for run in program:
                run()


class CpuDevice:
    """See `poot_executor.devices.protocol.Device`. Work is done when `replay` returns."""

    backend = "cpu"
    activation = DType.F32
    alignment = 64
    records = False
    depth = 1
    own_memory = False

    def __init__(self, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        library = load_library()
        if not isinstance(library, str):
            library.start_threads(torch.get_num_threads())
        self.name = f"{platform.machine()}, {torch.get_num_threads()} threads"
        self.account = Account()
        self.kernels = CPU_KERNELS
        # Attention plans as Python objects, by allocation and offset of their buffers.
        self.plans: dict[tuple[int, int], Any] = {}

    def tile(self, tokens: int, share: int) -> int:
        return 128

    def splits(self, tokens: int, width: int) -> int:
        return 1

    def capacity(self) -> int:
        free = available()
        return max(0, free - reserve(free))

    def allocate(self, kind: MemoryClass, nbytes: int) -> HostAllocation:
        try:
            allocation = allocate(nbytes, self.alignment)
        except (RuntimeError, MemoryError) as error:
            raise CapacityError(f"the host has no {nbytes} bytes for {kind}", shortfall=nbytes) from error
        self.account.add(kind, nbytes)
        return allocation

    def hold(self, form: WeightForm, sources: Sequence[WeightSource]) -> Any:
        try:
            held = hold(form, sources)
        except (RuntimeError, MemoryError) as error:
            message = f"the host has no {form.nbytes} bytes for weights {', '.join(form.names)}"
            raise CapacityError(message, shortfall=form.nbytes) from error
        self.account.add("weights", form.nbytes)
        return held

    def write(self, allocation: Allocation, offset: int, data: npt.NDArray[Any]) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        _bytes_of(allocation, offset, raw.size)[:] = raw

    def fetch(self, allocation: Allocation, offset: int, nbytes: int) -> HostFetch:
        return HostFetch(_bytes_of(allocation, offset, nbytes).copy())

    def record(self, launches: Sequence[Launch], fresh: Sequence[bool]) -> HostLoop:
        return HostLoop(launches)

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Memory goes with the last reference to the entries."""


def _bytes_of(allocation: Allocation, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
    if not isinstance(allocation, HostAllocation):
        raise TypeError("not an allocation of this device")
    return allocation.tensor[offset : offset + nbytes].numpy()


class CpuBackend:
    name = "cpu"

    def describe(self) -> tuple[str, ...]:
        library, capability = load_library(), torch.backends.cpu.get_cpu_capability()
        native = f"no kernels in C: {library}" if isinstance(library, str) else "kernels in C"
        machine = platform.processor() or platform.machine()
        return (f"{machine}, {torch.get_num_threads()} threads, {capability}, {native}",)

    def open(self, *, threads: int | None = None) -> CpuDevice:
        return CpuDevice(threads)


BACKEND = CpuBackend()
