"""Reading a request's body: exactly as long as stated, within its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive

from poot_serve.errors import BodyIncompleteError, BodyTimeoutError, ClientGoneError, ServeError
from poot_serve.limits.deadlines import Deadlines


class Bodies:
    """Reads bodies, each within `seconds`. Its length is how many are being read."""

    def __init__(self, seconds: float) -> None:
        self._reads = Deadlines[_Read](seconds)

    def __len__(self) -> int:
        return len(self._reads)

    async def read(self, receive: Receive, length: int) -> bytes:
        """The `length` bytes of a body, which the server below ends at its Content-Length: nothing is asked for then.

        Raises ClientGoneError when the client leaves, BodyIncompleteError, BodyTimeoutError, or what `cut` was given.
        """
        this = _Read(self._late)
        self._reads.add(this)
        parts: list[bytes] = []
        left, more = length, True
        try:
            while left > 0 and more:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientGoneError("the client left while it sent the body")
                part = message.get("body", b"")
                more = message.get("more_body", False)
                left -= len(part)
                parts.append(part)
        except asyncio.CancelledError:
            if this.why is not None and this.task.uncancel() == 0:
                raise this.why() from None
            raise
        finally:
            self._reads.remove(this)
        if left < 0:
            raise BodyIncompleteError(f"the body is longer than its Content-Length of {length}")
        if left > 0:
            raise BodyIncompleteError(f"the body has {length - left} bytes, Content-Length says {length}")
        return b"".join(parts)

    def cut(self, why: Callable[[], ServeError]) -> None:
        """Ends what is being read."""
        for read in self._reads:
            read.cut(why)

    def _late(self) -> BodyTimeoutError:
        return BodyTimeoutError(f"the body did not arrive within {self._reads.seconds:g} seconds")


class _Read:
    """The current task's wait for a body."""

    __slots__ = ("_late", "task", "why")

    def __init__(self, late: Callable[[], ServeError]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task, self._late = task, late
        # Makes the error: one that is kept would keep the request, whose frames are on its traceback.
        self.why: Callable[[], ServeError] | None = None

    def late(self) -> None:
        self.cut(self._late)

    def cut(self, why: Callable[[], ServeError]) -> None:
        if self.why is None:
            self.why = why
            self.task.cancel()
