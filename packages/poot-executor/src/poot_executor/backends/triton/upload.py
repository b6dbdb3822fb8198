"""Weights on their way to the device: several host threads fill pinned buffers, one copy stream empties them.

A checkpoint's pages are read faster by several threads than by one, and only pinned memory is copied at the speed of
the bus. Host memory is that of the buffers, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol

import torch

from poot_executor.backends.triton.weights import PIECE_BYTES, Piece


class Lane(Protocol):
    """One buffer between host and device."""

    def carry(self, piece: Piece) -> None:
        """Wait for the buffer, fill it, enqueue its way to the device. The piece's host bytes are read at return."""

    def wait(self) -> None:
        """Wait until what was enqueued is there."""


class PinnedLane:
    """A pinned buffer, with the event after which it may be filled again."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        self._array = self._buffer.numpy()
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def carry(self, piece: Piece) -> None:
        self._event.synchronize()
        count = piece.data.size
        # Both this copy and the wait before it let other threads of Python run.
        self._array[:count] = piece.data
        with torch.cuda.stream(self._stream):
            piece.deliver(self._buffer[:count])
            self._event.record(self._stream)

    def wait(self) -> None:
        self._event.synchronize()


class Uploader:
    """Carries pieces by `threads` threads over two lanes each, so that a thread fills one while the other empties."""

    def __init__(self, lane: Callable[[], Lane], threads: int) -> None:
        self._lane, self._threads = lane, threads
        self._free: SimpleQueue[Lane] = SimpleQueue()
        self._lanes: list[Lane] = []
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: list[Future[None]] = []

    def put(self, pieces: Iterable[Piece]) -> None:
        """Begin to carry these. What they read must stay as it is until `finish` returns."""
        if self._pool is None:
            self._lanes = [self._lane() for _ in range(2 * self._threads)]
            for lane in self._lanes:
                self._free.put(lane)
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="upload")
        self._under_way += [self._pool.submit(_carry, self._free, piece) for piece in pieces]

    def finish(self) -> None:
        """Wait until everything is on the device, and let go of threads and buffers. Raises what went wrong first."""
        if self._pool is None:
            return
        pool, under_way, lanes = self._pool, self._under_way, self._lanes
        self._pool, self._under_way, self._lanes, self._free = None, [], [], SimpleQueue()
        try:
            for future in under_way:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
        for lane in lanes:
            lane.wait()


def _carry(free: SimpleQueue[Lane], piece: Piece) -> None:
    lane = free.get()
    try:
        lane.carry(piece)
    finally:
        free.put(lane)
