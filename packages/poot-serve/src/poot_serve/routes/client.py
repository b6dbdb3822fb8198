"""Watching the client while its answer is made: ASGI's `send` does not fail once the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from starlette.types import Receive

from poot_batch.process.interface import RequestStream
from poot_serve.limits.deadlines import Deadlines


class Presence:
    """Whether the client has left, and whether its request waited too long for the engine.

    A block of it cancels `streams` when the client is seen to have left, when the engine has opened none of them in
    `queue_seconds`, and in any case at its end. It calls `tick` each `every` seconds. The watch begins when `watches`
    say that the block has lasted for long: for a short answer, it would cost as much as all else.
    """

    def __init__(
        self,
        watches: Deadlines[Presence],
        receive: Receive,
        streams: Sequence[RequestStream],
        queue_seconds: float,
        *,
        every: float | None = None,
        tick: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.gone = self.expired = False
        self._watches, self._receive, self._streams, self._queue_seconds = watches, receive, streams, queue_seconds
        self._every, self._tick = every, tick
        self._expiry: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        self._watches.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._watches.remove(self)
        self._cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._tasks:
            task.cancel()

    def late(self) -> None:
        """The watch begins."""
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(max(0.0, self._queue_seconds - self._watches.seconds), self._expire)
        self._tasks.append(loop.create_task(self._until_gone()))
        if self._tick is not None and self._every is not None:
            self._tasks.append(loop.create_task(self._ticking(self._tick, self._every)))

    def _cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()

    def _expire(self) -> None:
        if not any(stream.opened for stream in self._streams):
            self.expired = True
            self._cancel()

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self._cancel()

    async def _ticking(self, tick: Callable[[], Awaitable[None]], every: float) -> None:
        while True:
            await asyncio.sleep(every)
            await tick()
