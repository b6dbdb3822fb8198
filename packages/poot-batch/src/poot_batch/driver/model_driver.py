"""The driver of a prepared model on one device."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from poot_batch.driver.interface import Ticket
from poot_batch.driver.startup import Prepared
from poot_batch.driver.step_block import step_block
from poot_batch.sampling import features_of, open_block
from poot_batch.schedule import Sequence, StepPlan, StepResult
from poot_executor.devices import Live
from poot_executor.programs import LOGPROBS
from poot_executor.runtime import Entry, EntryKey, Pending


class ModelDriver:
    """See `poot_batch.driver.interface.Driver`.

    A step is three entries: `step` runs the tokens, `head` and `sample` the rows that have reached their end.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.depth = prepared.device.depth
        self._prepared = prepared
        self._entries = prepared.entries
        self._ladder = sorted(key.capacity for key in prepared.entries.compiled.entries if key.program == "step")
        # Of head and sample.
        self._row_ladder = sorted(key.capacity for key in prepared.entries.compiled.entries if key.program == "head")
        self._rows = prepared.shape.rows
        # What each row asks of the sample entry.
        self._features: list[frozenset[str]] = [frozenset()] * self._rows
        # The input that each entry was last given; no entry writes its own.
        self._staged: dict[EntryKey, bytes] = {}

    def open(self, sequence: Sequence) -> None:
        entry = self._entries[EntryKey("open", 1)]
        entry.stage("block", open_block(sequence, self._prepared.shape.row_table))
        entry.run(Live())
        self._features[sequence.row] = features_of(sequence)

    def submit(self, plan: StepPlan) -> Ticket:
        tokens = plan.tokens
        capacity = self._ladder[bisect_left(self._ladder, tokens)]
        live = Live(tokens=tokens, runs=plan.runs)
        self._run(EntryKey("step", capacity), "block", step_block(plan, self._rows), live)
        if not plan.sampling:
            return Ticket(plan, None)
        rows = np.array([sequence.row for sequence in plan.sampling], dtype=np.int32)
        features = frozenset[str]().union(*{self._features[sequence.row] for sequence in plan.sampling})
        capacity = self._row_ladder[bisect_left(self._row_ladder, len(rows))]
        live = Live(rows=len(rows))
        self._run(EntryKey("head", capacity), "rows", rows, live)
        sample = self._run(EntryKey("sample", capacity, features), "rows", rows, live)
        names = ["tokens", "flags"]
        if LOGPROBS in features:
            names += ["chosen", "top_ids", "top_values"]
        # Sent on their way now: the next step overwrites them.
        return Ticket(plan, [sample.fetch(name, len(rows)) for name in names])

    def _run(self, key: EntryKey, name: str, data: npt.NDArray[np.int32], live: Live) -> Entry:
        """Run an entry on this input, which is sent only if it is a new one: while the same rows decode, it is not."""
        entry, content = self._entries[key], data.tobytes()
        if self._staged.get(key) != content:
            entry.stage(name, data)
            self._staged[key] = content
        entry.run(live)
        return entry

    def collect(self, ticket: Ticket) -> StepResult:
        arrays: list[Pending] | None = ticket.handle
        if arrays is None:
            self._prepared.device.synchronize()
            return StepResult(np.empty(0, np.int32), np.empty(0, np.int32))
        tokens, flags, *logprobs = (pending.result() for pending in arrays)
        chosen, top_ids, top_values = logprobs or (None, None, None)
        return StepResult(tokens, flags, chosen, top_ids, top_values)

    def device_bytes(self) -> int:
        return self._prepared.device.account.total

    def close(self) -> None:
        self._prepared.device.close()
