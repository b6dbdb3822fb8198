"""Engine processes that die, stand still or break, on the null device, and what their clients and successors see."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from msgspec.structs import replace

from poot_batch.errors import EngineDeadError, EngineRestartingError, StartError
from poot_batch.process import client
from poot_batch.process.launch import WORKER, Child, EarlyLaunch, launch_engine
from poot_batch.process.start import start_engine
from poot_batch.process.stream import Stream
from poot_batch.process.supervisor import Restarts, SupervisedEngine, start_supervised
from poot_batch.process.totals import Totals
from poot_batch.process.watch import Patience
from poot_batch.request import EngineConfig, GenerateRequest, Output, SamplingParams

T = TypeVar("T")
SECONDS = 60.0
MAX_SEQ = 128
FAULTY = Path(__file__).with_name("faulty_worker.py")
HUNG = (sys.executable, "-c", "import time; time.sleep(60)")
# A beat comes every half second, and may be late on a busy machine.
SHORT = Patience(look=0.05, stalled=1.2, lost=2.4)
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends a stopped process with its parent")


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, SECONDS))


def faulty(fault: str) -> tuple[str, ...]:
    return (sys.executable, str(FAULTY), fault)


@pytest.fixture
def config(smollm2_path: Path) -> EngineConfig:
    return EngineConfig(model=str(smollm2_path), backend="null", rows=2, max_seq=MAX_SEQ)


@pytest.fixture
def supervised(config: EngineConfig) -> Callable[..., Any]:
    """supervised(*commands, ...) -> an engine that is started by each command in turn, and closed at the end."""

    @asynccontextmanager
    async def start(*commands: tuple[str, ...], **rules: Any) -> AsyncIterator[SupervisedEngine]:
        turn = iter(commands)
        engine = await start_supervised(config, launch=lambda: launch_engine(next(turn, WORKER)), **rules)
        try:
            yield engine
        finally:
            await engine.close()

    return start


def submit(engine: Any, **fields: Any) -> Stream:
    given = {"prompt": (1, 2, 3), "ignore_eos": True, "sampling": SamplingParams(temperature=0.0), **fields}
    return engine.submit(GenerateRequest(id=engine.next_request_id(), **given))


async def read(stream: Stream) -> list[Output]:
    return [output async for output in stream]


def count(outputs: list[Output]) -> int:
    return sum(len(output.tokens) for output in outputs)


async def until(engine: Any, state: str) -> None:
    """Returns in the state; the test's own limit is what ends the wait otherwise."""
    while engine.state != state:
        await asyncio.sleep(0.01)


def descriptors() -> int:
    return psutil.Process().num_fds()


async def answers(engine: Any, tokens: int = 5) -> None:
    assert count(await read(submit(engine, max_tokens=tokens))) == tokens


def test_a_killed_engine_is_started_again_once(
    supervised: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with supervised() as engine:
            first, info, held = engine.pid, engine.info, descriptors()
            # What a service manager sends to every process of a service is for the server alone.
            os.kill(first, signal.SIGTERM)
            await answers(engine)
            # Two that pause at their credit, one that waits for a row.
            streams = [submit(engine) for _ in range(3)]
            before = await engine.stats()
            os.kill(first, signal.SIGKILL)
            ends = [(await read(stream))[-1] for stream in streams]
            assert [(end.finish, end.error_code) for end in ends] == [("error", "engine_dead")] * 3
            assert engine.state == "restarting"
            with pytest.raises(EngineRestartingError, match="started again"):
                submit(engine)
            between = await engine.stats()
            assert (between.inflight, between.queue_depth, between.kv_blocks_used) == (0, 0, 0)
            assert (between.requests_total, between.requests_errored, between.restarts) == (4, 3, 0)

            await until(engine, "serving")
            assert engine.pid != first and not psutil.pid_exists(first)
            assert (engine.info.rows, engine.info.max_seq, engine.info.backend) == (info.rows, info.max_seq, "null")
            await answers(engine)
            after = await engine.stats()
            assert (after.requests_total, after.requests_completed, after.requests_errored) == (5, 2, 3)
            assert (after.restarts, after.inflight) == (1, 0)
            for name in ("prompt_tokens", "completion_tokens", "steps", "step_wall_seconds", "step_busy_seconds"):
                assert getattr(between, name) >= getattr(before, name)
                assert getattr(after, name) > getattr(between, name)
            assert descriptors() == held

            os.kill(engine.pid, signal.SIGKILL)
            await until(engine, "dead")
            with pytest.raises(EngineDeadError):
                submit(engine)
            with pytest.raises(EngineDeadError):
                await engine.stats()

    with caplog.at_level(logging.WARNING):
        run(main())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0].startswith("the engine is lost (its process was ended by SIGKILL): ")
    assert lines[1].startswith("the engine serves again, after ")
    assert lines[2].startswith("the engine is lost again, ") and "SIGKILL" in lines[2]


def test_a_stopped_engine_that_goes_on_has_lost_nothing(
    config: EngineConfig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        engine = await start_engine(config, patience=Patience(look=0.05, stalled=1.2, lost=60.0))
        try:
            stream = submit(engine, max_tokens=100)
            first = await anext(aiter(stream))
            os.kill(engine.pid, signal.SIGSTOP)
            await until(engine, "stalled")
            with pytest.raises(EngineRestartingError, match="silent"):
                submit(engine)
            assert (await engine.stats()).inflight == 1
            os.kill(engine.pid, signal.SIGCONT)
            await until(engine, "serving")
            assert len(first.tokens) + count(await read(stream)) == 100
            await answers(engine)
            # A close waits for a while, and then ends it.
            monkeypatch.setattr(client, "EXIT_SECONDS", 0.2)
            os.kill(engine.pid, signal.SIGSTOP)
        finally:
            await engine.close()
        assert engine.state == "dead"
        assert not psutil.pid_exists(engine.pid)

    with caplog.at_level(logging.WARNING):
        run(main())
    assert [record.getMessage().split(" for ")[0] for record in caplog.records] == [
        "the engine has been silent",
        "the engine is heard again: requests are taken",
    ]


def test_requests_end_while_their_engine_stands_still(config: EngineConfig) -> None:
    """Cancelled ones at once and as such, the others when it is lost."""

    async def main() -> None:
        totals = Totals()
        engine = await start_engine(config, totals=totals)
        streams = [submit(engine) for _ in range(3)]
        try:
            while not streams[1].opened:
                await engine.stats()
            os.kill(engine.pid, signal.SIGSTOP)
            streams[2].cancel()
            assert [output.finish for output in await read(streams[2])] == ["abort"]
            assert engine.state == "serving"
            os.kill(engine.pid, signal.SIGKILL)
            assert [(await read(stream))[-1].error_code for stream in streams[:2]] == ["engine_dead"] * 2
        finally:
            await engine.close()
        figures = totals.unheard(0)
        assert (figures.requests_cancelled, figures.requests_errored) == (1, 2)

    run(main())


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (f"driver.submit:9:{int(signal.SIGKILL)}", r"its process was ended by SIGKILL"),
        (
            "driver.submit:9:fail,driver.submit:10:fail",
            r"the engine failed on a step: .*; its process ended with code 1",
        ),
    ],
)
def test_an_engine_that_is_lost_in_a_drain_leaves_its_reason(
    supervised: Callable[..., Any], caplog: pytest.LogCaptureFixture, fault: str, why: str
) -> None:
    async def main() -> None:
        async with supervised(faulty(fault)) as engine:
            streams = [submit(engine) for _ in range(3)]
            await engine.drain(SECONDS)
            assert (await read(streams[2]))[-1].error_code in ("engine_dead", "engine_fault")

    with caplog.at_level(logging.WARNING):
        run(main())
    (line,) = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(rf"the engine is lost \({why}\) while the server drains, and is not started again", line)


def test_an_engine_that_stands_still_is_ended_and_replaced(
    supervised: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It stops in the middle of a step, as one whose device hangs would."""

    async def main() -> None:
        async with supervised(faulty(f"driver.submit:3:{int(signal.SIGSTOP)}"), patience=SHORT) as engine:
            first = engine.pid
            loop = asyncio.get_running_loop()
            began = loop.time()
            ends = await asyncio.gather(*[read(submit(engine)) for _ in range(3)])
            assert loop.time() - began < SHORT.lost + 2.0
            assert [end[-1].error_code for end in ends] == ["engine_dead"] * 3
            assert "has given no sign of life" in (ends[0][-1].error_message or "")
            await until(engine, "serving")
            assert not psutil.pid_exists(first)
            await answers(engine)

    with caplog.at_level(logging.ERROR):
        run(main())
    assert "has given no sign of life for 2 s; its process was ended by SIGKILL" in caplog.text


def test_a_step_that_never_ends_loses_the_engine(config: EngineConfig) -> None:
    """Beats go on: it is the step that takes too long."""

    async def main() -> None:
        hanging = (sys.executable, "-c", HANGING)
        engine = await start_engine(
            config, launch=lambda: launch_engine(hanging), patience=Patience(look=0.05, lost=60.0, step=0.4)
        )
        (end,) = await read(submit(engine))
        assert end.error_code == "engine_dead" and "in one step" in (end.error_message or "")
        assert "ended by SIGKILL" in str(await engine.ended())

    run(main())


HANGING = """
import sys, threading
from poot_batch.faults import armed
from poot_batch.process.worker import main

class Hangs:
    def reach(self, point):
        if point == "driver.submit":
            threading.Event().wait()

with armed(Hangs()):
    main(sys.argv[1:])
"""


def test_a_restart_that_takes_too_long_is_the_end(
    supervised: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with supervised(WORKER, HUNG, restarts=Restarts(longer=0.0, least=0.4)) as engine:
            os.kill(engine.pid, signal.SIGKILL)
            await until(engine, "dead")
        assert psutil.Process().children() == []

    with caplog.at_level(logging.ERROR):
        run(main())
    assert "could not be started again: it took too long" in caplog.text


@pytest.mark.parametrize("told", [False, True], ids=["", "told to start"])
def test_an_engine_that_is_launched_early_serves_and_its_successor_is_another(config: EngineConfig, told: bool) -> None:
    async def main() -> None:
        with closing(EarlyLaunch(config if told else None)) as launch:
            (first,) = psutil.Process().children()
            engine = await start_supervised(config, launch=launch)
            try:
                assert engine.pid == first.pid
                launch.close()  # it has an owner
                await answers(engine)
                os.kill(first.pid, signal.SIGKILL)
                await until(engine, "restarting")
                await until(engine, "serving")
                assert engine.pid != first.pid
            finally:
                await engine.close()
        assert psutil.Process().children() == []

    run(main())


@pytest.mark.parametrize("told", [False, True], ids=["", "told to start"])
def test_an_engine_that_is_launched_early_and_not_wanted_is_ended(config: EngineConfig, told: bool) -> None:
    held = descriptors()
    with closing(EarlyLaunch(config if told else None)):
        assert len(psutil.Process().children()) == 1
    assert psutil.Process().children() == []
    assert descriptors() == held


def test_an_engine_that_is_lost_before_it_is_wanted(config: EngineConfig) -> None:
    async def main() -> None:
        with closing(EarlyLaunch(config)) as launch:
            (first,) = psutil.Process().children()
            first.kill()
            while first.status() != psutil.STATUS_ZOMBIE:
                pass
            with pytest.raises(StartError, match="before it was ready"):
                await start_supervised(config, launch=launch)

    run(main())


def test_files_of_the_working_directory_are_no_modules_of_the_engine(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a model's folder, whose code is never run."""
    for name in ("json", "msgspec", "numpy", "torch", "poot_batch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        engine = await start_supervised(config)
        await engine.close()

    run(main())
    assert not (tmp_path / "run").exists()


def test_an_engine_that_was_told_to_start_with_something_else_is_ended(config: EngineConfig) -> None:
    async def main() -> None:
        with closing(EarlyLaunch(replace(config, rows=1))) as launch, pytest.raises(ValueError, match="was told to"):
            await start_supervised(config, launch=launch)
        assert psutil.Process().children() == []

    run(main())


def test_an_engine_that_cannot_be_told_to_start_is_found_lost(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> Child:
        child = launch_engine((sys.executable, "-c", ""))
        child.process.wait()
        return child

    async def main() -> None:
        monkeypatch.setattr("poot_batch.process.launch.launch_engine", gone)
        with closing(EarlyLaunch(config)) as launch, pytest.raises(StartError, match="before it was ready"):
            await start_supervised(config, launch=launch)

    run(main())


def test_logits_that_are_not_finite_end_their_own_row(config: EngineConfig) -> None:
    async def main() -> None:
        def launch() -> Child:
            return launch_engine(faulty("driver.logits:4:fail"))

        engine = await start_engine(config, launch=launch)
        try:
            spoilt, other = await asyncio.gather(*[read(submit(engine, max_tokens=20)) for _ in range(2)])
            assert (spoilt[-1].finish, spoilt[-1].error_code) == ("error", "non_finite_logits")
            assert (other[-1].finish, count(other)) == ("length", 20)
            await answers(engine)
            stats = await engine.stats()
            assert (stats.requests_completed, stats.requests_errored, stats.kv_blocks_used) == (2, 1, 0)
        finally:
            await engine.close()

    run(main())


PARENT = """
import asyncio, os, signal, sys
from poot_batch.process.start import start_engine
from poot_batch.request import EngineConfig, GenerateRequest

async def main():
    engine = await start_engine(EngineConfig(model=sys.argv[1], backend="null", rows=1, max_seq=64))
    engine.submit(GenerateRequest(id=1, prompt=(1,), ignore_eos=True))
    if sys.argv[2] == "stopped":
        os.kill(engine.pid, signal.SIGSTOP)
        os.waitpid(engine.pid, os.WUNTRACED)
    print(engine.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@linux
@pytest.mark.parametrize("state", ["running", "stopped"])
def test_no_engine_outlives_its_server(smollm2_path: Path, state: str) -> None:
    command = [sys.executable, "-c", PARENT, str(smollm2_path), state]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            engine = psutil.Process(int(parent.stdout.readline()))
            assert (engine.status() == psutil.STATUS_STOPPED) == (state == "stopped")
            parent.kill()
            gone, _ = psutil.wait_procs([engine], timeout=10)
            assert gone == [engine]
        finally:
            parent.kill()
