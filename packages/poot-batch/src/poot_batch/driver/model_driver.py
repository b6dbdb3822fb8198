"""The driver of a prepared model on one device."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poot_batch.driver.interface import Ticket
from poot_batch.driver.startup import Prepared
from poot_batch.driver.step_block import score_targets, step_block
from poot_batch.faults import reach
from poot_batch.sampling import features_of, open_block, recall_blocks
from poot_batch.schedule import PromptRun, ScoreResult, Sequence, StepPlan, StepResult
from poot_executor.devices import Live
from poot_executor.programs import LOGPROBS
from poot_executor.runtime import Entry, EntryKey, Pending

# Outputs of log-probabilities, which sample and score entries share.
_LOGPROBS = ("chosen", "top_ids", "top_values")


@dataclass(frozen=True, slots=True)
class _Fetched:
    """What a step brings, on its way to the host. Empty where it has nothing of a kind; `end` is of one without any."""

    end: Pending | None = None
    sample: tuple[Pending, ...] = ()
    score: tuple[Pending, ...] = ()


class ModelDriver:
    """See `poot_batch.driver.interface.Driver`.

    A step is three entries: `step` (or `score`, which does more) runs the tokens, `head` and `sample` the rows that
    have reached their end.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.depth = prepared.device.depth
        self._prepared = prepared
        self._entries = prepared.entries
        self._ladder = self._capacities("step")
        self._head_ladder, self._sample_ladder = self._capacities("head"), self._capacities("sample")
        (self.score_capacity,) = self._capacities("score")
        (self._recall_capacity,) = self._capacities("recall")
        self._rows = prepared.shape.rows
        # What each row asks of the sample entry.
        self._features: list[frozenset[str]] = [frozenset()] * self._rows
        # The input that each entry was last given; no entry writes its own.
        self._staged: dict[EntryKey, bytes] = {}

    def open(self, sequence: Sequence) -> None:
        entry = self._entries[EntryKey("open", 1)]
        entry.stage("block", open_block(sequence, self._prepared.shape.row_table))
        entry.run(Live())
        if sequence.cached:
            self._recall(sequence)
        self._features[sequence.row] = features_of(sequence)

    def _recall(self, sequence: Sequence) -> None:
        """Tell the device the tokens that it will not run: penalties count them."""
        entry = self._entries[EntryKey("recall", self._recall_capacity)]
        for block in recall_blocks(sequence, self._recall_capacity):
            entry.stage("block", block)
            entry.run(Live())

    def submit(self, plan: StepPlan) -> Ticket:
        if plan.score is not None:
            score = self._score(plan, plan.score)
        else:
            tokens, score = plan.tokens, ()
            capacity = self._ladder[bisect_left(self._ladder, tokens)]
            live = Live(tokens=tokens, runs=plan.runs)
            self._run(EntryKey("step", capacity), "block", step_block(plan, self._rows), live)
        sample = self._sample(plan.sampling) if plan.sampling else ()
        return Ticket(plan, _Fetched(None if sample or score else self._entries.mark(), sample, score))

    def _score(self, plan: StepPlan, run: PromptRun) -> tuple[Pending, ...]:
        key = EntryKey("score", self.score_capacity)
        self._entries[key].stage("targets", score_targets(run))
        entry = self._run(key, "block", step_block(plan, self._rows), Live(tokens=run.count, runs=1))
        return tuple(entry.fetch(name, run.count) for name in _LOGPROBS)

    def _sample(self, sampling: tuple[Sequence, ...]) -> tuple[Pending, ...]:
        rows = np.array([sequence.row for sequence in sampling], dtype=np.int32)
        features = frozenset[str]().union(*{self._features[sequence.row] for sequence in sampling})
        head, drawn = (ladder[bisect_left(ladder, len(rows))] for ladder in (self._head_ladder, self._sample_ladder))
        live = Live(rows=len(rows))
        self._run(EntryKey("head", head), "rows", rows, live)
        sample = self._run(EntryKey("sample", drawn, features), "rows", rows, live)
        names = ("tokens", "flags", *(_LOGPROBS if LOGPROBS in features else ()))
        # Sent on their way now: the next step overwrites them.
        return tuple(sample.fetch(name, len(rows)) for name in names)

    def _capacities(self, program: str) -> list[int]:
        return sorted({key.capacity for key in self._entries.compiled.entries if key.program == program})

    def _run(self, key: EntryKey, name: str, data: npt.NDArray[np.int32], live: Live) -> Entry:
        """Run an entry on this input, which is sent only if it is a new one: while the same rows decode, it is not."""
        entry, content = self._entries[key], data.tobytes()
        if self._staged.get(key) != content:
            entry.stage(name, data)
            self._staged[key] = content
        entry.run(live)
        return entry

    def collect(self, ticket: Ticket) -> StepResult:
        fetched: _Fetched = ticket.handle
        if fetched.end is not None:
            fetched.end.result()
        nothing = np.empty(0, np.int32)
        tokens, flags, *logprobs = [pending.result() for pending in fetched.sample] or (nothing, nothing)
        if len(flags) and reach("driver.logits"):
            flags = np.append(1, flags[1:])  # the first row's are not finite
        chosen, top_ids, top_values = logprobs or (None, None, None)
        score = ScoreResult(*(pending.result() for pending in fetched.score)) if fetched.score else None
        return StepResult(tokens, flags, chosen, top_ids, top_values, score)

    def device_bytes(self) -> int:
        return self._prepared.device.account.total

    def close(self) -> None:
        self._prepared.device.close()
