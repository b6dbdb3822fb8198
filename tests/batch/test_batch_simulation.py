"""The simulator: thousands of worlds that hold, planted faults that it finds, and what it takes for right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from poot_batch import cli
from poot_batch.errors import InvariantError
from poot_batch.kv import KvSpace
from poot_batch.request import GenerateRequest, Output, SamplingParams
from poot_batch.schedule import PromptRun, Sequence, StepPlan
from poot_batch.simulation import play, run_seeds
from poot_batch.simulation.device import FakeDevice, Shape
from poot_batch.simulation.life import Life
from poot_batch.simulation.model import Alone, text_of
from poot_batch.simulation.mutations import MUTATIONS, Mutation, detect

CHUNK = 500
# What the worlds of a chunk must have seen; without it, that they hold says little.
SEEN = (
    "ended: stop", "ended: length", "ended: error", "ended: abort", "hits", "held", "forks", "overtaken",
    "scored", "not finite", "worlds lost to faults",
)  # fmt: skip


@pytest.mark.parametrize("first", range(0, 8 * CHUNK, CHUNK))
def test_every_world_holds(first: int) -> None:
    tally = run_seeds(range(first, first + CHUNK))
    assert tally.found == []
    assert tally.seeds == CHUNK
    assert [what for what in SEEN if not tally.seen[what]] == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_fault_is_found(mutation: Mutation) -> None:
    found = detect(mutation, 10_000)
    assert found is not None
    # And by it alone.
    assert play(found.seed)[1] is None


def test_a_seed_is_a_world() -> None:
    def told(seed: int) -> list[str]:
        lines: list[str] = []
        assert play(seed, lines.append)[1] is None
        return lines

    assert told(7) == told(7)
    assert told(7) != told(8)


def request_of(prompt: tuple[int, ...] = (5, 6, 7, 8, 9), **fields: Any) -> GenerateRequest:
    return GenerateRequest(id=1, prompt=prompt, sampling=SamplingParams(seed=3), **fields)


def free_run(count: int) -> list[int]:
    """Tokens of the request above, with nothing that could end it."""
    return Alone(request_of(ignore_eos=True), count, 4, (None,)).tokens


def test_the_reference_follows_the_rules_of_requests() -> None:
    tokens = free_run(30)
    text = text_of(tokens)
    assert len(set(tokens)) > 10
    stop = text[4:7]
    at = text.index(stop)
    cut = Alone(request_of(ignore_eos=True, stop=(stop,)), 30, 4, (None,))
    assert (cut.text, cut.tokens, cut.finish) == (text[:at], tokens[: at + 3], "stop")
    kept = Alone(request_of(ignore_eos=True, stop=(stop,), include_stop=True), 30, 4, (None,))
    assert (kept.text, kept.sampled) == (text[: at + 3], at + 3)
    # An end token is sampled, not delivered, and ends nothing among the first min_tokens.
    first = tokens.index(tokens[6])
    ended = Alone(request_of(ignore_eos=True, stop_token_ids=(tokens[6],)), 30, 4, (None,))
    assert (ended.tokens, ended.sampled, ended.finish) == (tokens[:first], first + 1, "stop")
    held = Alone(request_of(ignore_eos=True, stop_token_ids=(tokens[6],), min_tokens=first + 1), 30, 4, (None,))
    assert held.tokens[: first + 1] == tokens[: first + 1]
    shown = Alone(request_of(ignore_eos=True, stop_token_ids=(tokens[6],), include_stop=True), 30, 4, (None,))
    assert (shown.tokens, shown.text, shown.finish) == (tokens[: first + 1], text[: first + 1], "stop")
    none = Alone(request_of(prompt_logprobs=0), 0, 4, (None,))
    assert (none.tokens, none.finish, len(none.prompt_chances)) == ([], "length", 4)


def test_a_salt_and_a_window_show_in_the_text() -> None:
    plain = free_run(30)
    assert Alone(request_of(ignore_eos=True, cache_salt="a"), 30, 4, (None,)).tokens != plain
    assert Alone(request_of(ignore_eos=True), 30, 4, (1,)).tokens != plain


class Bench:
    """A fake device with one request's row, run by hand; `count` tokens are sampled."""

    def __init__(self, *, chunk: int = 40, **fields: Any) -> None:
        shape = Shape(2, 1, 4, 40, 0, 40, (20,), (10,), (None,))
        self.kv = KvSpace(4, shape.pools, shape.tables, caching=False)
        self.device = FakeDevice(shape)
        self.chunk = chunk
        self.sequence = self.opened(request_of(ignore_eos=True), 0)

    def opened(self, request: GenerateRequest, row: int) -> Sequence:
        sequence = Sequence(request, 20, 3, 0.0, row=row)
        sequence.reservation = self.kv.reserve(len(request.prompt) + 20)
        self.device.open(sequence)
        return sequence

    def step(self, plan: StepPlan) -> list[int]:
        return self.device.collect(self.device.submit(plan)).tokens.tolist()

    def read(self, sequence: Sequence) -> list[int]:
        tokens: list[int] = []
        while sequence.prompt_left:
            run = PromptRun(sequence, sequence.scheduled, min(self.chunk, sequence.prompt_left))
            sequence.scheduled += run.count
            tokens += self.step(StepPlan((), (run,), (sequence,) if run.samples else ()))
        return tokens

    def decode(self, count: int) -> list[int]:
        tokens = []
        for _ in range(count):
            self.sequence.scheduled += 1
            tokens += self.step(StepPlan((self.sequence,), (), (self.sequence,)))
        return tokens


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 40])
def test_the_device_says_what_the_reference_says(chunk: int) -> None:
    bench = Bench(chunk=chunk)
    assert [*bench.read(bench.sequence), *bench.decode(14)] == free_run(15)


def test_another_row_in_its_blocks_changes_what_a_row_says() -> None:
    bench = Bench()
    said = bench.read(bench.sequence)
    thief = bench.opened(request_of((30, 31), ignore_eos=True), 1)
    bench.device.rows[1].tables = [list(bench.device.rows[0].tables[0])]
    bench.read(thief)
    assert [*said, *bench.decode(14)] != free_run(15)


def test_the_device_complains_of_what_nobody_may_ask() -> None:
    early, apart, late = Bench(), Bench(), Bench()
    with pytest.raises(InvariantError, match="decodes before its prompt"):
        early.decode(1)
    with pytest.raises(InvariantError, match="not where its row ends"):
        apart.step(StepPlan((), (PromptRun(apart.sequence, 1, 2),), ()))
    late.sequence.finished = True
    with pytest.raises(InvariantError, match="which has ended"):
        late.read(late.sequence)
    # The engine takes it for a fault of the device, so it is kept.
    assert "which has ended" in str(late.device.complaint)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ({"tokens": (1,)}, "delivers"),
        ({"prompt_tokens": 4}, "prompt and cached tokens"),
        ({"prompt_tokens": 5, "cached_tokens": 4}, "prompt and cached tokens"),
        ({"prompt_tokens": 5, "finish": "abort"}, "without a cause"),
        ({"prompt_tokens": 5, "finish": "error", "error_code": "engine_fault"}, "without a cause"),
        ({"prompt_tokens": 5, "finish": "length"}, "ends with"),
        ({"prompt_tokens": 5, "prompt_logprobs": ()}, "unasked"),
        ({"prompt_tokens": 5, "text": "?"}, "does not begin"),
    ],
)
def test_a_wrong_delivery_is_seen(output: dict[str, Any], says: str) -> None:
    alone = Alone(request_of(ignore_eos=True), 9, 4, (None,))
    assert alone.tokens[0] != 1
    life = Life(alone.request, alone, None)
    with pytest.raises(InvariantError, match=says):
        life.take(Output(request_id=1, **output))


def test_a_right_delivery_is_taken_and_credit_is_kept() -> None:
    alone = Alone(request_of(ignore_eos=True), 3, 4, (None,))
    tokens = alone.tokens
    life = Life(alone.request, alone, 2)
    life.take(Output(request_id=1, prompt_tokens=5, tokens=(tokens[0],)))
    life.take(Output(request_id=1, tokens=(tokens[1],)))
    assert life.paused
    with pytest.raises(InvariantError, match="on a credit of 2"):
        life.take(Output(request_id=1, prompt_tokens=5, tokens=(tokens[2],), finish="length"))


def test_the_command_plays_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--seeds", "30"]) == 0
    assert "30 seeds in" in capsys.readouterr().out.splitlines()[-1]
    assert cli.main(["simulate", "--seeds", "30", "--first", "100", "--processes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("30 seeds in")
    assert lines[-1].endswith("0 failed")
    spread = Counter({what: int(count) for count, what in (part.split(" ", 1) for part in lines[-2].split(", "))})
    assert spread == +run_seeds(range(100, 130)).seen


def test_the_command_starts_no_more_processes_than_seeds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    real = subprocess.Popen

    def counted(words: list[str], **fields: Any) -> subprocess.Popen[bytes]:
        started.append(words)
        return real(words, **fields)

    monkeypatch.setattr(cli.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(subprocess, "Popen", counted)
    assert cli.main(["simulate", "--seeds", "2", "--processes", "32"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 seeds in")
    assert len(started) == 2


def test_a_process_that_fails_is_told_in_a_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen

    def broken(words: list[str], **fields: Any) -> subprocess.Popen[bytes]:
        if "15" in words:
            words = [words[0], "-c", "raise MemoryError('no room')"]
        return real(words, **fields)

    monkeypatch.setattr(subprocess, "Popen", broken)
    # Nobody waits for the other one, which has a day to go.
    assert cli.main(["simulate", "--seeds", "16777216", "--first", "-8388593", "--processes", "2"]) == 1
    said = capfd.readouterr()
    assert said.err == ("poot-batch: the process that played seeds 15 to 8388622 ended with 1: MemoryError: no room\n")


@pytest.mark.parametrize("words", [["--seed", "7", "--trace"], ["--seeds", "4", "--processes", "2"], ["--mutations"]])
def test_a_reader_that_has_left_ends_it_quietly(words: list[str]) -> None:
    unread, end = os.pipe()
    os.close(unread)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "poot_batch.cli", "simulate", *words],
            check=False,
            stdout=end,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(end)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seeds", "x"], "argument --seeds: takes a whole number, not 'x'"),
        (["--processes", "1.5"], "argument --processes: takes a whole number, not '1.5'"),
        (["--processes", "1000000"], "argument --processes: must be between 1 and"),
        (["--trace"], "--trace is only taken with --seed"),
        (["--trace", "--mutations"], "--trace is only taken with --seed"),
        (["--seed", "3", "--mutations"], "--seed and --mutations exclude each other"),
        (["--seed", "3", "--seeds", "4"], "--seeds is not taken with --seed"),
        (["--mutations", "--processes", "2"], "--processes is not taken with --mutations"),
    ],
)
def test_what_the_command_does_not_take(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate", *words])
    assert ended.value.code == 2
    assert f"error: {says}" in capsys.readouterr().err.splitlines()[-1]


def test_the_command_names_a_failing_seed_and_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    forgotten = MUTATIONS[0]
    found = detect(forgotten, 100)
    assert found is not None
    with forgotten.planted():
        assert cli.main(["simulate", "--seeds", "1", "--first", str(found.seed)]) == 1
        assert f"poot-batch simulate --seed {found.seed} --trace" in capsys.readouterr().out
        assert cli.main(["simulate", "--seed", str(found.seed), "--trace"]) == 1
        lines = capsys.readouterr().out.splitlines()
    assert f"seed {found.seed} fails at turn {found.turn}: {found.what}" in lines
    assert any("GenerateRequest(id=1" in line for line in lines)
    assert cli.main(["simulate", "--seed", str(found.seed)]) == 0


def test_the_command_imports_no_torch() -> None:
    code = (
        "import sys; from poot_batch.cli import main\nmain(['simulate', '--seeds', '3'])\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False"


def test_whatever_the_engine_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> Callable[..., None]:
        raise KeyError("lost")

    monkeypatch.setattr("poot_batch.engine.Engine.submit", broken)
    _, found = play(0)
    assert found is not None
    assert found.what.startswith("KeyError: 'lost'")
