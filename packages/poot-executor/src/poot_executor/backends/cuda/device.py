"""A CUDA device. All work goes to the default stream; entries are CUDA graphs that share one memory pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from poot_executor.backends.triton.device import TritonDevice, device_bytes
from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.devices.protocol import Allocation, Launch, Live
from poot_executor.errors import DeviceError
from poot_executor.ir.types import DType

_MIB = 2**20
# Staging slots: more than the copies that steps in flight can have under way.
_SLOTS = 64
_SLOT_BYTES = 64 * 2**10


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


class CudaFetch:
    """A copy to a pinned slot. The slot is good until as many fetches later as there are slots."""

    def __init__(self, slot: torch.Tensor, event: torch.cuda.Event) -> None:
        self._slot, self._event = slot, event

    def result(self) -> npt.NDArray[np.uint8]:
        try:
            self._event.synchronize()
        except RuntimeError as error:
            raise DeviceError(f"the CUDA device failed: {error}") from error
        data: npt.NDArray[np.uint8] = self._slot.numpy().copy()
        return data


class GraphRecording:
    """A CUDA graph. Its live counts are sent only when they change."""

    def __init__(self, device: CudaDevice, launches: Sequence[Launch], live: TorchAllocation) -> None:
        self._device, self._live, self._last = device, live, Live()
        # Kept: they own tensors whose addresses the graph has recorded.
        self._calls = calls = [launch(Live()) for launch in launches]
        # Once outside of the graph, with no live row: kernels are compiled and libraries get their workspaces.
        for call in calls:
            call()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=device.pool):
            for call in calls:
                call()

    def replay(self, live: Live) -> None:
        if live != self._last:
            self._device.write(self._live, 0, np.array(live, dtype=np.int32))
            self._last = live
        try:
            self._graph.replay()
        except RuntimeError as error:
            raise DeviceError(f"the CUDA device failed: {error}") from error


class CudaDevice(TritonDevice):
    """See `poot_executor.devices.protocol.Device`. Activations are bfloat16."""

    backend = "ptx"
    depth = 2

    def __init__(self) -> None:
        index = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(index)
        super().__init__(f"cuda:{index}", properties.name, DType.BF16)
        self.programs = 2 * properties.multi_processor_count
        self.pdl = properties.major >= 9
        self.pool = torch.cuda.graph_pool_handle()
        self._up, self._down = _Ring(), _Ring()
        # A graph that is never replayed: the pool goes when its last graph does, and could not be used again.
        self._anchor = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._anchor, pool=self.pool):
            self.live.add_(0)

    def capacity(self) -> int:
        """Free bytes, less what library workspaces, graphs and fragmentation take."""
        free, total = torch.cuda.mem_get_info()
        return max(0, free - max(1024 * _MIB, total // 50))

    def write(self, allocation: Allocation, offset: int, data: npt.NDArray[Any]) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        target = device_bytes(allocation, offset, raw.size)
        if raw.size > _SLOT_BYTES:
            target.copy_(torch.from_numpy(raw))
            return
        slot, event = self._up.take(raw.size)
        slot.numpy()[:] = raw
        target.copy_(slot, non_blocking=True)
        event.record()

    def fetch(self, allocation: Allocation, offset: int, nbytes: int) -> Any:
        if nbytes > _SLOT_BYTES:
            return super().fetch(allocation, offset, nbytes)
        slot, event = self._down.take(nbytes)
        slot.copy_(device_bytes(allocation, offset, nbytes), non_blocking=True)
        event.record()
        return CudaFetch(slot, event)

    def record(self, launches: Sequence[Launch]) -> GraphRecording:
        live, self.live = self.live, self._live_buffer()
        return GraphRecording(self, launches, TorchAllocation(live.view(torch.uint8)))

    def synchronize(self) -> None:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise DeviceError(f"the CUDA device failed: {error}") from error

    def close(self) -> None:
        torch.cuda.synchronize()
