"""The engine process: `python -m poot_batch.process.worker SOCKET_FD LIFELINE_FD PARENT`.

It speaks frames over an inherited socket, beats on another, its lifeline, and lives no longer than its parent process:
then it exits, whatever it is doing.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable

from poot_batch.engine import Engine
from poot_batch.errors import EngineError, RequestError, StartError
from poot_batch.faults import reach
from poot_batch.process import frames
from poot_batch.process.lifeline import Pulse, hold
from poot_batch.request import Output
from poot_executor.devices.private_folder import remove_temporary

_READ_BYTES = 1 << 18
# What arrivals may add to the gap between two steps. Only the largest requests take longer to be taken in.
_TURN_SECONDS = 0.5
# Undelivered bytes at which the loop stops stepping until the peer reads.
_OUTBOX_LIMIT = 16 * 2**20


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 after a shutdown, 1 when the engine could not start or gave up."""
    _leave_what_is_gone()
    channel, lifeline = (_own(int(number)) for number in arguments[:2])
    pulse = Pulse()
    hold(lifeline, int(arguments[2]), pulse)
    # A terminal's Ctrl-C and a service manager's SIGTERM, which may go to every process of a service, are for the
    # server: it drains this process in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    peer = _Peer(channel)
    # Start-up makes millions of objects, nearly all of which stay: looking through them for garbage would take a third
    # of its time, and later every full collection would pause the loop. So they are left alone, with the little garbage
    # among them: to look for it once is half a second that the first answer would wait for. Only here, where the
    # process is the engine's: in a program that uses LLM, what is frozen could never be given back.
    gc.disable()
    engine = _start(peer)
    if engine is None:
        return 1
    gc.freeze()
    gc.enable()
    try:
        return _Loop(engine, peer, pulse).run()
    finally:
        engine.close()
        channel.close()


def _leave_what_is_gone() -> None:
    """A working directory that was deleted, say by a new release of a service: torch's libraries do not load there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir(os.sep)


def _own(number: int) -> socket.socket:
    """The inherited socket `number`, under a low number of this process's own, which no child of it inherits.

    A server with thousands of connections hands down a number that is more than select takes.
    """
    with socket.socket(fileno=number) as inherited:
        return inherited.dup()


class _Peer:
    """The socket: frames in, frames out, nothing lost when the peer is slow."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._reader = frames.FrameReader()
        self._waiting: deque[bytes] = deque()
        self._outbox = bytearray()
        self.gone = False

    @property
    def clogged(self) -> bool:
        return len(self._outbox) > _OUTBOX_LIMIT

    def send(self, frame: frames.FromEngine) -> None:
        self._outbox += frames.encode(frame)
        self.flush()

    def flush(self) -> None:
        while self._outbox and not self.gone:
            try:
                reach("worker.send")
                sent = self._channel.send(self._outbox)
            except BlockingIOError:
                return
            except OSError:
                self.gone = True
                return
            del self._outbox[:sent]

    def receive(self, timeout: float | None) -> frames.ToEngine | None:
        """The next frame; None if there is no whole one, after waiting at most `timeout` seconds for any bytes (None:
        until there are some, or the peer takes what waits for it)."""
        if not self._waiting:
            self._read(timeout)
        return frames.decode_to_engine(self._waiting.popleft()) if self._waiting else None

    def _read(self, timeout: float | None) -> None:
        """Take what the socket has until that makes a frame."""
        writers = [self._channel] if self._outbox else []
        readable, writable, _ = select.select([self._channel], writers, [], timeout)
        if writable:
            self.flush()
        while readable and not self._waiting and not self.gone:
            try:
                data = self._channel.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.gone = not data
            self._waiting.extend(self._reader.feed(data))

    def finish(self) -> None:
        """Send what is left, waiting for the peer as long as it reads."""
        if not self._outbox:
            return  # to send nothing, too, a full socket would be waited for
        self._channel.settimeout(5.0)
        try:
            self._channel.sendall(self._outbox)
        except OSError:
            self.gone = True


def _start(peer: _Peer) -> Engine | None:
    from poot_batch.build import build_engine
    from poot_executor.errors import ExecutorError
    from poot_models.errors import ModelError

    config = None
    while config is None:
        frame = peer.receive(None)
        if isinstance(frame, frames.Start):
            config = frame.config
        elif peer.gone:
            return None

    def progress(phase: str, done: int, total: int) -> None:
        peer.send(frames.Progress(phase, done, total))

    try:
        # The server encodes, and says what is wrong with the text side.
        engine, _ = build_engine(config, progress, encodes=False)
    except StartError as error:
        peer.send(frames.Failed(error.reason_code, str(error)))
    except (ModelError, ExecutorError) as error:
        peer.send(frames.Failed(error.code, str(error)))
    except MemoryError:
        peer.send(frames.Failed("capacity", "the host has no memory left for this model"))
    except Exception as error:
        traceback.print_exc()
        peer.send(frames.Failed("internal_error", f"{type(error).__name__}: {error}"))
    else:
        peer.send(frames.Ready(engine.info))
        return engine
    peer.finish()
    return None


class _Loop:
    """Step while there is work, wait for frames while there is none."""

    def __init__(
        self, engine: Engine, peer: _Peer, pulse: Pulse | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._engine, self._peer, self._clock = engine, peer, clock
        self._pulse = Pulse() if pulse is None else pulse
        self._ending = False
        # Of the request that came last.
        self._prompt: tuple[int, ...] = ()
        engine.on_open = lambda request_id: peer.send(frames.Opened(request_id))

    def run(self) -> int:
        while True:
            self._hear()
            if self._peer.gone:
                return 1
            if self._ending:
                break
            if self._engine.busy and not self._peer.clogged:
                self._pulse.begin()
                try:
                    self._deliver(self._engine.step())
                except EngineError as error:
                    self._deliver(self._engine.abandon(error))
                    self._peer.send(frames.Failed(error.code, str(error)))
                    self._peer.finish()
                    return 1
                finally:
                    self._pulse.end()
        self._peer.finish()
        return 0

    def _hear(self) -> None:
        """Handle the frames that are there, so that nothing waits behind a large request for one step after another.

        The client goes on sending meanwhile: what is left when the time is over is for the next turn.
        """
        working = self._engine.busy and not self._peer.clogged
        frame = self._peer.receive(0 if working else None)
        until = self._clock() + _TURN_SECONDS
        while frame is not None:
            self._handle(frame)
            if self._ending or self._clock() >= until:
                return
            frame = self._peer.receive(0)

    def _handle(self, frame: frames.ToEngine) -> None:
        match frame:
            case frames.Generate():
                self._submit(frame)
            case frames.Cancel(request_id):
                self._deliver(self._engine.cancel(request_id))
            case frames.Grant(request_id, tokens):
                self._engine.grant(request_id, tokens)
            case frames.AskStats(serial):
                self._peer.send(frames.Stats(serial, self._engine.stats()))
            case frames.Shutdown():
                self._ending = True
            case frames.Start():
                raise ValueError("an engine starts once")

    def _submit(self, frame: frames.Generate) -> None:
        request = frames.unpack_request(frame, self._prompt)
        self._prompt = request.prompt
        try:
            self._engine.submit(request)
        except RequestError as error:
            # The client checks first, by the same rules; this is for one that did not.
            refusal = Output(request_id=request.id, finish="error", error_code=error.code, error_message=str(error))
            self._deliver([refusal])

    def _deliver(self, outputs: Iterable[Output]) -> None:
        batch = list(outputs)
        if batch:
            self._peer.send(frames.pack_outputs(batch))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    remove_temporary()
    # Taking apart what stands on a device that failed can hang or abort, and on one that did not takes seconds.
    os._exit(code)
