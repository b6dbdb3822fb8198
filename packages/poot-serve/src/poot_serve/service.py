"""What the routes share: the engine, the model's text side, the limits, the figures, and who is being served."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import TypeVar

from starlette.types import Scope

from poot_batch.process.interface import EngineClient, EngineState
from poot_models.text import TextModel
from poot_serve import __version__
from poot_serve.emit.answer import Heading
from poot_serve.errors import (
    RETRY_SECONDS,
    DrainingError,
    ModelNotFoundError,
    PendingLimitError,
    ReceivingLimitError,
    RestartingError,
    UnavailableError,
)
from poot_serve.heap import find_trim
from poot_serve.limits.body import Bodies
from poot_serve.limits.head import RawHeaders, body_length
from poot_serve.limits.rate import RateLimit
from poot_serve.metrics import Metrics
from poot_serve.settings import Settings

T = TypeVar("T")
# A body below this many bytes is lowered on the event loop: a hand-over to a thread would cost more.
INLINE_BYTES = 4096
LOWERING_THREADS = 2
# Some time after a body above so many bytes the memory that its work took is given back to the system.
LARGE_BYTES = 256 << 10
TRIM_SECONDS = 1.0
MOST_RECOVERY_SECONDS = 60


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads all run, so that none is started under load and their number stays."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    barrier = Barrier(threads)
    for _ in range(threads):
        pool.submit(barrier.wait)
    return pool


class Pending:
    """The requests that are being served, each during its block of this."""

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if self.count == 0:
            self._none.set()

    async def none(self) -> None:
        """Returns when there are none."""
        while self.count:
            self._none.clear()
            await self._none.wait()


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
        self._ids = random.Random(secrets.randbits(256))
        self._give_back = find_trim()
        self._trimming: asyncio.TimerHandle | None = None
        self._pool = started_pool(LOWERING_THREADS, "lower")
        self._rendering = started_pool(LOWERING_THREADS, "render")
        self._rate = RateLimit(settings.rate_limit_rpm)
        self._pending, self.bodies = Pending(), Bodies(settings.request_timeout_seconds)

    @property
    def status(self) -> EngineState:
        """The engine's state, or "draining" while this server drains and the engine still runs."""
        state = self.engine.state
        return "draining" if self.draining and state != "dead" else state

    @property
    def pending(self) -> int:
        """POSTs that are being served."""
        return self._pending.count

    @property
    def receiving(self) -> int:
        """Those of them whose body is being read."""
        return len(self.bodies)

    def admit(self, scope: Scope) -> int:
        """The length in bytes of the body of a POST that is let in. Nothing of it has been read.

        Checks, in this order, what the head says of the body, the rate, whether the server serves, the places of
        pending and of receiving requests, and the API key. Raises a ClientError, BusyError, DrainingError,
        RestartingError or UnavailableError.
        """
        settings, client = self.settings, scope.get("client")
        length = body_length(scope["head"], settings.max_body_bytes)
        self._rate.take(client[0] if client else "")
        self.check_serving()
        if self._pending.count >= (most := settings.max_pending_requests):
            raise PendingLimitError(f"{most} requests are being answered, which is as many as are taken at once")
        if len(self.bodies) >= (most := settings.max_receiving_requests):
            raise ReceivingLimitError(f"{most} requests are sending their body, which is as many as may at once")
        self.check_key(scope["headers"])
        return length

    def counted(self) -> Pending:
        """A block in which a request that was let in counts as pending."""
        return self._pending

    def check_serving(self) -> None:
        """Raises DrainingError, RestartingError or UnavailableError while no request is taken."""
        if self.engine.state == "serving" and not self.draining:
            return
        match self.status:
            case "draining":
                raise _refused_by_drain()
            case "stalled":
                raise RestartingError("the engine is silent and takes no requests", retry_after=self.retry_seconds)
            case "restarting":
                message = "the engine was lost and is being started again"
                raise RestartingError(message, retry_after=self.retry_seconds)
            case "dead":
                raise UnavailableError("the engine is not running")

    @property
    def retry_seconds(self) -> int:
        """When a request that fails for the engine's state is worth another try: if the engine may come back, after
        about what a start of it takes."""
        if self.status not in ("stalled", "restarting"):
            return RETRY_SECONDS
        return max(1, min(MOST_RECOVERY_SECONDS, math.ceil(sum(self.engine.info.start_seconds.values()))))

    def drain(self) -> None:
        """From now on nothing is taken in, nor read to its end; what has been taken in is served."""
        self.draining = True
        self.bodies.cut(_refused_by_drain)

    def check_key(self, headers: RawHeaders) -> None:
        """Raises AuthenticationError for a request without a key, if this server asks for one."""
        if self.settings.api_keys is not None:
            self.settings.api_keys.check(headers)

    async def idle(self) -> None:
        """Returns when no POST is being served."""
        await self._pending.none()

    @staticmethod
    def inline(size: int, *, renders: bool = False) -> bool:
        """Whether the work on a body of `size` bytes is so little that it is done where it comes up, on the event loop.

        What `renders` a chat never is, whatever its size: a template may take seconds over a few words, which delay
        other chats then, but nothing else.
        """
        return size <= INLINE_BYTES and not renders

    async def lower(self, size: int, work: Callable[[], T], *, renders: bool = False) -> T:
        """`work()`, in a thread unless `inline` says that none is needed.

        What `renders` a chat has threads of its own, apart from those of other work.
        """
        if self.inline(size, renders=renders):
            return work()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._rendering if renders else self._pool, work)
        finally:
            if size > LARGE_BYTES and self._trimming is None:
                self._trimming = loop.call_later(TRIM_SECONDS, self._trim)

    def _trim(self) -> None:
        """Text of some megabytes takes hundreds of them to be tokenised, which the C library would keep."""
        self._trimming = None
        with suppress(RuntimeError):  # closed
            self._pool.submit(self._give_back)

    @property
    def names(self) -> tuple[str, ...]:
        """The model's names in the API. Answers carry the first."""
        return (self.settings.model_name, *self.settings.other_names)

    def check_model(self, name: str | None) -> None:
        """None means the served model. Raises ModelNotFoundError."""
        if name is not None and name not in (*self.names, str(self.settings.model)):
            raise ModelNotFoundError(
                f"the model {name[:256]!r} does not exist here; this server has {self.settings.model_name!r}",
                param="model",
            )

    def heading(self, id: str) -> Heading:
        """A new answer's heading."""
        return Heading(id, int(time.time()), self.settings.model_name, self.fingerprint)

    def new_id(self) -> str:
        """24 hexadecimal digits that no other has; nothing about them is secret, so the system is not asked for it."""
        return f"{self._ids.getrandbits(96):024x}"

    def close(self) -> None:
        for pool in (self._pool, self._rendering):
            pool.shutdown(wait=False, cancel_futures=True)


def _refused_by_drain() -> DrainingError:
    return DrainingError("the server is shutting down and takes no new requests")
