"""A client that does not read: the write ends, the stream is given up."""

from __future__ import annotations

import asyncio

import pytest

from poot_serve.errors import ClientGoneError
from poot_serve.limits.deadlines import Deadlines
from poot_serve.routes.client import Presence
from poot_serve.routes.event_stream import EventStream


async def never(message=None):
    """A `send` whose client reads nothing, and a `receive` whose client does nothing."""
    await asyncio.Event().wait()


class Cancellable:
    opened, cancelled = True, False

    def cancel(self):
        self.cancelled = True


def test_a_write_that_takes_too_long_means_that_the_client_is_gone():
    async def main():
        gone = pytest.raises(ClientGoneError, match=r"did not read for 0\.01 seconds")
        with gone, EventStream(never, never, 10.0, 0.01) as out:
            await out.write(b"data: 1\n\n")

    asyncio.run(main())


def test_a_keep_alive_that_cannot_be_written_ends_the_request():
    async def main():
        out, stream = EventStream(never, never, 0.0, 0.01), Cancellable()
        watch = Presence(Deadlines(0.0), never, [stream], 60.0, every=0.01, tick=out.keep_alive)
        with pytest.raises(ClientGoneError), out, watch:
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        assert stream.cancelled

    asyncio.run(main())


@pytest.mark.parametrize("also_slow", [False, True])
def test_one_that_is_cancelled_is_not_taken_for_a_client_that_left(also_slow):
    async def stream():
        with EventStream(never, never, 10.0, 0.01 if also_slow else 60.0) as out:
            try:
                await out.write(b"0")
            finally:
                asyncio.current_task().cancel()

    async def main():
        task = asyncio.create_task(stream())
        await asyncio.sleep(0)
        if not also_slow:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
