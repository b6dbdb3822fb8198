"""One text/event-stream response: starts with its first event, and is kept alive by comments."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType
from typing import Self

from starlette.types import Send

from poot_serve.emit.sse import KEEP_ALIVE
from poot_serve.errors import ClientGoneError

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """Writes whole events, one write at a time; a slow client makes `write` wait.

    A block of it, of one task, is all its life. If the client takes longer than `write_seconds` over one write, whoever
    wrote, the block's task is cancelled, and the block raises ClientGoneError. `start` sends the response's start,
    `put` all else.
    """

    def __init__(self, start: Send, put: Send, keep_alive_seconds: float, write_seconds: float) -> None:
        self._start, self._put = start, put
        self._quiet, self._patience = keep_alive_seconds, write_seconds
        # A lock of its own, which costs nothing while there is one writer.
        self._busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._written = time.monotonic()
        self._cut = False
        self.started = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        # One clock watches all writes: a timeout for each would cost more than the write itself.
        self._clock = asyncio.get_running_loop().call_later(self._patience, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock.cancel()
        if self._cut and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise ClientGoneError(f"the client did not read for {self._patience:g} seconds") from None

    def _look(self) -> None:
        """Cuts the write that is running if it began too long ago."""
        left = self._written + self._patience - time.monotonic() if self._busy else self._patience
        if left > 0:
            self._clock = asyncio.get_running_loop().call_later(left, self._look)
        else:
            self._cut = True
            self._task.cancel()

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Every event of every stream goes through here."""
        while self._busy:
            await self._turn()
        self._busy = True
        self._written = time.monotonic()
        try:
            if not self.started:
                self.started = True
                await self._start({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._put({"type": "http.response.body", "body": data, "more_body": not last})
        finally:
            self._busy = False
            if self._waiting:
                self._wake()

    async def _turn(self) -> None:
        """Waits until a write has ended: another may have begun by then."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        try:
            await ended
        except asyncio.CancelledError:
            if ended.done() and not ended.cancelled():
                self._wake()
            raise

    def _wake(self) -> None:
        """The write that has waited longest goes on."""
        while self._waiting:
            if not (ended := self._waiting.popleft()).done():
                ended.set_result(None)
                return

    async def keep_alive(self) -> None:
        """Writes a comment if nothing else was written for a while and nothing is being written."""
        if not self._busy and time.monotonic() - self._written >= self._quiet / 2:
            await self.write(KEEP_ALIVE)

    async def close(self) -> None:
        if self.started:
            await self.write(b"", last=True)
