"""A client that does not read: the write ends, the stream is given up."""

from __future__ import annotations

import asyncio

import pytest

from poot_serve.errors import ClientGoneError
from poot_serve.routes.client import present
from poot_serve.routes.event_stream import EventStream


async def never(message):
    """A `send` whose client reads nothing."""
    await asyncio.Event().wait()


class Cancellable:
    cancelled = False

    def cancel(self):
        self.cancelled = True


def test_a_write_that_takes_too_long_means_that_the_client_is_gone():
    async def main():
        out = EventStream(never, 10.0, 0.01)
        with pytest.raises(ClientGoneError, match=r"did not read for 0\.01 seconds"):
            await out.write(b"data: 1\n\n")

    asyncio.run(main())


def test_a_keep_alive_that_cannot_be_written_cancels_the_request():
    async def main():
        out, stream = EventStream(never, 0.0, 0.01), Cancellable()
        async with present(never_receive, [stream], 60.0, every=0.01, tick=out.keep_alive) as client:
            async with asyncio.timeout(5):
                while not client.gone:
                    await asyncio.sleep(0)
            assert stream.cancelled

    asyncio.run(main())


async def never_receive():
    await asyncio.Event().wait()
