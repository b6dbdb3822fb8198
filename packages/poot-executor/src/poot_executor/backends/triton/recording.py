"""Entries as graphs of CUDA or HIP."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from poot_executor.backends.triton.failure import failure
from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.devices.protocol import Launch, Live

if TYPE_CHECKING:
    from poot_executor.backends.triton.graphs import GraphDevice


class GraphRecording:
    """A graph. Its live counts are sent only when they change."""

    def __init__(
        self, device: GraphDevice, launches: Sequence[Launch], fresh: Sequence[bool], live: TorchAllocation
    ) -> None:
        self._device, self._live, self._last = device, live, Live()
        # Kept: they own tensors whose addresses the graph has recorded.
        self._calls = [launch(Live()) for launch in launches]
        first = [call for call, is_fresh in zip(self._calls, fresh, strict=True) if is_fresh]
        try:
            self._graph = capture(device.side, device.pool, self._calls, first)
        except RuntimeError:
            # Likeness is judged by what kernels are told; one of them may go by something else.
            self._graph = capture(device.side, device.pool, self._calls, self._calls)

    def replay(self, live: Live) -> None:
        if live != self._last:
            self._device.write(self._live, 0, np.array(live, dtype=np.int32))
            self._last = live
        try:
            self._graph.replay()
        except RuntimeError as error:
            raise failure(error) from error


def capture(
    side: torch.cuda.Stream,
    pool: Any,
    calls: Sequence[Callable[[], object]],
    first: Sequence[Callable[[], object]] = (),
) -> torch.cuda.CUDAGraph:
    """Record the calls on the stream `side`.

    Not by `torch.cuda.graph`: that empties torch's caches each time, and forbids what the threads of an upload do
    meanwhile. `first` are called before, with no live row, so that kernels are compiled and libraries get their
    workspaces.
    """
    graph = torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in first:
            call()
        if first:
            side.synchronize()
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            for call in calls:
                call()
        except BaseException:
            # What is captured is thrown away; the stream must not stay in that state.
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    return graph
