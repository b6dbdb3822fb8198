"""Watching the client while its answer is made: ASGI's `send` does not fail once the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.types import Receive

from poot_batch.process.interface import RequestStream
from poot_serve.errors import ClientGoneError


class Presence:
    """Whether the client has left."""

    def __init__(self) -> None:
        self.gone = False


@asynccontextmanager
async def present(
    receive: Receive,
    streams: Sequence[RequestStream],
    *,
    every: float | None = None,
    tick: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[Presence]:
    """Cancels `streams` as soon as the client leaves, and in any case at the end; calls `tick` each `every` seconds."""
    presence = Presence()

    def cancel() -> None:
        for stream in streams:
            stream.cancel()

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        presence.gone = True
        cancel()

    async def ticking() -> None:
        while every is not None and tick is not None:
            await asyncio.sleep(every)
            try:
                await tick()
            except ClientGoneError:
                presence.gone = True
                cancel()
                return

    tasks = [asyncio.create_task(until_gone())]
    if tick is not None:
        tasks.append(asyncio.create_task(ticking()))
    try:
        yield presence
    finally:
        cancel()
        for task in tasks:
            task.cancel()
