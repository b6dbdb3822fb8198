"""An engine on a thread of its own: what several threads of a program, and their interrupts, can share safely."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeAlias

from poot_batch.build import Progress, build_engine
from poot_batch.engine import Engine
from poot_batch.errors import EngineDeadError, EngineError, EngineFaultError
from poot_batch.inputs import of_several
from poot_batch.request import EngineConfig, EngineInfo, EngineStats, GenerateRequest, Output, validate
from poot_models.text import TextModel

Box: TypeAlias = "SimpleQueue[Output]"


class EngineThread:
    """Builds an engine and runs its loop. Any thread may call; answers come in queues.

    All work on the device is done by this thread, so an interrupt of the main thread never leaves a step half done.
    Raises at construction what `build_engine` raises.
    """

    def __init__(self, config: EngineConfig, progress: Progress) -> None:
        # What the loop is to do between two steps, in order; None ends it. SimpleQueue.put is safe in finalisers.
        self._calls: SimpleQueue[Callable[[Engine], None] | None] = SimpleQueue()
        self._boxes: dict[int, Box] = {}
        self._death: EngineError | None = None
        self._gate = threading.Lock()
        self._closed = False
        ready: Future[tuple[EngineInfo, TextModel]] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(config, progress, ready), name="poot-engine", daemon=True
        )
        self._thread.start()
        try:
            self.info, self.text = ready.result()
        except BaseException:
            self._calls.put(None)
            raise

    def submit(self, requests: Iterable[GenerateRequest]) -> list[Box]:
        """Queue all of these requests, or none. The last output of each box has `finish` set.

        Raises RequestError and its kin, which say of which of several they are, and the error that ended the engine.
        """
        given = list(requests)
        for at, request in enumerate(given):
            with of_several(at, len(given)):
                validate(request, self.info)
        boxes: list[Box] = [SimpleQueue() for _ in given]

        def call(engine: Engine) -> None:
            for request, box in zip(given, boxes, strict=True):
                self._open(engine, request, box)

        self._post(call)
        return boxes

    def cancel(self, requests: Iterable[GenerateRequest]) -> None:
        """End requests; those that have ended are left alone. Never waits."""
        ids = [request.id for request in requests]

        def call(engine: Engine) -> None:
            for request_id in ids:
                self._deliver(engine.cancel(request_id))

        self._calls.put(call)

    def stats(self) -> EngineStats:
        """Counters and gauges after the step that runs now. Raises EngineDeadError after `close`."""
        answer: Future[EngineStats] = Future()
        self._post(lambda engine: answer.set_result(engine.stats()))
        return answer.result()

    def close(self) -> None:
        """End every open request with code "engine_dead", then the thread. Nothing happens the second time."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _post(self, call: Callable[[Engine], None]) -> None:
        with self._gate:
            if self._closed:
                raise EngineDeadError("this engine is closed")
            if self._death is not None:
                raise self._death
            self._calls.put(call)

    def _run(self, config: EngineConfig, progress: Progress, ready: Future[tuple[EngineInfo, TextModel]]) -> None:
        try:
            engine, text = build_engine(config, progress)
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result((engine.info, text))
        try:
            self._loop(engine)
        finally:
            engine.close()

    def _loop(self, engine: Engine) -> None:
        while True:
            try:
                while not engine.busy or not self._calls.empty():
                    call = self._calls.get()
                    if call is None:
                        self._deliver(engine.abandon(EngineDeadError("this engine is closed")))
                        return
                    call(engine)
                self._deliver(engine.step())
            except Exception as error:
                self._death = (
                    error if isinstance(error, EngineError) else EngineFaultError(f"the engine failed: {error}")
                )
                self._deliver(engine.abandon(self._death))

    def _open(self, engine: Engine, request: GenerateRequest, box: Box) -> None:
        try:
            if self._death is not None:
                raise self._death
            engine.submit(request)
        except EngineError as error:
            box.put(Output(request_id=request.id, finish="error", error_code=error.code, error_message=str(error)))
        else:
            self._boxes[request.id] = box

    def _deliver(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            box = self._boxes[output.request_id]
            if output.finish is not None:
                del self._boxes[output.request_id]
            box.put(output)
