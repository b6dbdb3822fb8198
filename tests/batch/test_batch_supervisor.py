"""What the supervisor does about engines that are lost, with engines that are none."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from poot_batch.errors import EngineDeadError, EngineRestartingError, StartError
from poot_batch.process import client, frames
from poot_batch.process.client import ProcessEngine
from poot_batch.process.launch import End
from poot_batch.process.supervisor import SupervisedEngine
from poot_batch.process.totals import Totals
from poot_batch.process.watch import Patience
from poot_batch.request import EngineConfig, EngineInfo, EngineStats, GenerateRequest, Output

KILLED = "engine 0 fell over; its process was ended by SIGKILL"
CONFIG = EngineConfig(model="fake", rows=64, max_seq=4096)


@dataclass
class FakeEngine:
    """A ProcessEngine as the supervisor sees it. `die` is how it is lost."""

    info: EngineInfo
    pid: int = 0
    state: str = "serving"
    end: End | None = None
    last: End = field(default_factory=lambda: End(0))
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    submitted: list[GenerateRequest] = field(default_factory=list)

    def die(self, code: int | None = -9) -> None:
        self.state, self.end = "dead", End(code, f"engine {self.pid} fell over")
        self.gone.set()

    async def ended(self) -> End:
        await self.gone.wait()
        assert self.end is not None
        return self.end

    def submit(self, request: GenerateRequest) -> None:
        self.submitted.append(request)

    async def stats(self) -> EngineStats:
        if self.state == "dead":
            raise EngineDeadError("gone")
        return EngineStats(inflight=3)

    async def drain(self, timeout_seconds: float) -> None:
        if self.state == "serving":
            self.state = "draining"

    async def close(self) -> None:
        """Ends in order, unless it has ended, or gives up (`last`) at this very time."""
        if self.state != "dead":
            self.state, self.end = "dead", self.last
            self.gone.set()


class World:
    """The engines of one supervisor. `starts` says what each restart gives: by default another engine."""

    def __init__(self, info: EngineInfo, window: float) -> None:
        self.engines = [FakeEngine(info)]
        self.plans: list[EngineConfig] = []
        self.starts: Callable[[], Awaitable[FakeEngine]] = self.another
        self.totals = Totals()
        start: Any = self._start
        first: Any = self.engines[0]
        self.engine = SupervisedEngine(first, CONFIG, self.totals, start, window)

    async def another(self, **changes: Any) -> FakeEngine:
        from msgspec.structs import replace

        self.engines.append(FakeEngine(replace(self.engines[0].info, **changes), pid=len(self.engines)))
        return self.engines[-1]

    async def _start(self, plan: EngineConfig) -> FakeEngine:
        self.plans.append(plan)
        return await self.starts()

    async def lose(self) -> None:
        """Lose the engine of now, and let everything come of it that can."""
        self.engines[-1].die()
        assert self.engine.state == "restarting"
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
def play(info_of: Callable[..., EngineInfo]) -> Callable[..., None]:
    def run(part: Callable[[World], Coroutine[Any, Any, None]], *, window: float = 600.0) -> None:
        async def main() -> None:
            world = World(info_of(rows=2, max_seq=128), window)
            await part(world)
            await world.engine.close()

        asyncio.run(main())

    return run


@dataclass
class FakeChild:
    """A process that ends when it is killed."""

    lifeline: socket.socket
    killed: bool = False
    pid: int = 1

    def kill(self) -> None:
        self.killed = True

    def wait(self, seconds: float) -> int:
        return -9


class FakeIncoming:
    """Frames that come when `frames` gets them; None is the end."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Any] = asyncio.Queue()

    async def next(self) -> Any:
        return await self.frames.get()


class FakeWriter:
    """Keeps what is written, as a transport does whose other end reads nothing."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.transport = self

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.written))

    def close(self) -> None:
        pass


def test_what_a_given_up_engine_says_comes_too_late(info_of: Callable[..., EngineInfo]) -> None:
    """Its figures would be counted twice, and its output would come after the end."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        child: Any = FakeChild(ours)
        incoming: Any = FakeIncoming()
        writer: Any = FakeWriter()
        totals = Totals()
        patience = Patience(look=0.001, stalled=0.001, lost=0.002)
        with theirs:
            engine = ProcessEngine(child, incoming, writer, info_of(), patience=patience, totals=totals)
            totals.heard(EngineStats(steps=7))
            stream = engine.submit(GenerateRequest(id=1, prompt=(1,)))
            outputs = [output async for output in stream]
            assert child.killed
            incoming.frames.put_nowait(frames.Stats(1, EngineStats(steps=9)))
            incoming.frames.put_nowait(frames.pack_outputs([Output(request_id=1, tokens=(4,))]))
            incoming.frames.put_nowait(None)
            assert "has given no sign of life" in str(await engine.ended())
        assert [(output.tokens, output.error_code) for output in outputs] == [((), "engine_dead")]
        stats = totals.unheard(0)
        assert (stats.steps, stats.requests_total, stats.requests_errored) == (7, 1, 1)

    asyncio.run(main())


def request(world: World) -> GenerateRequest:
    return GenerateRequest(id=world.engine.next_request_id(), prompt=(1,))


def test_the_plan_of_a_restart_is_what_was_settled_on(play: Callable[..., None]) -> None:
    async def part(world: World) -> None:
        world.engine.submit(request(world))
        await world.lose()
        assert (world.engine.state, world.engine.pid, world.totals.restarts) == ("serving", 1, 1)
        (plan,) = world.plans
        assert (plan.model, plan.backend, plan.rows, plan.max_seq) == ("fake", "fake", 2, 128)
        world.engine.submit(request(world))
        # Ids go on: an output of one engine is never taken for one of another.
        assert [[each.id for each in engine.submitted] for engine in world.engines] == [[1], [2]]
        assert (await world.engine.stats()).inflight == 3

    play(part)


def test_a_second_loss_soon_after_is_the_end(play: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    async def part(world: World) -> None:
        await world.lose()
        await world.lose()
        assert (world.engine.state, len(world.plans)) == ("dead", 1)
        with pytest.raises(EngineDeadError):
            await world.engine.stats()

    with caplog.at_level(logging.WARNING):
        play(part)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING", "ERROR"]
    first, _, last = (record.getMessage() for record in caplog.records)
    assert first.startswith(f"the engine is lost ({KILLED}): ")
    assert last == f"the engine is lost again, 0 s after its restart ({KILLED.replace('0', '1')})"


def test_a_loss_long_after_the_last_is_like_the_first(play: Callable[..., None]) -> None:
    async def part(world: World) -> None:
        for restarts in (1, 2, 3):
            await world.lose()
            assert (world.engine.state, world.totals.restarts) == ("serving", restarts)

    play(part, window=0.0)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (StartError("the device is gone"), "the device is gone"),
        (TimeoutError(), "it took too long"),
        (OSError(11, "no more processes"), "no more processes"),
    ],
)
def test_a_restart_that_fails_is_the_end(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture, error: Exception, says: str
) -> None:
    async def part(world: World) -> None:
        async def fails() -> FakeEngine:
            raise error

        world.starts = fails
        await world.lose()
        assert world.engine.state == "dead"

    with caplog.at_level(logging.ERROR):
        play(part)
    assert "could not be started again: " in caplog.records[-1].getMessage()
    assert says in caplog.records[-1].getMessage()


@pytest.mark.parametrize("changes", [{"rows": 1}, {"max_seq": 64}, {"vocab_size": 61}])
def test_another_plan_is_no_successor(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture, changes: dict[str, int]
) -> None:
    """An engine with fewer rows, or shorter ones, cannot keep what requests were told."""

    async def part(world: World) -> None:
        world.starts = lambda: world.another(**changes)
        await world.lose()
        assert world.engine.state == "dead"
        assert world.engines[-1].state == "dead"
        assert world.engine.info == world.engines[0].info

    with caplog.at_level(logging.ERROR):
        play(part)
    assert "it settled on" in caplog.text


def test_while_it_starts_again(play: Callable[..., None]) -> None:
    """New requests are refused, figures are those told last, and a drain gives the restart up."""

    async def part(world: World) -> None:
        given_up = asyncio.Event()

        async def never() -> FakeEngine:
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()
            raise AssertionError

        world.starts = never
        world.totals.heard(EngineStats(steps=7, inflight=3))
        world.totals.lost()
        await world.lose()
        assert world.engine.state == "restarting"
        with pytest.raises(EngineRestartingError, match="started again"):
            world.engine.submit(request(world))
        stats = await world.engine.stats()
        assert (stats.steps, stats.inflight) == (7, 0)
        await world.engine.drain(5.0)
        assert given_up.is_set()
        assert world.engine.state == "dead"

    play(part)


LOST_LAST = "the engine is lost ({}) while the server drains, and is not started again"


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ("in the drain", [KILLED]),
        ("before its exit code is known", [KILLED]),
        ("as it is closed", ["it gave up; its process ended with code 1"]),
        ("never", []),
    ],
)
def test_what_is_lost_at_the_end_is_told_once_and_not_started_again(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture, when: str, told: list[str]
) -> None:
    async def part(world: World) -> None:
        (engine,) = world.engines
        if when == "before its exit code is known":
            engine.die()
        await world.engine.drain(5.0)
        if when == "in the drain":
            assert world.engine.state == "draining"
            engine.die()
        if when == "as it is closed":
            engine.last = End(1, "it gave up")
        await world.engine.close()
        assert (world.engine.state, world.plans) == ("dead", [])

    with caplog.at_level(logging.WARNING):
        play(part)
    assert [record.getMessage() for record in caplog.records] == [LOST_LAST.format(why) for why in told]


def test_a_request_that_is_cancelled_while_the_engine_is_silent_ends_as_cancelled(
    info_of: Callable[..., EngineInfo],
) -> None:
    """At once, and it stays so when the engine is lost, or says otherwise, afterwards."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        child: Any = FakeChild(ours)
        incoming: Any = FakeIncoming()
        writer: Any = FakeWriter()
        totals = Totals()
        with theirs:
            engine = ProcessEngine(child, incoming, writer, info_of(), patience=Patience(), totals=totals)
            waiting, running = (engine.submit(GenerateRequest(id=number, prompt=(1,))) for number in (1, 2))
            waiting.cancel()
            waiting.cancel()
            assert [output.finish async for output in waiting] == ["abort"]
            cancels = [frames.decode_to_engine(data[frames.HEADER.size :]) for data in writer.written[2:]]
            assert cancels == [frames.Cancel(1)]
            incoming.frames.put_nowait(frames.pack_outputs([Output(request_id=1, finish="length")]))
            incoming.frames.put_nowait(None)
            assert [output.error_code async for output in running] == ["engine_dead"]
            await engine.ended()
        stats = totals.unheard(0)
        assert (stats.requests_cancelled, stats.requests_errored, stats.requests_completed) == (1, 1, 0)

    asyncio.run(main())


def test_an_engine_that_reads_nothing_is_sent_no_more(
    info_of: Callable[..., EngineInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come and go during one long step."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        child: Any = FakeChild(ours)
        incoming: Any = FakeIncoming()
        writer: Any = FakeWriter()
        monkeypatch.setattr(client, "MOST_UNREAD", 1000)
        with theirs:
            engine = ProcessEngine(child, incoming, writer, info_of(), patience=Patience(), totals=Totals())
            with pytest.raises(EngineRestartingError, match="has not read"):
                for number in range(1000):
                    engine.submit(GenerateRequest(id=number, prompt=(1, 2, 3))).cancel()
            assert 1000 < len(b"".join(writer.written)) < 1200
            writer.written.clear()
            engine.submit(GenerateRequest(id=1000, prompt=(1,)))
            incoming.frames.put_nowait(None)
            await engine.ended()

    asyncio.run(main())
