"""One text/event-stream response: starts with its first event, and is kept alive by comments."""

from __future__ import annotations

import asyncio
import time
from collections import deque

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

    A client that takes longer than `write_seconds` over one write counts as gone: ClientGoneError. `release` gives
    the clock of that back.
    """

    def __init__(self, send: Send, keep_alive_seconds: float, write_seconds: float) -> None:
        self._put = send
        self._quiet = keep_alive_seconds
        self._patience = write_seconds
        # A lock of its own, which costs nothing while there is one writer.
        self._busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._written = time.monotonic()
        # One clock watches all writes: a timeout for each would cost more than the write itself.
        self._clock: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[object] | None = None
        self._cut = False
        self.started = False

    def _look(self) -> None:
        """Cancels the write that is running if it began too long ago."""
        self._clock = None
        if self._writer is None:
            return
        left = self._written + self._patience - time.monotonic()
        if left > 0:
            self._clock = asyncio.get_running_loop().call_later(left, self._look)
        else:
            self._cut = True
            self._writer.cancel()

    def release(self) -> None:
        """To be called when nothing will be written any more."""
        if self._clock is not None:
            self._clock.cancel()

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Every event of every stream goes through here."""
        while self._busy:
            await self._turn()
        self._busy = True
        try:
            self._writer = writer = asyncio.current_task()
            self._written = time.monotonic()
            if self._clock is None:
                self._clock = asyncio.get_running_loop().call_later(self._patience, self._look)
            if not self.started:
                self.started = True
                await self._put({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._put({"type": "http.response.body", "body": data, "more_body": not last})
        except asyncio.CancelledError:
            if self._cut and (writer is None or writer.uncancel() == 0):
                raise ClientGoneError(f"the client did not read for {self._patience:g} seconds") from None
            raise
        finally:
            self._busy, self._writer = False, None
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
