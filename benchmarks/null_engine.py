"""An engine client that answers every request at once with the same token: what is left to measure is the server."""

from __future__ import annotations

import asyncio
from typing import Self

from poot_batch.process.interface import EngineState
from poot_batch.request import EngineInfo, EngineStats, GenerateRequest, Output

DEFAULT_TOKENS = 16


class NullStream:
    """One output a token: the first at once, each other after all streams have had their turn, as steps give them.

    An iterator, as the stream of a real engine is: of a generator the event loop keeps books, in Python.
    """

    def __init__(self, request: GenerateRequest, token: int) -> None:
        self.request_id, self.opened = request.id, True
        self._prompt_tokens = len(request.prompt)
        self._tokens = self._left = request.max_tokens or DEFAULT_TOKENS
        self._token = token

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        if self._left == 0:
            raise StopAsyncIteration
        if self._left < self._tokens:
            await asyncio.sleep(0)
        self._left -= 1
        return Output(
            request_id=self.request_id,
            tokens=(self._token,),
            prompt_tokens=self._prompt_tokens,
            finish="length" if self._left == 0 else None,
        )

    def cancel(self) -> None:
        """Nothing runs."""


class NullEngine:
    """See `poot_batch.process.interface.EngineClient`."""

    state: EngineState = "serving"

    def __init__(self, token: int) -> None:
        self._token = token
        self._last_id = 0
        self.info = EngineInfo(
            model="null", architecture="null", backend="null", device="null", rows=256, max_seq=4096,
            vocab_size=1 << 20, eos_ids=(0,), kv_block_size=16, kv_blocks=65_536, weight_bytes=0, kv_bytes=0,
            workspace_bytes=0, device_total_bytes=0, decode_dispatches=0, decode_activation_peak_bytes=0,
            prefill_dispatches=0, prefill_activation_peak_bytes=0,
        )  # fmt: skip

    def next_request_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def submit(self, request: GenerateRequest) -> NullStream:
        return NullStream(request, self._token)

    async def stats(self) -> EngineStats:
        return EngineStats()

    async def drain(self, timeout_seconds: float) -> None:
        """Nothing runs."""

    async def close(self) -> None:
        """Nothing runs."""
