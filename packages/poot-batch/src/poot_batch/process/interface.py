"""The seam between a server and an engine: what the HTTP server needs, proved by a fake in its tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol

from poot_batch.request import EngineInfo, EngineStats, GenerateRequest, Output

# "stalled": it is silent, and may recover or be ended. "restarting": the process was lost, and another one is starting.
# "dead": for good. Only a serving engine takes requests, and only a stalled or restarting one may serve again.
EngineState = Literal["serving", "stalled", "restarting", "draining", "dead"]


class RequestStream(Protocol):
    """The deliveries of one request. Iteration ends after the output whose `finish` is set.

    Every submitted request ends exactly once; when the engine dies, with finish "error" and code "engine_dead".
    Iterating grants credit: a reader that does not iterate pauses its own row and nobody else's.
    """

    request_id: int
    opened: bool
    """Whether the engine has given it a row: before that, it waits."""

    def __aiter__(self) -> AsyncIterator[Output]: ...

    def cancel(self) -> None:
        """End the stream with "abort", at once also if the engine is silent; its row is free at the engine's next step.
        Safe at any time, any number of times."""


class EngineClient(Protocol):
    """An engine seen from an asyncio event loop."""

    info: EngineInfo

    @property
    def state(self) -> EngineState: ...

    def next_request_id(self) -> int: ...

    def submit(self, request: GenerateRequest) -> RequestStream:
        """Queue a request.

        Raises RequestError for one that can never be served, EngineDeadError (EngineRestartingError where trying again
        may help), EngineDrainingError.
        """

    async def stats(self) -> EngineStats:
        """Counters and gauges, as of the last step or, if the engine does not answer, of those told last. Raises
        EngineDeadError."""

    async def drain(self, timeout_seconds: float) -> None:
        """Take no new requests, wait for the running ones, cancel what still runs after the timeout."""

    async def close(self) -> None:
        """End the engine. Open streams end with "abort". May be called again."""
