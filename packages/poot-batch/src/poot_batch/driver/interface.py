"""The seam between the loop and whatever computes tokens; the tests' fake model stands behind it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from poot_batch.schedule import Sequence, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Ticket:
    """A step that was submitted. `handle` is the driver's own."""

    plan: StepPlan
    handle: Any


class Driver(Protocol):
    """Runs steps in the order of submission. `depth` steps may be in flight at once.

    `score_capacity` bounds the tokens of a plan's `score`; 0: this driver gives no log-probabilities of prompts.

    After an error of `open`, `submit` or `collect` the tickets still out are dropped uncollected, and the rows they
    ran are opened anew before any later step.
    """

    depth: int
    score_capacity: int

    def open(self, sequence: Sequence) -> None:
        """Write an admitted sequence's row, before the first step that runs it."""

    def submit(self, plan: StepPlan) -> Ticket:
        """Enqueue a step. Raises ExecutorError when the device fails."""

    def collect(self, ticket: Ticket) -> StepResult:
        """Wait for the oldest step in flight."""

    def device_bytes(self) -> int:
        """Bytes that the device's account holds."""

    def close(self) -> None: ...
