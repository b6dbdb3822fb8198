"""Deadlines of one length, for all requests together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Waiter(Protocol):
    def late(self) -> None:
        """Its time is over."""


W = TypeVar("W", bound=Waiter)


class Deadlines(Generic[W]):
    """Tells each waiter that is still there `seconds` after it came.

    One timer of the event loop serves all of them: in requests that take some hundred microseconds, one of their own
    would count.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        # In the order of their deadlines, which is the one they came in.
        self._due: dict[W, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[W]:
        return iter(tuple(self._due))

    def add(self, waiter: W) -> None:
        loop = asyncio.get_running_loop()
        self._due[waiter] = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_later(self.seconds, self._ring)

    def remove(self, waiter: W) -> None:
        """One that is not there, or has been told, is left alone."""
        self._due.pop(waiter, None)

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        now, late, self._timer = loop.time(), [], None
        for waiter, due in self._due.items():
            if due > now:
                self._timer = loop.call_at(due, self._ring)
                break
            late.append(waiter)
        for waiter in late:
            # Each on its own: one that fails, or that removes another, is nothing to the rest.
            loop.call_soon(self._tell, waiter)

    def _tell(self, waiter: W) -> None:
        if self._due.pop(waiter, None) is not None:
            waiter.late()
