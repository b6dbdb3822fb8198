"""The engine process seen from asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from poot_batch.errors import EngineDeadError, EngineDrainingError, StartError
from poot_batch.process import frames
from poot_batch.process.interface import EngineState
from poot_batch.process.launch import Child, launch_engine
from poot_batch.process.stream import CREDIT, Stream
from poot_batch.request import EngineConfig, EngineInfo, EngineStats, GenerateRequest, Output, validate

ProgressCallback = Callable[[str, int, int], None]

_READ_BYTES = 1 << 20
_STATS_SECONDS = 5.0
# How long a process that was told to exit, or that closed its socket, may take.
_EXIT_SECONDS = 5.0


async def start_engine(config: EngineConfig, *, progress: ProgressCallback | None = None) -> ProcessEngine:
    """Start an engine process and wait until its model is prepared.

    Raises StartError with the engine's own code and message. When the wait is cancelled, the process is ended.
    """
    child = launch_engine()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(sock=child.channel)
        writer.write(frames.encode(frames.Start(config)))
        incoming = _Incoming(reader)
        info = await _until_ready(incoming, child, progress)
    except BaseException:
        child.kill()
        if writer is None:
            child.channel.close()
        else:
            writer.close()
        await asyncio.to_thread(child.wait, _EXIT_SECONDS)
        raise
    return ProcessEngine(child, incoming, writer, info)


async def _until_ready(incoming: _Incoming, child: Child, progress: ProgressCallback | None) -> EngineInfo:
    while True:
        try:
            frame = await incoming.next()
        except (ValueError, msgspec.MsgspecError) as error:
            raise StartError(f"the engine process speaks nonsense: {error}") from error
        match frame:
            case None:
                code = await asyncio.to_thread(child.wait, _EXIT_SECONDS)
                raise StartError(f"the engine process ended with code {code} before it was ready")
            case frames.Progress(phase, done, total):
                if progress is not None:
                    progress(phase, done, total)
            case frames.Failed(code, message):
                raise StartError(message, reason_code=code)
            case frames.Ready(info):
                return info
            case _:
                raise StartError(f"the engine process spoke out of turn: {type(frame).__name__}")


class _Incoming:
    """Frames of a stream reader, one at a time; None at its end."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self._cutter = reader, frames.FrameReader()
        self._waiting: deque[bytes] = deque()

    async def next(self) -> frames.FromEngine | None:
        while not self._waiting:
            try:
                data = await self._reader.read(_READ_BYTES)
            except ConnectionError:
                return None
            if not data:
                return None
            self._waiting.extend(self._cutter.feed(data))
        return frames.decode_from_engine(self._waiting.popleft())


class ProcessEngine:
    """See `poot_batch.process.interface.EngineClient`. Belongs to the event loop it was started on."""

    def __init__(self, child: Child, incoming: _Incoming, writer: asyncio.StreamWriter, info: EngineInfo) -> None:
        self.info = info
        self._child, self._incoming, self._writer = child, incoming, writer
        self._state: EngineState = "serving"
        self._streams: dict[int, Stream] = {}
        self._asked: dict[int, asyncio.Future[EngineStats]] = {}
        self._last_id = 0
        self._serial = 0
        # Of the request sent last.
        self._prompt: tuple[int, ...] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._death = "the engine process is gone"
        self._pump = asyncio.create_task(self._read())
        self._closing: asyncio.Task[None] | None = None

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def pid(self) -> int:
        """The engine's process."""
        return self._child.pid

    def next_request_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def submit(self, request: GenerateRequest) -> Stream:
        if self._state == "dead":
            raise EngineDeadError(self._death)
        if self._state == "draining":
            raise EngineDrainingError("the engine takes no new requests: it is shutting down")
        validate(request, self.info)
        if request.id in self._streams:
            raise ValueError(f"request id {request.id} is in use")
        credit = CREDIT if request.credit is None else request.credit
        self._send(frames.pack_request(msgspec.structs.replace(request, credit=credit), self._prompt))
        self._prompt = request.prompt
        stream = self._streams[request.id] = Stream(request.id, credit, self)
        self._idle.clear()
        return stream

    def cancel(self, request_id: int) -> None:
        """End a request; unknown and ended ids are left alone."""
        if request_id in self._streams:
            self._send(frames.Cancel(request_id))

    def grant(self, request_id: int, tokens: int) -> None:
        if request_id in self._streams:
            self._send(frames.Grant(request_id, tokens))

    async def stats(self) -> EngineStats:
        if self._state == "dead":
            raise EngineDeadError(self._death)
        self._serial += 1
        serial = self._serial
        answer: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._asked[serial] = answer
        self._send(frames.AskStats(serial))
        try:
            return await asyncio.wait_for(answer, _STATS_SECONDS)
        except TimeoutError as error:
            raise EngineDeadError(f"the engine has not answered for {_STATS_SECONDS:.0f} s") from error
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
            await self._idle.wait()

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
        await asyncio.to_thread(self._child.wait, _EXIT_SECONDS)
        await self._pump
        self._writer.close()

    def _send(self, frame: frames.ToEngine) -> None:
        if self._state != "dead":
            self._writer.write(frames.encode(frame))

    async def _read(self) -> None:
        """Hand frames out until the engine is gone, then end what is open."""
        try:
            while (frame := await self._incoming.next()) is not None:
                self._take(frame)
        except (ValueError, msgspec.MsgspecError) as error:
            self._death = f"the engine process speaks nonsense: {error}"
            self._child.kill()
        finally:
            self._dead()

    def _take(self, frame: frames.FromEngine) -> None:
        match frame:
            case frames.Step():
                for output in frames.unpack_outputs(frame):
                    self._put(output)
            case frames.Stats(serial, stats):
                answer = self._asked.get(serial)
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
        stream.put(output)
        if not self._streams:
            self._idle.set()

    def _dead(self) -> None:
        self._state = "dead"
        error = EngineDeadError(self._death)
        for request_id, stream in tuple(self._streams.items()):
            output = Output(request_id=request_id, finish="error", error_code=error.code, error_message=str(error))
            self._finish(stream, output)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)
