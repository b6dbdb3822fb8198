"""Starting the engine process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from poot_batch.request import EngineConfig

# -P: without the working directory among the places of modules, which may be that of a model, with files of its own.
WORKER = (sys.executable, "-P", "-m", "poot_batch.process.worker")
# How long the system may take to end a process that was killed. One in the hands of a driver may take for ever.
_KILL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Child:
    """The process, our end of the socket that frames travel on, and our end of its lifeline (see `lifeline`).

    `config`: what it has been told to start with, if it has.
    """

    process: subprocess.Popen[bytes]
    channel: socket.socket
    lifeline: socket.socket
    config: EngineConfig | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """End the process at once, also a stopped one; nothing happens if it has ended."""
        self.process.kill()

    def wait(self, seconds: float) -> int | None:
        """The exit code of the process (-N: signal N), which is killed if it has not ended after `seconds`.

        None if it does not end even so, some seconds later. Waits in the caller's thread.
        """
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        try:
            return self.process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            return None


def end_of(code: int | None) -> str:
    """How a process ended, in words, by what `Child.wait` returned."""
    if code is None:
        return "cannot be ended"
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended: what `Child.wait` returned, and what it said last or was given up for, if anything."""

    code: int | None
    reason: str = ""

    @property
    def in_order(self) -> bool:
        return self.code == 0 and not self.reason

    def __str__(self) -> str:
        how = f"its process {end_of(self.code)}"
        return f"{self.reason}; {how}" if self.reason else how


def launch_engine(command: Sequence[str] = WORKER) -> Child:
    """Start `command`, by default `poot_batch.process.worker`, with a socket pair for frames and one as its lifeline.

    It waits for a Start frame. On Linux it also ends with the thread that calls this: call it from one that lives as
    long as the engine is to.
    """
    ours, theirs = socket.socketpair()
    lifeline, far = socket.socketpair()
    try:
        process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(far.fileno()), str(os.getpid())],
            pass_fds=(theirs.fileno(), far.fileno()),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        lifeline.close()
        raise
    finally:
        theirs.close()
        far.close()
    return Child(process, ours, lifeline)


class EarlyLaunch:
    """Launches engines as `launch_engine` does; the first one at once, so that its start and the caller's overlap.

    It begins with `config`, if that is known. `close` ends it if it was never asked for. Afterwards none is left that
    has no owner.
    """

    def __init__(self, config: EngineConfig | None) -> None:
        self._first: Child | None = launch_engine()
        if config is not None:
            try:
                self._first = _told(self._first, config)
            except BaseException:
                self.close()
                raise

    def __call__(self) -> Child:
        first, self._first = self._first, None
        return first or launch_engine()

    def close(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            first.kill()
            first.wait(_KILL_SECONDS)
            first.channel.close()
            first.lifeline.close()


def _told(child: Child, config: EngineConfig) -> Child:
    """The child, told to start. One that is gone already is found to be later."""
    from poot_batch.process import frames  # which takes as long to import as the process does to begin

    with suppress(OSError):
        child.channel.sendall(frames.encode(frames.Start(config)))
    return replace(child, config=config)
