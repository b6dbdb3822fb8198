"""Frames of an engine, as they come over its socket."""

from __future__ import annotations

import asyncio
from collections import deque

from poot_batch.process import frames

_READ_BYTES = 1 << 20


class Incoming:
    """Frames of a stream reader, one at a time; None at its end. Raises what decoding them does."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self._cutter = reader, frames.FrameReader()
        self._waiting: deque[bytes] = deque()

    async def next(self) -> frames.FromEngine | None:
        while not self._waiting:
            try:
                data = await self._reader.read(_READ_BYTES)
            except ConnectionError:
                return None
            if not data:
                return None
            self._waiting.extend(self._cutter.feed(data))
        return frames.decode_from_engine(self._waiting.popleft())
