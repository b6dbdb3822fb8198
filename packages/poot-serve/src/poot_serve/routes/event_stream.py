"""One text/event-stream response: starts with its first event, and is kept alive by comments."""

from __future__ import annotations

import asyncio
import time

from starlette.types import Message, Send

from poot_serve.emit.sse import KEEP_ALIVE
from poot_serve.errors import ClientGoneError

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """Writes whole events, one write at a time; a slow client makes `write` wait.

    A client that takes longer than `write_seconds` over one write counts as gone: ClientGoneError.
    """

    def __init__(self, send: Send, keep_alive_seconds: float, write_seconds: float) -> None:
        self._put = send
        self._quiet = keep_alive_seconds
        self._patience = write_seconds
        self._writing = asyncio.Lock()
        self._written = time.monotonic()
        self.started = False

    async def _send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._put(message)
        except TimeoutError:
            raise ClientGoneError(f"the client did not read for {self._patience:g} seconds") from None

    async def write(self, data: bytes) -> None:
        async with self._writing:
            if not self.started:
                self.started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._written = time.monotonic()

    async def keep_alive(self) -> None:
        """Writes a comment if nothing else was written for a while and nothing is being written."""
        if not self._writing.locked() and time.monotonic() - self._written >= self._quiet / 2:
            await self.write(KEEP_ALIVE)

    async def close(self) -> None:
        async with self._writing:
            if self.started:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
