"""Deadlines of many over one timer, and the bodies that are read within them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from poot_serve.errors import BodyIncompleteError, BodyTimeoutError, ClientGoneError, DrainingError
from poot_serve.limits import deadlines as module
from poot_serve.limits.body import Bodies
from poot_serve.limits.deadlines import Deadlines

NEVER = 3600.0


@dataclass
class Loop:
    """An event loop's clock."""

    now: float = 100.0
    timers: list[tuple[float, object]] = field(default_factory=list)

    def time(self):
        return self.now

    def call_at(self, when, ring):
        self.timers.append((when, ring))
        return (when, ring)

    def call_later(self, seconds, ring):
        return self.call_at(self.now + seconds, ring)

    def call_soon(self, call, *arguments):
        self.timers.insert(0, (self.now, lambda: call(*arguments)))

    def run(self, until):
        while self.timers and self.timers[0][0] <= until:
            self.now, ring = self.timers.pop(0)
            ring()
        self.now = until


@dataclass(eq=False)
class Waiter:
    loop: Loop
    told: float | None = None

    def late(self):
        self.told = self.loop.now


@pytest.fixture
def loop(monkeypatch):
    loop = Loop()
    monkeypatch.setattr(module.asyncio, "get_running_loop", lambda: loop)
    return loop


def test_one_that_fails_or_takes_another_away_is_nothing_to_the_rest(loop):
    deadlines, rest = Deadlines(10.0), Waiter(loop)

    class Wrong(Waiter):
        def late(self):
            deadlines.remove(taken)
            raise RuntimeError("late")

    wrong, taken = Wrong(loop), Waiter(loop)
    for waiter in (rest, taken, wrong):  # this loop runs the last first
        deadlines.add(waiter)
    with pytest.raises(RuntimeError, match="late"):
        loop.run(110.0)
    loop.run(110.0)
    assert (rest.told, taken.told, len(deadlines)) == (110.0, None, 0)


def test_each_is_told_at_its_own_deadline_by_one_timer(loop):
    deadlines, waiters = Deadlines(10.0), [Waiter(loop) for _ in range(4)]
    for second, waiter in zip((0.0, 0.0, 3.0, 4.0), waiters, strict=True):
        loop.run(100.0 + second)
        deadlines.add(waiter)
        assert len(loop.timers) == 1
    deadlines.remove(waiters[2])
    loop.run(113.5)
    assert [waiter.told for waiter in waiters] == [110.0, 110.0, None, None]
    assert len(loop.timers) == len(deadlines) == 1
    loop.run(200.0)
    assert [waiter.told for waiter in waiters] == [110.0, 110.0, None, 114.0]
    assert len(loop.timers) == len(deadlines) == 0


def test_one_that_comes_after_all_have_gone_is_told_too(loop):
    deadlines, first, second = Deadlines(10.0), Waiter(loop), Waiter(loop)
    deadlines.add(first)
    deadlines.remove(first)
    deadlines.remove(first)
    loop.run(105.0)
    deadlines.add(second)
    assert len(loop.timers) == 1 and list(deadlines) == [second]
    loop.run(200.0)
    assert (first.told, second.told) == (None, 115.0)


def messages(*bodies, more=True, left=False):
    """A `receive` that gives these parts of a body, and then the end of the connection or nothing."""
    parts = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
    if parts and not more:
        parts[-1]["more_body"] = False
    waiting = iter([*parts, *([{"type": "http.disconnect"}] if left else [])])

    async def receive():
        for message in waiting:
            return message
        await asyncio.Event().wait()

    return receive


@pytest.mark.parametrize("more", [True, False])
def test_nothing_is_asked_for_after_the_stated_length(more):
    async def main():
        bodies = Bodies(NEVER)
        assert await bodies.read(messages(b"ab", b"", b"cde", more=more), 5) == b"abcde"
        assert await bodies.read(messages(), 0) == b""
        assert len(bodies) == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("receive", "error"),
    [
        (messages(b"abcd", b"ef"), BodyIncompleteError("the body is longer than its Content-Length of 5")),
        (messages(b"ab", b"cd", more=False), BodyIncompleteError("the body has 4 bytes, Content-Length says 5")),
        (messages(b"ab", left=True), ClientGoneError("the client left while it sent the body")),
    ],
)
def test_a_body_of_another_length(receive, error):
    async def main():
        bodies = Bodies(NEVER)
        with pytest.raises(type(error), match=str(error)):
            await bodies.read(receive, 5)
        assert len(bodies) == 0

    asyncio.run(main())


def test_a_body_that_does_not_come():
    async def main():
        bodies = Bodies(0.01)
        with pytest.raises(BodyTimeoutError, match=r"within 0\.01 seconds"):
            await bodies.read(messages(b"ab"), 5)
        assert len(bodies) == 0 and asyncio.current_task().cancelling() == 0

    asyncio.run(main())


def test_bodies_that_are_cut():
    async def main():
        bodies = Bodies(NEVER)
        reads = [asyncio.create_task(bodies.read(messages(b"ab"), 5)) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(bodies) == 3
        reads[0].cancel()  # by whoever waits for it: that is no cut
        bodies.cut(lambda: DrainingError("going"))
        ended = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(error) for error in ended] == [asyncio.CancelledError, DrainingError, DrainingError]
        assert len(bodies) == 0

    asyncio.run(main())
