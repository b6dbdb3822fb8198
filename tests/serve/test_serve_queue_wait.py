"""Which requests have waited too long for the engine."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest

from poot_serve.routes.client import Presence


async def never_receive():
    await asyncio.Event().wait()


@pytest.mark.parametrize(("opened", "expired"), [([False, False], True), ([False, True], False), ([True], False)])
def test_only_a_request_of_which_nothing_is_opened_has_waited_too_long(monkeypatch, opened, expired):
    """Choices that wait for rows of their siblings are part of a request that runs."""
    streams = [SimpleNamespace(opened=each, cancelled=0) for each in opened]
    for stream in streams:
        stream.cancel = partial(setattr, stream, "cancelled", 1)
    watched = []
    watches = SimpleNamespace(seconds=2.0, add=watched.append, remove=watched.remove)

    async def run() -> tuple[float, list[int], bool]:
        timers = []
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", lambda *timer: timers.append(timer) or SimpleNamespace(cancel=int))
        with Presence(watches, never_receive, streams, 60.0) as client:
            assert watched == [client] and timers == []
            client.late()
            ((seconds, ring),) = timers
            ring()
            return seconds, [stream.cancelled for stream in streams], client.expired

    # The whole wait is 60 seconds, of which 2 are over when the watch begins.
    assert asyncio.run(run()) == (58.0, [int(expired)] * len(streams), expired)
    assert watched == []
