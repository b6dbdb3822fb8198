"""The outputs of one request as an asyncio iterator that grants credit as it is read."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, Self

import msgspec

from poot_batch.request import Output, TokenLogprob

# Tokens that a stream's reader may be behind before its row pauses, and how many are granted at a time.
CREDIT = 64
GRANT = 32


class Requests(Protocol):
    """Where a stream sends what its reader does."""

    def cancel(self, request_id: int) -> None: ...

    def grant(self, request_id: int, tokens: int) -> None: ...


class Stream:
    """See `poot_batch.process.interface.RequestStream`. Outputs that wait together are given as one.

    Iterating may stop (break, or a cancelled task) and go on later: nothing that was not given is lost.
    """

    def __init__(self, request_id: int, credit: int, requests: Requests) -> None:
        self.request_id = request_id
        self.opened = False
        self._requests = requests
        self._outputs: deque[Output] = deque()
        self._loop = asyncio.get_running_loop()
        # Of the readers that wait, one as a rule. An asyncio.Event costs twice as much.
        self._arrivals: list[asyncio.Future[None]] = []
        # A row with little credit is granted more in smaller parts, since it pauses once it has used all of it.
        self._grant_at = max(1, min(GRANT, credit // 2))
        self._taken = 0
        self._ended = False

    def put(self, output: Output) -> None:
        self._outputs.append(output)
        if self._arrivals:
            self._tell()

    def cancel(self) -> None:
        self._requests.cancel(self.request_id)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        while not self._outputs:
            if self._ended:
                raise StopAsyncIteration
            arrival = self._loop.create_future()
            self._arrivals.append(arrival)
            await arrival
        output = merged(self._outputs)
        if output.finish is not None:
            self._ended = True
            self._tell()
        self._grant(len(output.tokens))
        return output

    def _tell(self) -> None:
        for arrival in self._arrivals:
            if not arrival.done():
                arrival.set_result(None)
        self._arrivals.clear()

    def _grant(self, tokens: int) -> None:
        self._taken += tokens
        if self._taken >= self._grant_at and not self._ended:
            self._requests.grant(self.request_id, self._taken)
            self._taken = 0


def merged(outputs: deque[Output]) -> Output:
    """Take all that wait as one output."""
    if len(outputs) == 1:
        return outputs.popleft()
    parts = tuple(outputs)
    outputs.clear()
    texts = [part.text for part in parts if part.text is not None]
    return msgspec.structs.replace(
        parts[-1],
        tokens=tuple(token for part in parts for token in part.tokens),
        text="".join(texts) if texts else None,
        logprobs=_joined([part.logprobs for part in parts if part.logprobs is not None]),
        prompt_logprobs=_joined([part.prompt_logprobs for part in parts if part.prompt_logprobs is not None]),
        prompt_tokens=max(part.prompt_tokens for part in parts),
        cached_tokens=max(part.cached_tokens for part in parts),
        cache_miss=next((part.cache_miss for part in parts if part.cache_miss is not None), None),
    )


def _joined(lists: list[tuple[TokenLogprob, ...]]) -> tuple[TokenLogprob, ...] | None:
    return tuple(entry for entries in lists for entry in entries) if lists else None
