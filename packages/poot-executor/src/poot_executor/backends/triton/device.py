"""A device that runs Triton kernels on torch memory; CUDA and ROCm add how it is opened and recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from poot_executor.backends.triton.kernels import FEW_ROWS_KERNELS, TRITON_KERNELS
from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.backends.triton.kernels.kernel import TORCH_TYPES, UNBOUNDED
from poot_executor.backends.triton.kernels.plan import most_splits, queries
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.backends.triton.packed import Segment
from poot_executor.backends.triton.stopwatch import OWN, Bind, Lead
from poot_executor.backends.triton.weights import fill, room
from poot_executor.devices.fetch import HostFetch
from poot_executor.devices.protocol import Allocation, Launch, Live
from poot_executor.encodings.types import WeightSource
from poot_executor.errors import CapacityError
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import WeightForm
from poot_executor.memory.account import Account, MemoryClass


class EagerLoop:
    """Launches made anew each time: what a recording is where nothing can be recorded."""

    def __init__(self, device: TritonDevice, launches: Sequence[Launch], live: torch.Tensor) -> None:
        self._device, self._live = device, live
        self._calls = [launch(Live()) for launch in launches]

    def replay(self, live: Live) -> None:
        self._live[:3] = torch.tensor(live, dtype=torch.int32)
        for call in self._calls:
            call()


class TritonDevice:
    """See `poot_executor.devices.protocol.Device`. As it stands it is eager and synchronous, over any torch device.

    `live` is the buffer of live counts that kernels bound now will read; `record` gives it to the recording.
    """

    backend = "triton"
    alignment = 256
    records = True
    depth = 1
    own_memory = False
    programs = 4  # persistent programs of a kernel
    processors = 16
    shared = 227 * 1024  # bytes of shared memory that a program may have
    ahead = True  # whether loops may have their next loads under way
    dp4a = False  # whether there is an integer dot product of four bytes, by NVIDIA's name
    pdl = False  # whether kernels wait for the one before themselves (programmatic dependent launch)

    def __init__(self, torch_device: str, name: str, activation: DType) -> None:
        self.name, self.activation = name, activation
        self.torch_device = torch_device
        self.account = Account()
        self.kernels = TRITON_KERNELS.preferring(FEW_ROWS_KERNELS)
        self.live = self._live_buffer()

    @property
    def launch(self) -> dict[str, Any]:
        """Arguments of every kernel launch: the kernels' own constant, and the options that go with it.

        Products and sums may be fused, as torch's own kernels are compiled; left unsaid, that depends on the release.
        """
        options = {"PDL": self.pdl, "enable_fp_fusion": True}
        return {**options, "launch_pdl": True} if self.pdl else options

    def capacity(self) -> int:
        return 2**34

    def allocate(self, kind: MemoryClass, nbytes: int) -> TorchAllocation:
        try:
            tensor = torch.zeros(nbytes, dtype=torch.uint8, device=self.torch_device)
        except (RuntimeError, MemoryError) as error:
            raise CapacityError(f"{self.name} has no {nbytes} bytes for {kind}", shortfall=nbytes) from error
        self.account.add(kind, nbytes)
        return TorchAllocation(tensor)

    def hold(self, form: WeightForm, sources: Sequence[WeightSource]) -> Any:
        try:
            held = room(form, sources, TORCH_TYPES[self.activation], self.torch_device)
            self._fill(held, sources)
        except (RuntimeError, MemoryError) as error:
            message = f"{self.name} has no {form.nbytes} bytes for weights {', '.join(form.names)}"
            raise CapacityError(message, shortfall=form.nbytes) from error
        self.account.add("weights", form.nbytes)
        return held

    def write(self, allocation: Allocation, offset: int, data: npt.NDArray[Any]) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        device_bytes(allocation, offset, raw.size).copy_(torch.from_numpy(raw))

    def fetch(self, allocation: Allocation, offset: int, nbytes: int) -> Any:
        return HostFetch(device_bytes(allocation, offset, nbytes).cpu().numpy().copy())

    def tile(self, tokens: int, share: int) -> int:
        return queries(tokens, share)

    def splits(self, tokens: int, width: int) -> int:
        return most_splits(tokens)

    def fastest(self, site: object, ways: Mapping[str, Bind], lead: Lead = OWN) -> str:
        """The name of the way that is the fastest here, of several to do the same; measured once for each site.

        `ways` bind them, which is done only for those that are timed.
        Sites are equal if their reprs are, which must be the same in every process. `lead`: by what another way must
        be faster than the first of them.
        """
        return next(iter(ways))

    def beside(self) -> AbstractContextManager[object]:
        """A block in which torch enqueues its work where ways are timed and entries are recorded."""
        return nullcontext()

    def record(self, launches: Sequence[Launch], fresh: Sequence[bool]) -> Any:
        live, self.live = self.live, self._live_buffer()
        return EagerLoop(self, launches, live)

    def product(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
        """The launch of out = x @ weight by the library: matrices (R, K), (K, N), (R, N), or as many of each."""
        multiply = torch.mm if x.dim() == 2 else torch.bmm
        more = {} if out.dtype == x.dtype else {"out_dtype": out.dtype}
        return partial(multiply, x, weight, **more, out=out)

    def packed_product(
        self, x: torch.Tensor, segment: Segment, around: Around, parts: torch.Tensor
    ) -> Callable[[], object] | None:
        """The launch of a product of x (rows, K) with packed weights by a kernel of the device's own, if it has one.

        `parts`: room for float32 results.
        """
        return None

    def attend_prompt(self, it: Attended) -> Callable[[], object] | None:
        """The launch of a prompt's attention by a kernel of the device's own, if it has one."""
        return None

    def attend_rows(self, it: Attended) -> Callable[[], object] | None:
        """The same of rows that decode."""
        return None

    def synchronize(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Memory goes with the last reference to the entries."""

    def _fill(self, held: Any, sources: Sequence[WeightSource]) -> None:
        """Begin to copy weights; it is done when `synchronize` returns."""
        fill(held, sources)

    def _live_buffer(self) -> torch.Tensor:
        return torch.tensor([0, 0, 0, UNBOUNDED], dtype=torch.int32, device=self.torch_device)


def device_bytes(allocation: Allocation, offset: int, nbytes: int) -> torch.Tensor:
    """A view of bytes of an allocation."""
    if not isinstance(allocation, TorchAllocation):
        raise TypeError("not an allocation of this device")
    return allocation.tensor[offset : offset + nbytes]
