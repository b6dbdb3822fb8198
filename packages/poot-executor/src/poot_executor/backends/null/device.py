"""The null device. It accepts every op, holds no bytes and leaves zeros; its capacity and depth are the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from poot_executor.devices.fetch import HostFetch
from poot_executor.devices.protocol import Allocation, Launch, Live
from poot_executor.encodings.types import WeightSource, nbytes
from poot_executor.errors import CapacityError
from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Kernel, KernelTable, Operands, Site, WeightForm
from poot_executor.memory.account import Account, MemoryClass


@dataclass(frozen=True, slots=True)
class NullAllocation:
    nbytes: int


class NullKernel:
    """Stands for any op: weights keep their encoded size."""

    name = "null"

    def accepts(self, site: Site) -> str | None:
        return None

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return tuple(
            WeightForm("encoded", (name,), nbytes(encoding, type_.shape))
            for name, encoding, type_ in zip(site.names, site.encodings, site.inputs, strict=True)
            if name is not None and encoding is not None
        )

    def workspace(self, site: Site) -> int:
        return 0

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        return lambda live: _nothing


def _nothing() -> None:
    """What every launch does."""


_KERNELS = (NullKernel(),)


class NullKernels(KernelTable):
    def of(self, op: type[Op]) -> tuple[Kernel, ...]:
        return _KERNELS


class NullRecording:
    """Counts what it is asked to do."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches, self.replays = len(launches), 0

    def replay(self, live: Live) -> None:
        self.replays += 1


class NullDevice:
    """See `poot_executor.devices.protocol.Device`. `recordings` are those made so far."""

    backend = "null"
    name = "no hardware"
    activation = DType.F32
    alignment = 256
    records = True
    own_memory = False

    def __init__(self, capacity: int = 2**36, depth: int = 2) -> None:
        self.account = Account()
        self.kernels = NullKernels("null")
        self.depth = depth
        self.recordings: list[NullRecording] = []
        self._capacity = capacity

    def tile(self, tokens: int, share: int) -> int:
        return 64

    def splits(self, tokens: int, width: int) -> int:
        return 1

    def capacity(self) -> int:
        return self._capacity - self.account.total

    def allocate(self, kind: MemoryClass, nbytes: int) -> NullAllocation:
        self._take(kind, nbytes)
        return NullAllocation(nbytes)

    def hold(self, form: WeightForm, sources: Sequence[WeightSource]) -> Any:
        self._take("weights", form.nbytes)
        return None

    def write(self, allocation: Allocation, offset: int, data: npt.NDArray[Any]) -> None:
        """Dropped."""

    def fetch(self, allocation: Allocation, offset: int, nbytes: int) -> HostFetch:
        return HostFetch(np.zeros(nbytes, dtype=np.uint8))

    def record(self, launches: Sequence[Launch], fresh: Sequence[bool]) -> NullRecording:
        self.recordings.append(NullRecording(launches))
        return self.recordings[-1]

    def synchronize(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""

    def _take(self, kind: MemoryClass, nbytes: int) -> None:
        short = nbytes - self.capacity()
        if short > 0:
            raise CapacityError(f"the null device has no {nbytes} bytes for {kind}: {short} short", shortfall=short)
        self.account.add(kind, nbytes)


class NullBackend:
    name = "null"

    def describe(self) -> tuple[str, ...]:
        return ("no hardware",)

    def open(self, *, threads: int | None = None) -> NullDevice:
        return NullDevice()


BACKEND = NullBackend()
