"""The engine process seen from asyncio."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from poot_batch.errors import EngineDeadError, EngineDrainingError, EngineRestartingError
from poot_batch.process import frames
from poot_batch.process.incoming import Incoming
from poot_batch.process.interface import EngineState
from poot_batch.process.launch import Child, End
from poot_batch.process.stream import CREDIT, Stream
from poot_batch.process.totals import Totals
from poot_batch.process.watch import Patience, Watch
from poot_batch.request import EngineInfo, EngineStats, GenerateRequest, Output, validate

_log = logging.getLogger(__name__)

# Figures a little old are better than a scrape that fails: a step of a large model on a small processor takes longer.
_STATS_SECONDS = 2.0
# How long a process that was told to exit, or that closed its socket, may take.
EXIT_SECONDS = 5.0
# Bytes that the engine has not read at which it is sent no more requests: in one step of minutes, many may come and go.
MOST_UNREAD = 256 * 2**20
_BEATS = 4096


class ProcessEngine:
    """See `poot_batch.process.interface.EngineClient`. Belongs to the event loop it was started on."""

    def __init__(
        self,
        child: Child,
        incoming: Incoming,
        writer: asyncio.StreamWriter,
        info: EngineInfo,
        *,
        patience: Patience,
        totals: Totals,
    ) -> None:
        self.info = info
        self._child, self._incoming, self._writer = child, incoming, writer
        self._patience, self._totals = patience, totals
        self._state: EngineState = "serving"
        self._streams: dict[int, Stream] = {}
        self._asked: dict[int, asyncio.Future[EngineStats]] = {}
        self._last_id = 0
        self._serial = 0
        # Of the request sent last.
        self._prompt: tuple[int, ...] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._gone = asyncio.Event()
        self._death = ""
        self._watch = Watch(patience, info.backend)
        self._pump = asyncio.create_task(self._read())
        self._watching = [asyncio.create_task(self._listen()), asyncio.create_task(self._look())]
        self._closing: asyncio.Task[None] | None = None

    @property
    def state(self) -> EngineState:
        return "stalled" if self._state == "serving" and self._watch.verdict == "stalled" else self._state

    @property
    def pid(self) -> int:
        """The engine's process."""
        return self._child.pid

    def next_request_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def submit(self, request: GenerateRequest) -> Stream:
        if self._state == "dead":
            raise self._dead_error()
        if self._state == "draining":
            raise EngineDrainingError("the engine takes no new requests: it is shutting down")
        if self.state == "stalled":
            raise EngineRestartingError("the engine is silent and takes no new requests; try again later")
        if self._writer.transport.get_write_buffer_size() > MOST_UNREAD:
            raise EngineRestartingError("the engine has not read the requests before this one; try again later")
        validate(request, self.info)
        if request.id in self._streams:
            raise ValueError(f"request id {request.id} is in use")
        credit = CREDIT if request.credit is None else request.credit
        self._send(frames.pack_request(msgspec.structs.replace(request, credit=credit), self._prompt))
        self._prompt = request.prompt
        stream = self._streams[request.id] = Stream(request.id, credit, self)
        self._totals.opened()
        self._idle.clear()
        return stream

    def cancel(self, request_id: int) -> None:
        """End a request; unknown and ended ids are left alone. It ends here and now: a silent engine hears of it later,
        and what it says of the request then is dropped."""
        if (stream := self._streams.get(request_id)) is not None:
            self._send(frames.Cancel(request_id))
            self._finish(stream, Output(request_id=request_id, finish="abort"))

    def grant(self, request_id: int, tokens: int) -> None:
        if request_id in self._streams:
            self._send(frames.Grant(request_id, tokens))

    async def stats(self) -> EngineStats:
        """See `EngineClient.stats`. The last figures that are known if the engine does not answer for a while."""
        if self._state == "dead":
            raise self._dead_error()
        if self.state == "stalled":
            return self._totals.unheard(len(self._streams))
        self._serial += 1
        serial = self._serial
        answer: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._asked[serial] = answer
        self._send(frames.AskStats(serial))
        try:
            return await asyncio.wait_for(answer, _STATS_SECONDS)
        except TimeoutError:
            return self._totals.unheard(len(self._streams))
        finally:
            self._asked.pop(serial, None)

    async def drain(self, timeout_seconds: float) -> None:
        if self._state == "serving":
            self._state = "draining"
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        except TimeoutError:
            for request_id in tuple(self._streams):
                self.cancel(request_id)

    async def close(self) -> None:
        """See `EngineClient.close`. Calling again waits for the same end; a cancelled call does not stop it."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for request_id, stream in tuple(self._streams.items()):
            self._finish(stream, Output(request_id=request_id, finish="abort"))
        self._send(frames.Shutdown())
        if self._state != "dead":
            self._state = "draining"
        if await asyncio.to_thread(self._child.wait, EXIT_SECONDS) is None:
            self._dead()
        await self.ended()

    async def ended(self) -> End:
        """Waits until the process is gone, and says how it ended. What it held on this side is given back."""
        await self._gone.wait()
        code = await asyncio.to_thread(self._child.wait, EXIT_SECONDS)
        if code is None:
            self._pump.cancel()  # the other end of the socket stays open
        await asyncio.wait({self._pump, *self._watching})
        self._writer.close()
        self._child.lifeline.close()
        return End(code, self._death)

    def _send(self, frame: frames.ToEngine) -> None:
        if self._state != "dead":
            self._writer.write(frames.encode(frame))

    async def _read(self) -> None:
        """Hand frames out until the engine is gone, then end what is open."""
        try:
            while (frame := await self._incoming.next()) is not None:
                # What one that was given up says in its last moments comes too late.
                if self._state != "dead":
                    self._take(frame)
        except (ValueError, msgspec.MsgspecError) as error:
            self._death = f"its process speaks nonsense: {error}"
            self._child.kill()
        finally:
            self._dead()

    async def _listen(self) -> None:
        """Hear the beats until the engine is gone."""
        loop = asyncio.get_running_loop()
        self._child.lifeline.setblocking(False)
        try:
            while data := await loop.sock_recv(self._child.lifeline, _BEATS):
                self._watch.hear(data)
        except OSError:
            pass  # whatever ended it ends the other socket too

    async def _look(self) -> None:
        """Judge the engine by its beats, and end it once it counts as lost: also one that only stands still."""
        loop = asyncio.get_running_loop()
        while True:
            before, then = self._watch.verdict, loop.time()
            await asyncio.sleep(self._patience.look)
            verdict = self._watch.look(loop.time() - then)
            if verdict == "lost":
                self._death = self._watch.reason
                self._child.kill()
                self._dead()
            elif verdict == "stalled" and before == "well":
                _log.warning("the engine has been silent for %.1f s: new requests are refused", self._watch.silent)
            elif verdict == "well" and before == "stalled":
                _log.warning("the engine is heard again: requests are taken")

    def _take(self, frame: frames.FromEngine) -> None:
        match frame:
            case frames.Step():
                for output in frames.unpack_outputs(frame):
                    self._put(output)
            case frames.Opened(request_id):
                if (stream := self._streams.get(request_id)) is not None:
                    stream.opened = True
            case frames.Stats(serial, told):
                stats, answer = self._totals.heard(told), self._asked.get(serial)
                if answer is not None and not answer.done():
                    answer.set_result(stats)
            case frames.Failed(_, message):
                self._death = message
            case _:
                raise ValueError(f"{type(frame).__name__} while serving")

    def _put(self, output: Output) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        if output.finish is not None:
            self._finish(stream, output)
        else:
            stream.put(output)

    def _finish(self, stream: Stream, output: Output) -> None:
        del self._streams[stream.request_id]
        if output.finish is not None:
            self._totals.ended(output.finish)
        stream.put(output)
        if not self._streams:
            self._idle.set()

    def _dead(self) -> None:
        """End what is open. Nothing happens the second time."""
        if self._state == "dead":
            return
        self._state = "dead"
        error = self._dead_error()
        for request_id, stream in tuple(self._streams.items()):
            output = Output(request_id=request_id, finish="error", error_code=error.code, error_message=str(error))
            self._finish(stream, output)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)
        self._totals.lost()
        for task in self._watching:
            task.cancel()
        self._gone.set()

    def _dead_error(self) -> EngineDeadError:
        return EngineDeadError(f"the engine is gone: {self._death}" if self._death else "the engine process is gone")
