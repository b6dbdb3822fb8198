"""The engine's end of its lifeline: a socket pair over which it is seen to live, and whose end ends it.

Every BEAT_SECONDS a thread of the engine process sends a beat: for how many milliseconds the loop has been in the step
that it runs (uint32, little-endian; 0 between steps). The server sends nothing. Beats need no step to end and no
request to come, so that a long step is told apart from a process that stands still.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

BEAT = struct.Struct("<I")
BEAT_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_MOST = 2**32 - 1


class Pulse:
    """What the loop does, as the beating thread sees it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None

    def begin(self) -> None:
        """A step begins."""
        self._began = self._clock()

    def end(self) -> None:
        """It has ended, one way or another."""
        self._began = None

    def beat(self) -> bytes:
        began = self._began
        return BEAT.pack(0 if began is None else min(_MOST, int((self._clock() - began) * 1000)))


def hold(lifeline: socket.socket, parent: int, pulse: Pulse) -> None:
    """From now on this process beats, and ends at once, whatever it does, when process `parent` is gone."""
    _end_with(parent)
    threading.Thread(target=beat, args=(lifeline, pulse), name="lifeline", daemon=True).start()


def beat(lifeline: socket.socket, pulse: Pulse, *, seconds: float = BEAT_SECONDS) -> None:
    """Beat until the other end is gone, then end the process."""
    try:
        while True:
            lifeline.settimeout(seconds)
            try:
                if not lifeline.recv(1):
                    break
            except TimeoutError:
                _send(lifeline, pulse.beat())
    except OSError:
        pass  # the other end is gone
    os._exit(1)


def _send(lifeline: socket.socket, data: bytes) -> None:
    """Send a beat if it fits: whoever has left thousands unread can do without this one."""
    lifeline.setblocking(False)
    with suppress(BlockingIOError):
        lifeline.send(data)


def _end_with(parent: int) -> None:
    """Have Linux kill this process with its parent: unlike a thread that watches, it does so to a stopped process."""
    if sys.platform != "linux":
        return
    # A system that forbids the call leaves the thread.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it went before the call
