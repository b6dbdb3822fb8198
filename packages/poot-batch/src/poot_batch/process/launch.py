"""Starting the engine process."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Child:
    """The process, our end of its socket, and the pipe whose closing ends it."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    pipe: io.FileIO

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """End the process at once; nothing happens if it has ended."""
        self.process.kill()

    def wait(self, seconds: float) -> int:
        """The exit code of the process, which is killed if it has not ended after `seconds`. Closes the pipe."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.pipe.close()
        return self.process.wait()


def launch_engine() -> Child:
    """Start `poot_batch.process.worker` with a socket pair and a parent-death pipe. It waits for a Start frame."""
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "poot_batch.process.worker", str(theirs.fileno()), str(read_end)],
            pass_fds=(theirs.fileno(), read_end),
            stdin=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        os.close(write_end)
        raise
    finally:
        theirs.close()
        os.close(read_end)
    return Child(process, ours, io.FileIO(write_end, "wb"))


def _environment() -> dict[str, str]:
    """The parent's environment, with OpenMP's threads told to sleep when they wait.

    Threads that spin at the end of torch's short parallel regions hold the cores that others need, and with other
    processes on the machine a region of microseconds then takes milliseconds. A user's own setting wins.
    """
    return {"OMP_WAIT_POLICY": "passive", **os.environ}
