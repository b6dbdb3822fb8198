"""Beats, the judgement of them, and figures over several engine processes: no process and no clock of its own."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from poot_batch.process import lifeline
from poot_batch.process.launch import end_of
from poot_batch.process.lifeline import Pulse
from poot_batch.process.totals import Totals
from poot_batch.process.watch import Patience, Watch
from poot_batch.request import EngineStats
from poot_batch.request.info import QUEUE_BUCKETS_MS, Histogram

PATIENCE = Patience(look=1.0, stalled=3.0, lost=6.0)


def beat(seconds: float = 0.0) -> bytes:
    """As `lifeline` describes it."""
    return struct.pack("<I", int(seconds * 1000))


def watched(looks: int, *, elapsed: float = 1.0, patience: Patience = PATIENCE) -> tuple[Watch, list[str]]:
    watch = Watch(patience, "cpu")
    return watch, [watch.look(elapsed) for _ in range(looks)]


def test_silence_stalls_and_then_loses() -> None:
    watch, verdicts = watched(6)
    assert verdicts == ["well", "well", "stalled", "stalled", "stalled", "lost"]
    assert "has given no sign of life for 6 s" in watch.reason


def test_a_beat_ends_the_silence() -> None:
    watch, verdicts = watched(4)
    assert verdicts[-1] == "stalled"
    watch.hear(beat())
    assert [watch.look(1.0) for _ in range(3)] == ["well", "well", "stalled"]


def test_beats_come_in_any_parts() -> None:
    watch, _ = watched(4)
    whole = beat() + beat(70) + beat(901)
    for at in range(len(whole) - 1):
        watch.hear(whole[at : at + 1])
    assert watch.look(1.0) == "well"  # for the step of 70 s
    watch.hear(whole[-1:])
    assert watch.look(1.0) == "lost" and "in one step for 901 s" in watch.reason


def test_who_did_not_run_itself_blames_nobody() -> None:
    """A server that stood still for an hour looks late, and has heard nothing: that is not the engine's silence."""
    watch, verdicts = watched(1, elapsed=3600.0)
    assert verdicts == ["well"] and watch.silent == 2.0


@pytest.mark.parametrize(("backend", "limit"), [("cpu", 900.0), ("null", 900.0), ("ptx", 60.0)])
def test_a_step_may_take_what_the_backend_may_need(backend: str, limit: float) -> None:
    for seconds, verdict in ((limit - 0.001, "well"), (limit, "lost")):
        watch = Watch(PATIENCE, backend)
        watch.hear(beat(seconds))
        assert watch.look(0.1) == verdict
    watch = Watch(Patience(step=5.0), backend)
    watch.hear(beat(5.0))
    assert watch.look(0.1) == "lost"


def test_a_pulse_tells_how_long_its_step_takes() -> None:
    now = iter((100.0, 101.25, 200.0, 200.0 + 2.0**40))
    pulse = Pulse(lambda: next(now))
    assert pulse.beat() == beat(0)
    pulse.begin()
    assert pulse.beat() == beat(1.25)
    pulse.end()
    assert pulse.beat() == beat(0)
    pulse.begin()
    assert pulse.beat() == b"\xff\xff\xff\xff"


def test_beats_come_until_the_other_end_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    ours, theirs = socket.socketpair()
    sent: list[bytes] = []

    class Told(Pulse):
        def beat(self) -> bytes:
            if len(sent) == 3:
                ours.close()
            sent.append(super().beat())
            return sent[-1]

    with theirs:
        lifeline.beat(theirs, Told(), seconds=0.001)
    assert ended == [1] and len(sent) == 4


def test_an_unread_lifeline_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not read for long is not what ends the engine."""
    monkeypatch.setattr(os, "_exit", lambda code: None)
    ours, theirs = socket.socketpair()
    read: list[int] = []
    beats = iter(range(100))

    class Told(Pulse):
        def beat(self) -> bytes:
            if next(beats) == 99:
                read.append(len(ours.recv(4096)))
                ours.close()
            return super().beat()

    with theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        lifeline.beat(theirs, Told(), seconds=0.0005)
    assert 0 < read[0] < 99 * len(beat())


ORPHAN = """
import os, socket, sys
from poot_batch.process.lifeline import Pulse, hold
ours, theirs = socket.socketpair()
hold(theirs, os.getppid() + int(sys.argv[1]), Pulse())
sys.exit(7)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process that its parent is gone")
@pytest.mark.parametrize(("off_by", "code"), [(0, 7), (1, 1)])
def test_a_parent_that_has_gone_already_ends_it_at_once(off_by: int, code: int) -> None:
    assert subprocess.run([sys.executable, "-c", ORPHAN, str(off_by)], check=False).returncode == code


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with code 0"),
        (1, "ended with code 1"),
        (-9, "was ended by SIGKILL"),
        (-250, "was ended by signal 250"),
        (None, "cannot be ended"),
    ],
)
def test_how_a_process_ended_in_words(code: int | None, words: str) -> None:
    assert end_of(code) == words


@pytest.fixture
def stats_of() -> Callable[..., EngineStats]:
    def make(**fields: Any) -> EngineStats:
        waits = [0] * (len(QUEUE_BUCKETS_MS) + 1)
        waits[0] = fields.pop("waited", 0)
        return EngineStats(queue_wait_ms=Histogram(tuple(waits), waits[0] / 2, waits[0]), **fields)

    return make


def test_counters_go_on_where_the_engine_before_left_them(stats_of: Callable[..., EngineStats]) -> None:
    totals = Totals()
    for finish in ("stop", "length", "tool_calls", "abort", "error", None, None):
        totals.opened()
        if finish is not None:
            totals.ended(finish)
    first = totals.heard(stats_of(prompt_tokens=10, steps=4, step_wall_seconds=1.5, inflight=2, batch_size=2, waited=3))
    # What the engine itself counts of requests is not looked at.
    assert (first.requests_total, first.requests_completed, first.requests_cancelled, first.requests_errored) == (
        7,
        3,
        1,
        1,
    )
    assert (first.prompt_tokens, first.steps, first.inflight, first.restarts) == (10, 4, 2, 0)
    silent = totals.unheard(5)
    assert (silent.inflight, silent.batch_size, silent.prompt_tokens) == (5, 2, 10)

    totals.ended("error")
    totals.ended("error")
    totals.lost()
    between = totals.unheard(0)
    assert (between.inflight, between.batch_size, between.kv_blocks_used) == (0, 0, 0)
    assert (between.prompt_tokens, between.steps, between.requests_errored) == (10, 4, 3)

    totals.restarts += 1
    second = totals.heard(stats_of(prompt_tokens=1, steps=1, step_wall_seconds=0.25, inflight=1, waited=2))
    assert (second.prompt_tokens, second.steps, second.step_wall_seconds) == (11, 5, 1.75)
    assert (second.inflight, second.restarts, second.requests_total) == (1, 1, 7)
    assert second.queue_wait_ms is not None
    assert (second.queue_wait_ms.buckets[0], second.queue_wait_ms.sum, second.queue_wait_ms.count) == (5, 2.5, 5)
