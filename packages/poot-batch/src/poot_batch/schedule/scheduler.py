"""Admission, the plan of a step, and what its result means for the sequences."""

from __future__ import annotations

from heapq import heappop, heappush

from poot_batch.kv import KvSpace, Reservation
from poot_batch.schedule.budget import PromptBudget
from poot_batch.schedule.plan import PromptRun, StepPlan
from poot_batch.schedule.reading import shares
from poot_batch.schedule.reuse import miss
from poot_batch.schedule.sequence import Sequence
from poot_batch.schedule.waiting import WaitingLine

# Admissions of one turn, of prompts that fill a step. Not so few that somebody waits long for a row that is free.
AT_ONCE = 16


class Scheduler:
    """A sequence gets a row and the blocks of all it may ever need when it is admitted, so none is preempted or
    starved; `WaitingLine` says in which order. One that is held until others have read what it shares with them has a
    row and no blocks.

    `capacity` bounds the tokens of a step; it is no less than `rows`, so that every row can decode in each step.
    `score_capacity` bounds the tokens of a step that scores a prompt; with 0 none is ever added that asks for it.
    """

    def __init__(self, rows: int, kv: KvSpace, budget: PromptBudget, capacity: int, score_capacity: int = 0) -> None:
        if capacity < rows:
            raise ValueError(f"a step of {capacity} tokens has no room for {rows} rows")
        self.kv, self.budget = kv, budget
        self._capacity, self._score_capacity = capacity, score_capacity
        self._waiting = WaitingLine(kv)
        # In the order of admission; a dict for its cheap removal.
        self._running: dict[Sequence, None] = {}
        # Those of them whose prompts are being scored.
        self._scoring: dict[Sequence, None] = {}
        self._scored_last = False
        self._free_rows = list(range(rows))

    def add(self, sequence: Sequence) -> None:
        self._waiting.add(sequence)

    @property
    def waiting(self) -> int:
        """Sequences without a row."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences with a row."""
        return len(self._running) + self._waiting.held

    def admit(self) -> tuple[Sequence, ...]:
        """Give rows and blocks to those who can have them; the sequences that got any. The rows of those that have
        blocks must be opened; one that is held comes without them first, and again when it gets them.

        The step waits until all are in: once they have as much to read as it takes, no more than AT_ONCE come with it,
        and the others follow while it runs.
        """
        admitted, unread = [], 0
        for sequence, reservation in self._waiting.take(len(self._free_rows)):
            if sequence.row < 0:
                sequence.row = heappop(self._free_rows)
            if reservation is not None:
                self._open(sequence, reservation)
            admitted.append(sequence)
            unread += sequence.prompt_left
            if unread >= self._capacity and len(admitted) >= AT_ONCE:
                break
        return tuple(admitted)

    def _open(self, sequence: Sequence, reservation: Reservation) -> None:
        sequence.reservation, sequence.leader = reservation, None
        sequence.cached = sequence.scheduled = reservation.cached * self.kv.block
        sequence.cache_miss = miss(sequence, self.kv, reservation.cached)
        self._running[sequence] = None
        if sequence.scored:
            self._scoring[sequence] = None

    def plan(self) -> StepPlan | None:
        """The next step: every row that may decode, then prompts within the budget, of which `shares` says how much.

        Prompts to score take turns with all of that, one chunk in a step of its own. Advances `scheduled` of the
        sequences it takes. None when nobody can run.
        """
        if self._scoring and not self._scored_last:
            return self._score()
        plan = self._run()
        if plan is None and self._scoring:
            return self._score()
        self._scored_last = False
        return plan

    def _run(self) -> StepPlan | None:
        decode, reading, fills = [], [], []
        block = self.kv.block
        for sequence in self._running:
            scheduled = sequence.scheduled
            if scheduled < sequence.prompt_length:
                if not sequence.scored:
                    reading.append(sequence)
            elif scheduled < sequence.limit:
                sequence.scheduled = scheduled = scheduled + 1
                decode.append(sequence)
                if scheduled % block == 0:
                    fills.append((sequence, scheduled))
        prompts = self._prompts(reading, len(decode)) if reading else []
        if not decode and not prompts:
            return None
        fills += [(run.sequence, run.end) for run in prompts if run.end // block > run.first // block]
        sampling = [*decode, *(run.sequence for run in prompts if run.samples)]
        return StepPlan(tuple(decode), tuple(prompts), tuple(sampling), fills=tuple(fills))

    def _prompts(self, reading: list[Sequence], decoding: int) -> list[PromptRun]:
        room = min(self.budget.tokens(running=decoding > 0), self._capacity - decoding)
        runs = []
        for sequence, count in shares(reading, room).items():
            runs.append(PromptRun(sequence, sequence.scheduled, count))
            sequence.scheduled += count
        return runs

    def _score(self) -> StepPlan:
        """The next chunk of the first prompt to score; its last one samples if any token is wanted."""
        self._scored_last = True
        sequence = next(iter(self._scoring))
        run = PromptRun(sequence, sequence.scheduled, min(sequence.prompt_left, self._score_capacity))
        sequence.scheduled = run.end
        if run.samples:
            del self._scoring[sequence]
        sampling = (sequence,) if run.samples and sequence.max_tokens else ()
        fills = ((sequence, run.end),) if run.end // self.kv.block > run.first // self.kv.block else ()
        return StepPlan((), (), sampling, run, fills)

    def finish(self, sequence: Sequence) -> None:
        """Free the row and its blocks at once. Steps in flight that still write them come before any later one."""
        if sequence.finished:
            raise ValueError("a sequence ends once")
        sequence.finished = True
        if sequence.reservation is None:
            self._waiting.remove(sequence)
        else:
            self.kv.release(sequence.reservation)
            del self._running[sequence]
            self._scoring.pop(sequence, None)
        if sequence.row >= 0:
            heappush(self._free_rows, sequence.row)
