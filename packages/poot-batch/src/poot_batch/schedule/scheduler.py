"""Admission, the plan of a step, and what its result means for the sequences."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from poot_batch.kv import KvSpace
from poot_batch.schedule.budget import PromptBudget
from poot_batch.schedule.plan import PromptRun, StepPlan
from poot_batch.schedule.sequence import Sequence


class Scheduler:
    """First come, first served. A sequence gets a row and the blocks of all it may ever need when it is admitted, so
    none is preempted or starved; one that finds no room waits, and those behind it too.

    `capacity` bounds the tokens of a step; it is no less than `rows`, so that every row can decode in each step.
    """

    def __init__(self, rows: int, kv: KvSpace, budget: PromptBudget, capacity: int) -> None:
        if capacity < rows:
            raise ValueError(f"a step of {capacity} tokens has no room for {rows} rows")
        self.kv, self.budget = kv, budget
        self._capacity = capacity
        self._waiting: deque[Sequence] = deque()
        # In the order of admission; a dict for its cheap removal.
        self._running: dict[Sequence, None] = {}
        self._free_rows = list(range(rows))

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def admit(self) -> tuple[Sequence, ...]:
        """Give rows and blocks to those who can have them; the sequences admitted, whose rows must be opened."""
        admitted = []
        while self._waiting and self._free_rows:
            sequence = self._waiting[0]
            reservation = self.kv.reserve(sequence.prompt_length + sequence.max_tokens)
            if reservation is None:
                break
            self._waiting.popleft()
            sequence.row, sequence.reservation = heappop(self._free_rows), reservation
            self._running[sequence] = None
            admitted.append(sequence)
        return tuple(admitted)

    def plan(self) -> StepPlan | None:
        """The next step: every row that may decode, then prompts in order of admission within the budget.

        Advances `scheduled` of the sequences it takes. None when nobody can run.
        """
        decode, reading = [], []
        for sequence in self._running:
            scheduled = sequence.scheduled
            if scheduled < sequence.prompt_length:
                reading.append(sequence)
            elif scheduled < sequence.limit:
                sequence.scheduled = scheduled + 1
                decode.append(sequence)
        prompts = self._prompts(reading, len(decode)) if reading else []
        if not decode and not prompts:
            return None
        sampling = [*decode, *(run.sequence for run in prompts if run.samples)]
        return StepPlan(tuple(decode), tuple(prompts), tuple(sampling))

    def _prompts(self, reading: list[Sequence], decoding: int) -> list[PromptRun]:
        room = min(self.budget.tokens(running=decoding > 0), self._capacity - decoding)
        runs = []
        for sequence in reading:
            if room <= 0:
                break
            count = min(sequence.prompt_left, room)
            runs.append(PromptRun(sequence, sequence.scheduled, count))
            sequence.scheduled += count
            room -= count
        return runs

    def finish(self, sequence: Sequence) -> None:
        """Free the row and its blocks at once. Steps in flight that still write them come before any later one."""
        if sequence.finished:
            raise ValueError("a sequence ends once")
        sequence.finished = True
        if sequence.reservation is None:
            self._waiting.remove(sequence)
            return
        self.kv.release(sequence.reservation)
        del self._running[sequence]
        heappush(self._free_rows, sequence.row)
