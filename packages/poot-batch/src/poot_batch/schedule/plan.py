"""What a step runs, and what it brought."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poot_batch.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PromptRun:
    """Positions `first` to `first + count` of a sequence's prompt. The last of them samples if it ends the prompt."""

    sequence: Sequence
    first: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def samples(self) -> bool:
        return self.end == self.sequence.prompt_length


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The runs of a step: rows that go one token on from their history, then chunks of prompts.

    A step with `score` has no other runs: that chunk of a prompt runs alone, for the log-probabilities of its tokens.
    """

    decode: tuple[Sequence, ...]
    prompts: tuple[PromptRun, ...]
    sampling: tuple[Sequence, ...]
    """The sequences that sample, in the order of the runs and of the result."""
    score: PromptRun | None = None
    fills: tuple[tuple[Sequence, int], ...] = ()
    """The sequences of which this step completes a KV block, and the positions that they have run after it."""

    @property
    def prompt_tokens(self) -> int:
        return sum(run.count for run in self.prompts) + (self.score.count if self.score else 0)

    @property
    def tokens(self) -> int:
        return len(self.decode) + self.prompt_tokens

    @property
    def runs(self) -> int:
        return len(self.decode) + len(self.prompts) + (self.score is not None)


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Host arrays over a scored chunk's positions: of the token that follows each, and of the most likely ones."""

    chosen: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int32]
    top_values: npt.NDArray[np.float32]

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.chosen).all() and np.isfinite(self.top_values).all())


@dataclass(frozen=True, slots=True)
class StepResult:
    """Host arrays over the rows that sampled: tokens and flags (N,); log-probabilities if any row asked.

    `score` is there if the plan has one, over its positions; of the prompt's last position it says nothing of use.
    """

    tokens: npt.NDArray[np.int32]
    flags: npt.NDArray[np.int32]
    chosen: npt.NDArray[np.float32] | None = None
    top_ids: npt.NDArray[np.int32] | None = None
    top_values: npt.NDArray[np.float32] | None = None
    score: ScoreResult | None = None
