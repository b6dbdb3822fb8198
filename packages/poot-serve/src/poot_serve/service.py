"""What the routes share: the engine, the model's text side, the limits, the figures, and who is being served."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from poot_batch.process.interface import EngineClient, EngineState
from poot_models.text import TextModel
from poot_serve import __version__
from poot_serve.emit.answer import Heading
from poot_serve.errors import DrainingError, ModelNotFoundError, UnavailableError
from poot_serve.metrics import Metrics
from poot_serve.settings import Settings

T = TypeVar("T")
# A body below this many bytes is lowered on the event loop: a hand-over to a thread would cost more.
INLINE_BYTES = 4096
LOWERING_THREADS = 2


class Service:
    """Owner of the server's state. One per process; every method but those of the pool runs on the event loop."""

    def __init__(self, engine: EngineClient, text: TextModel, settings: Settings) -> None:
        self.engine = engine
        self.text = text
        self.settings = settings
        self.metrics = Metrics()
        self.created = int(time.time())
        self.draining = False
        plan = (settings.model_name, engine.info.architecture, engine.info.backend, __version__)
        self.fingerprint = "fp_" + hashlib.sha256("\0".join(plan).encode()).hexdigest()[:12]
        self._pool = ThreadPoolExecutor(LOWERING_THREADS, thread_name_prefix="lower")
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def status(self) -> EngineState:
        """The engine's state, or "draining" while this server drains and the engine still runs."""
        return "draining" if self.draining and self.engine.state == "serving" else self.engine.state

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Counts one generation request while it is served. Raises DrainingError or UnavailableError."""
        if self.status == "draining":
            raise DrainingError("the server is shutting down and takes no new requests")
        if self.status != "serving":
            raise UnavailableError("the engine is not running")
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if self._active == 0:
                self._idle.set()

    async def idle(self) -> None:
        """Returns when no generation request is being served."""
        await self._idle.wait()

    async def lower(self, size: int, work: Callable[[], T]) -> T:
        """`work()`, in a thread if the body of `size` bytes could hold the event loop."""
        if size <= INLINE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def check_model(self, name: str | None) -> None:
        """None means the served model. Raises ModelNotFoundError."""
        if name is not None and name not in (self.settings.model_name, str(self.settings.model)):
            raise ModelNotFoundError(
                f"the model {name[:256]!r} does not exist here; this server has {self.settings.model_name!r}",
                param="model",
            )

    def heading(self, prefix: str) -> Heading:
        """A new answer's heading, its id beginning with `prefix`."""
        return Heading(prefix + secrets.token_hex(12), int(time.time()), self.settings.model_name, self.fingerprint)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
