"""The driver of a prepared model on one device."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from poot_batch.driver.interface import Ticket
from poot_batch.driver.startup import Prepared
from poot_batch.driver.step_block import step_block
from poot_batch.sampling import features_of, open_block
from poot_batch.schedule import Sequence, StepPlan, StepResult
from poot_executor.devices import Live
from poot_executor.programs import LOGPROBS
from poot_executor.runtime import EntryKey, Pending


class ModelDriver:
    """See `poot_batch.driver.interface.Driver`.

    A step is three entries: `step` runs the tokens, `head` and `sample` the rows that have reached their end.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.depth = prepared.device.depth
        self._prepared = prepared
        self._entries = prepared.entries
        self._ladder = sorted(key.capacity for key in prepared.entries.compiled.entries if key.program == "step")
        self._heads = sorted(key.capacity for key in prepared.entries.compiled.entries if key.program == "head")
        self._rows = prepared.shape.rows
        # What each row asks of the sample entry.
        self._features: list[frozenset[str]] = [frozenset()] * self._rows

    def open(self, sequence: Sequence) -> None:
        entry = self._entries[EntryKey("open", 1)]
        entry.stage("block", open_block(sequence, self._prepared.shape.row_table))
        entry.run(Live())
        self._features[sequence.row] = features_of(sequence)

    def submit(self, plan: StepPlan) -> Ticket:
        tokens = plan.tokens
        capacity = self._ladder[bisect_left(self._ladder, tokens)]
        entry = self._entries[EntryKey("step", capacity)]
        entry.stage("block", step_block(plan, self._rows))
        entry.run(Live(tokens=tokens, runs=plan.runs))
        if not plan.sampling:
            return Ticket(plan, None)
        rows = np.array([sequence.row for sequence in plan.sampling], dtype=np.int32)
        live = Live(rows=len(rows))
        head = self._entries[EntryKey("head", self._heads[bisect_left(self._heads, len(rows))])]
        head.stage("rows", rows)
        head.run(live)
        features = frozenset[str]().union(*(self._features[sequence.row] for sequence in plan.sampling))
        sample = self._entries[EntryKey("sample", self._rows, features)]
        sample.stage("rows", rows)
        sample.run(live)
        names = ["tokens", "flags"]
        if LOGPROBS in features:
            names += ["chosen", "top_ids", "top_values"]
        # Sent on their way now: the next step overwrites them.
        return Ticket(plan, [sample.fetch(name, len(rows)) for name in names])

    def collect(self, ticket: Ticket) -> StepResult:
        arrays: list[Pending] | None = ticket.handle
        if arrays is None:
            self._prepared.device.synchronize()
            return StepResult(np.empty(0, np.int32), np.empty(0, np.int32))
        return StepResult(*(pending.result() for pending in arrays))

    def device_bytes(self) -> int:
        return self._prepared.device.account.total

    def close(self) -> None:
        self._prepared.device.close()
