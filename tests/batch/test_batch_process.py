"""The engine process, on the null device: it starts fast and says token 0 for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from poot_batch.errors import EngineDeadError, EngineDrainingError, RequestError, StartError
from poot_batch.process import start
from poot_batch.process.client import ProcessEngine
from poot_batch.process.launch import Child, launch_engine
from poot_batch.process.start import start_engine
from poot_batch.process.stream import CREDIT, Stream
from poot_batch.request import EngineConfig, GenerateRequest, Output, SamplingParams

T = TypeVar("T")
SECONDS = 60.0
MAX_SEQ = 512  # so much more than the credit of a stream that one which is read once has not ended


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, SECONDS))


def config_of(path: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(**{"model": str(path), "backend": "null", "rows": 2, "max_seq": MAX_SEQ, **changes})


def submit(engine: ProcessEngine, **fields: Any) -> Stream:
    given = {"prompt": (1, 2, 3), "ignore_eos": True, "sampling": SamplingParams(temperature=0.0), **fields}
    return engine.submit(GenerateRequest(id=engine.next_request_id(), **given))


async def read(stream: Stream) -> list[Output]:
    return [output async for output in stream]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def count(outputs: list[Output]) -> int:
    return sum(len(output.tokens) for output in outputs)


async def ordinary_requests(engine: ProcessEngine) -> None:
    streams = [submit(engine, max_tokens=most) for most in (1, 20, 100, 7)]
    outputs = await asyncio.gather(*map(read, streams))
    assert [count(given) for given in outputs] == [1, 20, 100, 7]
    assert {given[-1].finish for given in outputs} == {"length"}
    assert {given[-1].prompt_tokens for given in outputs} == {3}
    # Token 0 is an end token of this model.
    assert [(output.tokens, output.finish) for output in await read(submit(engine, ignore_eos=False))] == [((), "stop")]
    (output,) = await read(submit(engine, prompt=tuple(range(2, 102)), max_tokens=1))
    assert (output.finish, output.prompt_tokens) == ("length", 100)
    with pytest.raises(RequestError):
        submit(engine, prompt=())
    stats = await engine.stats()
    assert (stats.requests_total, stats.requests_completed, stats.inflight) == (6, 6, 0)
    assert (stats.prompt_tokens, stats.completion_tokens) == (115, 129)


async def waiting_for_a_row(engine: ProcessEngine) -> None:
    """Of three requests on two rows one waits, and is opened when a row is free."""
    first, second, third = (submit(engine, max_tokens=120) for _ in range(3))
    while not (first.opened and second.opened):
        await engine.stats()
    assert not third.opened and (await engine.stats()).queue_depth == 1
    first.cancel()
    assert (await read(first))[-1].finish == "abort"
    assert count(await read(third)) == 120 and third.opened
    second.cancel()
    assert (await read(second))[-1].finish == "abort"


async def slow_reader(engine: ProcessEngine) -> None:
    """The row of one who does not read stops at its credit; the other row goes on to its end."""
    before = (await engine.stats()).completion_tokens
    slow = submit(engine, max_tokens=120)
    assert count(await read(submit(engine, max_tokens=110))) == 110
    stats = await engine.stats()
    assert stats.completion_tokens == before + 110 + CREDIT
    assert (stats.inflight, stats.queue_depth) == (1, 0)
    assert count(await read(slow)) == 120


async def cancels(engine: ProcessEngine) -> None:
    streams = [submit(engine) for _ in range(4)]
    async for _ in streams[0]:
        break
    for stream in streams:
        stream.cancel()
        stream.cancel()
    for stream in streams:
        assert (await read(stream))[-1].finish == "abort"
        stream.cancel()
    stats = await engine.stats()
    assert (stats.requests_cancelled, stats.inflight, stats.kv_blocks_used) == (4, 0, 0)


async def shared_prompts(engine: ProcessEngine) -> None:
    """A prompt that follows itself is not sent again, and every request has its own all the same."""
    sent: list[int] = []
    write = engine._writer.write
    engine._writer.write = lambda data: (sent.append(len(data)), write(data))
    long, short = tuple(range(2, 102)), tuple(range(2, 22))
    prompts = (long, long, short, long)
    streams = [submit(engine, prompt=prompt, max_tokens=1) for prompt in prompts]
    engine._writer.write = write
    assert [size > 4 * len(prompt) for size, prompt in zip(sent, prompts, strict=True)] == [True, False, True, True]
    outputs = await asyncio.gather(*map(read, streams))
    assert [given[-1].prompt_tokens for given in outputs] == [100, 100, 20, 100]


async def drained(engine: ProcessEngine) -> None:
    unread, short = submit(engine), submit(engine, max_tokens=5)
    reader = asyncio.create_task(read(short))
    await engine.drain(0.3)
    assert engine.state == "draining"
    assert count(await reader) == 5
    assert (await read(unread))[-1].finish == "abort"
    with pytest.raises(EngineDrainingError):
        submit(engine)
    await engine.drain(0.0)


async def closed(engine: ProcessEngine) -> None:
    assert engine.state == "dead"
    assert not exists(engine.pid)
    await engine.close()
    with pytest.raises(EngineDeadError):
        submit(engine)
    with pytest.raises(EngineDeadError):
        await engine.stats()


def test_a_life(smollm2_path: Path) -> None:
    phases: dict[str, tuple[int, int]] = {}

    async def main() -> None:
        engine = await start_engine(
            config_of(smollm2_path), progress=lambda phase, done, total: phases.update({phase: (done, total)})
        )
        try:
            assert (engine.state, engine.info.backend, engine.info.rows) == ("serving", "null", 2)
            for part in (ordinary_requests, slow_reader, cancels, shared_prompts, waiting_for_a_row, drained):
                await part(engine)
        finally:
            await engine.close()
        await closed(engine)

    run(main())
    assert {"model", "device", "entries"} <= set(phases)


def test_an_engine_starts_where_nothing_is_left_and_leaves_nothing(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its working directory was deleted, as by a new release of a service, and its home holds no folder."""
    gone, home, temporary = (tmp_path / name for name in ("gone", "home", "temporary"))
    gone.mkdir()
    temporary.mkdir()
    home.write_text("")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.chdir(gone)
    gone.rmdir()

    async def main() -> None:
        engine = await start_engine(config_of(smollm2_path, backend="cpu", rows=1, max_seq=64))
        try:
            assert list(temporary.iterdir())
            assert count(await read(submit(engine, max_tokens=2))) == 2
        finally:
            await engine.close()

    run(main())
    assert not list(temporary.iterdir())


def test_a_killed_engine_ends_every_stream(smollm2_path: Path) -> None:
    async def main() -> None:
        engine = await start_engine(config_of(smollm2_path))
        # Two that run and pause at their credit, one that waits for a row, one that is read.
        streams = [submit(engine) for _ in range(3)]
        reader = asyncio.create_task(read(streams[0]))
        await engine.stats()
        asked = asyncio.create_task(engine.stats())
        os.kill(engine.pid, signal.SIGKILL)
        ends = [await reader, *[await read(stream) for stream in streams[1:]]]
        assert {given[-1].finish for given in ends} <= {"error", "length"}
        assert [given[-1].error_code for given in ends[1:]] == ["engine_dead", "engine_dead"]
        assert engine.state == "dead"
        with pytest.raises(EngineDeadError, match="gone"):
            submit(engine)
        try:
            await asked
        except EngineDeadError as error:
            assert "gone" in str(error)
        await engine.drain(5.0)
        await asyncio.gather(engine.close(), engine.close())

    run(main())


def test_close_ends_open_streams_with_abort(smollm2_path: Path) -> None:
    async def main() -> None:
        engine = await start_engine(config_of(smollm2_path))
        streams = [submit(engine) for _ in range(3)]
        reader = asyncio.create_task(read(streams[0]))
        async for _ in streams[1]:
            break
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        closing.cancel()
        await engine.close()
        for given in (await reader, *[await read(stream) for stream in streams[1:]]):
            assert given[-1].finish in ("abort", "length")
        assert (await reader)[-1].finish is not None
        assert not exists(engine.pid)

    run(main())


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"model": "/nowhere/model.gguf"}, "checkpoint_missing", "/nowhere/model.gguf"),
        ({"backend": "abacus"}, "backend_unavailable", "abacus"),
        ({"rows": 0}, "invalid_config", "rows must be between 1"),
        ({"max_seq": 1}, "invalid_config", "max_seq must be between 2"),
    ],
)
def test_a_start_that_fails_says_why(smollm2_path: Path, changes: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(StartError, match=says) as raised:
        run(start_engine(config_of(smollm2_path, **changes)))
    assert raised.value.reason_code == code


def test_a_truncated_model_is_refused_at_once(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    with smollm2_path.open("rb") as file:
        path.write_bytes(file.read(40_000_000))
    began = time.monotonic()
    with pytest.raises(StartError) as raised:
        run(start_engine(config_of(path, backend="cpu")))
    assert time.monotonic() - began < 5
    assert raised.value.reason_code == "checkpoint_format"


def test_a_cancelled_start_leaves_no_process(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Child] = []

    def launch() -> Child:
        launched.append(launch_engine())
        return launched[-1]

    monkeypatch.setattr(start, "launch_engine", launch)

    async def main() -> None:
        loading = asyncio.Event()
        starting = asyncio.create_task(
            start_engine(config_of(smollm2_path), progress=lambda phase, done, total: loading.set())
        )
        await loading.wait()
        (child,) = launched
        assert exists(child.pid)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not exists(child.pid)
        assert child.lifeline.fileno() == -1

    run(main())
