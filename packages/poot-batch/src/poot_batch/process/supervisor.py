"""An engine that is started again when its process is lost: once, and again if it then served for long enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from poot_batch.errors import EngineDeadError, EngineRestartingError, StartError
from poot_batch.process.client import ProcessEngine
from poot_batch.process.interface import EngineState
from poot_batch.process.launch import Child
from poot_batch.process.start import ProgressCallback, start_engine
from poot_batch.process.stream import Stream
from poot_batch.process.totals import Totals
from poot_batch.process.watch import Patience
from poot_batch.request import EngineConfig, EngineInfo, EngineStats, GenerateRequest

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """When a lost engine is started again: not if it is itself the successor of one, and has served for less than
    `window` seconds. The start may take `longer` times what the first one did, and at least `least` seconds."""

    window: float = 600.0
    longer: float = 3.0
    least: float = 60.0


async def start_supervised(
    config: EngineConfig,
    *,
    progress: ProgressCallback | None = None,
    launch: Callable[[], Child] | None = None,
    patience: Patience | None = None,
    restarts: Restarts | None = None,
) -> SupervisedEngine:
    """`start_engine`, and a watch over what it started. Raises StartError if the first start fails."""
    loop = asyncio.get_running_loop()
    totals, began = Totals(), loop.time()

    async def start(config: EngineConfig, progress: ProgressCallback | None = None) -> ProcessEngine:
        return await start_engine(config, progress=progress, launch=launch, patience=patience, totals=totals)

    engine = await start(config, progress)
    rules = restarts or Restarts()
    limit = max(rules.least, rules.longer * (loop.time() - began))
    return SupervisedEngine(engine, config, totals, lambda plan: asyncio.wait_for(start(plan), limit), rules.window)


class SupervisedEngine:
    """See `poot_batch.process.interface.EngineClient`. One engine after another, all with the plan of the first.

    The requests of a lost engine end with an error: any of them may be what broke it. Its counters are carried on.
    """

    def __init__(
        self,
        engine: ProcessEngine,
        config: EngineConfig,
        totals: Totals,
        start: Callable[[EngineConfig], Awaitable[ProcessEngine]],
        window: float,
    ) -> None:
        self.info = engine.info
        self._engine, self._totals, self._start, self._window = engine, totals, start, window
        self._config = config
        self._last_id = 0
        # Nothing is started any more; the engine that runs, if one does, may go on.
        self._final = False
        # The engine that runs was told to end.
        self._closing = False
        self._restarting: asyncio.Task[None] | None = None
        self._supervising = asyncio.create_task(self._supervise())

    @property
    def state(self) -> EngineState:
        state = self._engine.state
        return "restarting" if state == "dead" and not self._final else state

    @property
    def pid(self) -> int:
        """The process of the engine, or of the one that was lost last."""
        return self._engine.pid

    def next_request_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def submit(self, request: GenerateRequest) -> Stream:
        if self.state == "restarting":
            raise EngineRestartingError("the engine was lost and is being started again; try again later")
        return self._engine.submit(request)

    async def stats(self) -> EngineStats:
        if self.state == "restarting":
            return self._totals.unheard(0)
        try:
            return await self._engine.stats()
        except EngineDeadError:
            if self._final:
                raise
            return self._totals.unheard(0)

    async def drain(self, timeout_seconds: float) -> None:
        """See `EngineClient.drain`. A restart under way is given up."""
        await self._finish()
        await self._engine.drain(timeout_seconds)

    async def close(self) -> None:
        await self._finish()
        self._closing = self._closing or self._engine.state != "dead"
        await self._engine.close()
        await asyncio.wait({self._supervising})

    async def _finish(self) -> None:
        """From now on nothing is started."""
        self._final = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait({self._restarting})

    async def _supervise(self) -> None:
        try:
            await self._engine_after_engine()
        except Exception:
            _log.exception("the engine is watched no more")
        finally:
            self._final = True

    async def _engine_after_engine(self) -> None:
        """Returns when the last engine is lost, or has ended as it was told to."""
        loop = asyncio.get_running_loop()
        # When the engine of now began to serve, if it is not the first.
        restarted: float | None = None
        while True:
            end = await self._engine.ended()
            if self._closing and end.in_order:
                return
            if self._final:
                _log.error("the engine is lost (%s) while the server drains, and is not started again", end)
                return
            if restarted is not None and loop.time() - restarted < self._window:
                _log.error("the engine is lost again, %.0f s after its restart (%s)", loop.time() - restarted, end)
                return
            _log.error("the engine is lost (%s): its requests end with an error, and it is started again", end)
            lost = loop.time()
            self._restarting = asyncio.create_task(self._restart())
            await asyncio.wait({self._restarting})
            if self._restarting.cancelled():
                return
            try:
                self._restarting.result()
            except (StartError, TimeoutError, OSError) as error:
                _log.error("the engine could not be started again: %s", str(error) or "it took too long")
                return
            restarted = loop.time()
            _log.warning("the engine serves again, after %.1f s", restarted - lost)

    async def _restart(self) -> None:
        """Put another engine in the place of the lost one. Raises StartError, TimeoutError or OSError."""
        engine = await self._start(self._plan())
        await self._check(engine)
        self._engine, self.info = engine, engine.info
        self._totals.restarts += 1

    def _plan(self) -> EngineConfig:
        """What the first engine settled on, as wishes."""
        info = self.info
        return replace(self._config, backend=info.backend, rows=info.rows, max_seq=info.max_seq)

    async def _check(self, engine: ProcessEngine) -> None:
        """Raises StartError if an engine has not settled on the plan of the one before, and ends it."""
        if _promises(engine.info) != _promises(self.info):
            await engine.close()
            raise StartError(
                f"it settled on {engine.info.rows} rows of {engine.info.max_seq} positions, "
                f"where it had {self.info.rows} of {self.info.max_seq}"
            )


def _promises(info: EngineInfo) -> tuple[int, int, int]:
    """What requests that are being made count on."""
    return info.rows, info.max_seq, info.vocab_size
