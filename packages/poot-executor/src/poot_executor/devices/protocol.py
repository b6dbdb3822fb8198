"""The seam between the runtime and a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from poot_executor.ir.types import DType
from poot_executor.memory.account import Account, MemoryClass

if TYPE_CHECKING:
    import numpy as np

    from poot_executor.encodings.types import WeightSource
    from poot_executor.kernels.kernel import KernelTable, WeightForm
    from poot_executor.kernels.select import Choice


class Live(NamedTuple):
    """Live counts of one step: flat tokens, runs, and rows that sample."""

    tokens: int = 0
    runs: int = 0
    rows: int = 0


class Allocation(Protocol):
    """A piece of device memory. What it is belongs to the device; `nbytes` is its size."""

    @property
    def nbytes(self) -> int: ...


# A bound kernel: given live counts, the call that enqueues it. A recording device makes that call once, a host loop
# each step. What the call returns is dropped.
Launch = Callable[[Live], Callable[[], object]]


class Fetch(Protocol):
    """A copy to the host that is under way."""

    def result(self) -> np.ndarray[Any, Any]:
        """Wait for the copy; its bytes (uint8). Raises DeviceError if the work before it failed."""


class Recording(Protocol):
    """A prepared sequence of launches: a CUDA graph, a command buffer, or a Python loop."""

    def replay(self, live: Live) -> None:
        """Enqueue one run. `live` bounds the work on devices that do not read the counts from device memory."""


class Device(Protocol):
    """An opened device. All of its work is ordered on one compute stream.

    `records` says whether `record` makes recordings that run their whole capacity, `depth` how many steps may be in
    flight, `own_memory` whether its memory is there for this
    work alone, so that what is left of it may be filled with what might be useful.
    """

    backend: str
    name: str
    activation: DType
    alignment: int
    records: bool
    depth: int
    own_memory: bool
    account: Account
    kernels: KernelTable

    def tile(self, tokens: int, share: int) -> int:
        """Queries that an attention item should have in a step of this capacity, `share` heads having one KV head."""

    def splits(self, tokens: int, width: int) -> int:
        """Into how many items an attention plan may cut a row's keys, in a step of this capacity, heads so wide."""

    def capacity(self) -> int:
        """Bytes free for a plan now, the device's own reserve already taken off."""

    def allocate(self, kind: MemoryClass, nbytes: int) -> Allocation:
        """Memory that lives until `close`. Raises CapacityError."""

    def hold(self, form: WeightForm, sources: Sequence[WeightSource]) -> Any:
        """Put weights on the device in a kernel's form; the device's own handle. Called once for each form.

        The copy may still be under way at return: the handle is there, its contents only after `synchronize`.
        """

    def write(self, allocation: Allocation, offset: int, data: np.ndarray[Any, Any]) -> None:
        """Copy host bytes to the device, ordered on the compute stream. The host array may be reused at return."""

    def fetch(self, allocation: Allocation, offset: int, nbytes: int) -> Fetch:
        """Enqueue a copy of device bytes to the host, ordered on the compute stream: later work may overwrite them."""

    def record(self, launches: Sequence[Launch], fresh: Sequence[bool]) -> Recording:
        """Make one recording of bound launches.

        `fresh`: of each launch, whether none like it, which does the same elsewhere in memory, has been recorded yet. A
        device whose kernels have to run once before they can be recorded runs those.
        """

    def synchronize(self) -> None:
        """Wait until all enqueued work is done. Raises DeviceError if any of it failed."""

    def close(self) -> None: ...


@runtime_checkable
class Foresighted(Protocol):
    """A device that makes its kernels when they are bound, and can begin with that before."""

    def foresee(self, choices: Iterable[Choice]) -> None:
        """These will be bound. What takes long to make is made while weights come, several at once."""


@runtime_checkable
class Metered(Protocol):
    """A device whose driver keeps a figure of its own, beside the account of what the executor allocated."""

    def driver_bytes(self) -> int:
        """Bytes that the device's memory has less than when it was opened: context and libraries are among them.

        What other programs have taken or given back since then is too.
        """


class Backend(Protocol):
    """A way to open devices. `open` raises BackendUnavailableError with the reason when it cannot."""

    name: str

    def describe(self) -> tuple[str, ...]:
        """Names of the devices it would open. Raises BackendUnavailableError."""

    def open(self, *, threads: int | None = None) -> Device: ...
