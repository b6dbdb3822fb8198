"""A GPU that torch drives, CUDA's or HIP's: entries are graphs that share one memory pool.

All work goes to the default stream. torch gives both kinds of device the same names (`torch.cuda`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton

from poot_executor import __version__
from poot_executor.backends.triton.choices import Choices
from poot_executor.backends.triton.device import TritonDevice, device_bytes
from poot_executor.backends.triton.failure import failure
from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.backends.triton.recording import GraphRecording, capture
from poot_executor.backends.triton.stopwatch import OWN, Bind, DeviceClock, Lead, Stopwatch
from poot_executor.backends.triton.upload import PinnedLane, Uploader
from poot_executor.backends.triton.weights import pieces
from poot_executor.devices.private_folder import private_folder
from poot_executor.devices.protocol import Allocation, Launch
from poot_executor.encodings.types import WeightSource
from poot_executor.ir.types import DType

_MIB = 2**20
# Staging slots: more than the copies that steps in flight can have under way.
_SLOTS = 64
_SLOT_BYTES = 64 * 2**10
# Threads that read a checkpoint's pages; more than these no longer read faster.
_UPLOAD_THREADS = 8


class _Ring:
    """Pinned host slots, each with the event after which it may be used again."""

    def __init__(self) -> None:
        self._memory = torch.empty(_SLOTS, _SLOT_BYTES, dtype=torch.uint8, pin_memory=True)
        self._events = [torch.cuda.Event() for _ in range(_SLOTS)]  # type: ignore[no-untyped-call]
        self._next = 0

    def take(self, nbytes: int) -> tuple[torch.Tensor, torch.cuda.Event]:
        slot, self._next = self._next, (self._next + 1) % _SLOTS
        self._events[slot].synchronize()
        return self._memory[slot, :nbytes], self._events[slot]


class PinnedFetch:
    """A copy to a pinned slot. The slot is good until as many fetches later as there are slots."""

    def __init__(self, slot: torch.Tensor, event: torch.cuda.Event) -> None:
        self._slot, self._event = slot, event

    def result(self) -> npt.NDArray[np.uint8]:
        try:
            self._event.synchronize()
        except RuntimeError as error:
            raise failure(error) from error
        data: npt.NDArray[np.uint8] = self._slot.numpy().copy()
        return data


class GraphDevice(TritonDevice):
    """See `poot_executor.devices.protocol.Device`. Activations are bfloat16.

    `side` is the stream on which entries are recorded; weights come over another, while that goes on.
    """

    depth = 2
    own_memory = True

    def __init__(self, name: str) -> None:
        """Over torch's current device. `name` is for people."""
        index = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(index)
        # Compiled kernels are loaded and run: they are kept where nobody else can write.
        triton.knobs.cache.dir = str(private_folder("triton"))
        super().__init__(f"cuda:{index}", name, DType.BF16)
        self.processors = properties.multi_processor_count
        self.programs = 2 * self.processors
        self.shared = shared_bytes(properties)
        self.pool = torch.cuda.graph_pool_handle()
        self.side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        copies = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._uploads = Uploader(lambda: PinnedLane(copies), min(_UPLOAD_THREADS, os.cpu_count() or 1))
        self._up, self._down = _Ring(), _Ring()
        clock = DeviceClock(self.side, properties.L2_cache_size, self._finish_uploads)
        self._stopwatch = Stopwatch(clock, Choices(self.made_of))
        # A graph that is never replayed: the pool goes when its last graph does, and could not be used again.
        self._anchor = capture(self.side, self.pool, [lambda: self.live.add_(0)])

    def capacity(self) -> int:
        """Free bytes, less a reserve for what is no allocation of a plan.

        1 GiB, or a fiftieth of the memory if that is more: code of kernels, workspaces of libraries, nodes of graphs
        (class "recordings" of the account, measured), decoding of weights at upload, noise on which ways are timed, and
        rounding by torch's allocator.
        """
        free, total = torch.cuda.mem_get_info()
        return max(0, free - max(1024 * _MIB, total // 50))

    def fastest(self, site: object, ways: Mapping[str, Bind], lead: Lead = OWN) -> str:
        return self._stopwatch.fastest(site, ways, lead)

    def beside(self) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(self.side)

    def known(self, site: object) -> str | None:
        """What `fastest` has said of a site, in this process or an earlier one."""
        return self._stopwatch.known(site)

    def settled(self, site: object) -> str | None:
        """What is known of a site, once it has been timed or run in this process."""
        return self._stopwatch.settled(site)

    def settle(self, site: object) -> None:
        """What is known of a site has been run."""
        self._stopwatch.settle(site)

    def made_of(self) -> tuple[str, ...]:
        """What the speed of kernels and of libraries depends on: the device and all releases."""
        toolkit = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        ours, theirs = f"poot-executor {__version__}", f"torch {torch.__version__}"
        return self.name, ours, theirs, toolkit, f"triton {triton.__version__}"

    def driver_bytes(self) -> int:
        """See `poot_executor.devices.protocol.Metered`. What other programs hold is in it."""
        free, total = torch.cuda.mem_get_info()
        return total - free

    def write(self, allocation: Allocation, offset: int, data: npt.NDArray[Any]) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        target = device_bytes(allocation, offset, raw.size)
        try:
            if raw.size > _SLOT_BYTES:
                target.copy_(torch.from_numpy(raw))
                return
            slot, event = self._up.take(raw.size)
            slot.numpy()[:] = raw
            target.copy_(slot, non_blocking=True)
            event.record()
        except RuntimeError as error:
            raise failure(error) from error

    def fetch(self, allocation: Allocation, offset: int, nbytes: int) -> Any:
        try:
            if nbytes > _SLOT_BYTES:
                return super().fetch(allocation, offset, nbytes)
            slot, event = self._down.take(nbytes)
            slot.copy_(device_bytes(allocation, offset, nbytes), non_blocking=True)
            event.record()
        except RuntimeError as error:
            raise failure(error) from error
        return PinnedFetch(slot, event)

    def record(self, launches: Sequence[Launch], fresh: Sequence[bool]) -> GraphRecording:
        live, self.live = self.live, self._live_buffer()
        try:
            before, _ = torch.cuda.mem_get_info()
            recording = GraphRecording(self, launches, fresh, TorchAllocation(live.view(torch.uint8)))
            after, _ = torch.cuda.mem_get_info()
        except RuntimeError as error:
            raise failure(error) from error
        self.account.add("recordings", max(0, before - after))
        return recording

    def synchronize(self) -> None:
        self._finish_uploads()
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise failure(error) from error

    def close(self) -> None:
        # Of a device that failed there is nothing to wait for.
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()

    def _fill(self, held: Any, sources: Sequence[WeightSource]) -> None:
        self._uploads.put(pieces(held, sources))

    def _finish_uploads(self) -> None:
        try:
            self._uploads.finish()
        except RuntimeError as error:
            raise failure(error) from error


def shared_bytes(properties: Any) -> int:
    """Shared memory that a program may have. Not every build of torch knows how much more it may ask for."""
    plain = int(properties.shared_memory_per_block)
    return max(plain, int(getattr(properties, "shared_memory_per_block_optin", plain)))
