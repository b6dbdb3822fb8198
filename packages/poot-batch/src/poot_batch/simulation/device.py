"""A fake device behind the driver's seam: it keeps what each KV block holds and computes tokens from what it finds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poot_batch.driver.interface import Ticket
from poot_batch.errors import InvariantError
from poot_batch.faults import InjectedFaultError
from poot_batch.schedule import PromptRun, ScoreResult, StepPlan, StepResult
from poot_batch.schedule import Sequence as Row
from poot_batch.simulation.model import TOP, chance_of, draw, root


@dataclass(slots=True)
class _RowState:
    """What the device knows of a row: its block table in each group, its length, what it samples."""

    sequence: Row
    tables: list[list[int]]
    length: int
    root: int
    seed: int
    last: int = -1
    sampled: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a fake device: `pools` and `tables` are blocks of each KV group, `windows` the blocks in view."""

    rows: int
    depth: int
    block: int
    capacity: int
    score_capacity: int
    max_seq: int
    pools: tuple[int, ...]
    tables: tuple[int, ...]
    windows: tuple[int | None, ...]


@dataclass(slots=True)
class _Brought:
    """A step's result, kept until it is collected."""

    serial: int
    tokens: list[int] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    score: list[float] | None = None


class FakeDevice:
    """Runs steps when they are submitted, in order, and hands results out when they are collected.

    A block holds the digest of the sequence up to the last position written in it (`digests[group][block]`) and the
    step that wrote it (`written[group][block]`). `spoils(request id, tokens sampled so far)` says which rows' logits
    are not finite: what they write in the step that shows it is garbage. A step that `breaks` leaves nothing else, and
    raises. `spends(tokens)` lets time pass. What the engine may never ask raises InvariantError, which is kept in
    `complaint`, since the engine takes it for a fault of the device.
    """

    def __init__(
        self,
        shape: Shape,
        spoils: Callable[[int, int], bool] = lambda request_id, sampled: False,
        breaks: Callable[[], bool] = lambda: False,
        spends: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        self.shape, self.depth, self.score_capacity = shape, shape.depth, shape.score_capacity
        self._spoils, self._breaks, self._spends = spoils, breaks, spends
        self.digests = [[0] * size for size in shape.pools]
        self.written = [[0] * size for size in shape.pools]
        # Steps that were collected; blocks of step 0 were never written.
        self.collected = [False]
        self.rows: dict[int, _RowState] = {}
        self.opened: list[Row] = []
        self.collected_prompt_tokens = 0
        self.complaint: InvariantError | None = None
        self._inflight: deque[Ticket] = deque()

    def open(self, sequence: Row) -> None:
        self._demand(sequence.reservation is not None and not sequence.finished, "a row was opened without blocks")
        assert sequence.reservation is not None
        self._demand(0 <= sequence.row < self.shape.rows, "a row was opened that does not exist")
        request = sequence.request
        tables = [blocks.tolist() for blocks in sequence.reservation.blocks]
        self.rows[sequence.row] = _RowState(
            sequence, tables, sequence.scheduled, root(request.cache_salt), sequence.seed
        )
        self.opened.append(sequence)

    def submit(self, plan: StepPlan) -> Ticket:
        self._demand(len(self._inflight) < self.depth, "more steps in flight than the device has room for")
        tokens = plan.tokens
        self._demand(tokens <= self.shape.capacity, "a step of more tokens than its capacity")
        self._spends(tokens)
        broken = self._breaks()
        brought = _Brought(len(self.collected))
        self.collected.append(False)
        runs = [(self._row(sequence), 1) for sequence in plan.decode]
        chunks = plan.prompts
        if plan.score is not None:
            self._demand(not runs and not chunks, "a scored chunk runs alone")
            self._demand(plan.score.count <= self.score_capacity, "a scored chunk of more tokens than its capacity")
            chunks = (plan.score,)
        for row, _ in runs:
            self._demand(row.length >= row.sequence.prompt_length and row.last >= 0, "a row decodes before its prompt")
            spoilt = broken or self._spoils(row.sequence.request.id, row.sampled)
            self._write(row, (row.last,), brought.serial, spoilt)
        for run in chunks:
            self._read_prompt(run, brought, broken)
        if broken:
            raise InjectedFaultError(f"step {brought.serial} broke")
        self._sample(plan, brought)
        ticket = Ticket(plan, brought)
        self._inflight.append(ticket)
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        self._demand(bool(self._inflight) and self._inflight.popleft() is ticket, "steps collected out of order")
        brought: _Brought = ticket.handle
        self.collected[brought.serial] = True
        self.collected_prompt_tokens += ticket.plan.prompt_tokens
        tokens, flags = np.array(brought.tokens, np.int32), np.array(brought.flags, np.int32)
        score = None if brought.score is None else ScoreResult(*_alternatives(brought.score))
        if not brought.chances:
            return StepResult(tokens, flags, score=score)
        return StepResult(tokens, flags, *_alternatives(brought.chances), score=score)

    def lose(self) -> None:
        """A fault: what was in flight is gone with its results."""
        self._inflight.clear()

    def device_bytes(self) -> int:
        return 4096

    def close(self) -> None:
        self.rows.clear()

    def _row(self, sequence: Row) -> _RowState:
        row = self.rows.get(sequence.row)
        if row is None or row.sequence is not sequence:
            raise self._complain(f"a step runs request {sequence.request.id} in row {sequence.row}, not opened for it")
        if sequence.finished:
            raise self._complain(f"a step runs request {sequence.request.id}, which has ended")
        return row

    def _read_prompt(self, run: PromptRun, brought: _Brought, broken: bool) -> None:
        row, prompt = self._row(run.sequence), run.sequence.request.prompt
        self._demand(run.first == row.length, "a prompt chunk is not where its row ends")
        self._demand(0 < run.count <= len(prompt) - run.first, "a prompt chunk is empty or passes the prompt's end")
        samples = run.samples and run.sequence.max_tokens > 0
        spoilt = broken or (samples and self._spoils(run.sequence.request.id, 0))
        digests = self._write(row, prompt[run.first : run.first + run.count], brought.serial, spoilt)
        if run.sequence.request.prompt_logprobs is not None:
            targets = (*prompt[run.first + 1 : run.first + run.count + 1], 0)
            brought.score = [chance_of(digest, token) for digest, token in zip(digests, targets, strict=False)]
            if spoilt:
                brought.score = [math.nan] * run.count

    def _write(self, row: _RowState, tokens: Sequence[int], serial: int, spoilt: bool) -> list[int]:
        """Put tokens after the row's history, in each group; the digests at their positions in the first group."""
        block, first = self.shape.block, row.length
        row.length = first + len(tokens)
        found: list[int] = []
        for group, table in enumerate(row.tables):
            digests, written, places = self.digests[group], self.written[group], len(table)
            digest = digests[table[(first - 1) // block % places]] if first else row.root
            position = first
            for token in tokens:
                digest = hash((digest, token))
                if spoilt:
                    digest = ~digest
                at = table[position // block % places]
                digests[at], written[at] = digest, serial
                position += 1
                if group == 0:
                    found.append(digest)
        return found

    def _sample(self, plan: StepPlan, brought: _Brought) -> None:
        block = self.shape.block
        told = any(sequence.request.sampling.logprobs is not None for sequence in plan.sampling)
        for sequence in plan.sampling:
            row, length = self._row(sequence), sequence.scheduled
            self._demand(row.length == length, "a row samples at another length than it has")
            least = sequence.prompt_length
            self._demand(least <= length < least + sequence.max_tokens, "a row samples past its end")
            views = []
            filled = -(-length // block)
            for digests, table, window in zip(self.digests, row.tables, self.shape.windows, strict=True):
                places = len(table)
                since = 0 if window is None else max(0, filled - window)
                views.append(tuple([digests[table[n % places]] for n in range(since, filled)]))
            row.last = draw(views, row.seed)
            brought.tokens.append(row.last)
            brought.flags.append(self._spoils(sequence.request.id, row.sampled))
            if told:
                brought.chances.append(chance_of(views[0][-1], row.last))
            row.sampled += 1

    def _demand(self, holds: bool, what: str) -> None:
        if not holds:
            raise self._complain(what)

    def _complain(self, what: str) -> InvariantError:
        self.complaint = self.complaint or InvariantError(what)
        return self.complaint


def _alternatives(chances: list[float]) -> tuple[Any, Any, Any]:
    """Log-probabilities of the chosen tokens, and as the most likely ones: tokens 0, 1, ... at 0, -1, ..."""
    ids = np.tile(np.arange(TOP, dtype=np.int32), (len(chances), 1))
    return np.array(chances, np.float32), ids, -ids.astype(np.float32)
