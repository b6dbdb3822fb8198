"""Watching the client while its answer is made: ASGI's `send` does not fail once the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.types import Receive

from poot_batch.process.interface import RequestStream
from poot_serve.errors import ClientGoneError


class Presence:
    """Whether the client has left, and whether its request waited too long for the engine."""

    def __init__(self) -> None:
        self.gone = False
        self.expired = False


@asynccontextmanager
async def present(
    receive: Receive,
    streams: Sequence[RequestStream],
    queue_seconds: float,
    *,
    every: float | None = None,
    tick: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[Presence]:
    """Cancels `streams` as soon as the client leaves, when the engine has opened none of them in `queue_seconds`, and
    in any case at the end; calls `tick` each `every` seconds."""
    presence = Presence()

    def cancel() -> None:
        for stream in streams:
            stream.cancel()

    def expire() -> None:
        if not any(stream.opened for stream in streams):
            presence.expired = True
            cancel()

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
    expiry = asyncio.get_running_loop().call_later(queue_seconds, expire)
    try:
        yield presence
    finally:
        expiry.cancel()
        cancel()
        for task in tasks:
            task.cancel()
