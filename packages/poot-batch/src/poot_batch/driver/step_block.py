"""The packed block of a step: header, runs, prompt tokens (`RowLayout`). And what a scored run is asked about."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from poot_batch.schedule import PromptRun, StepPlan
from poot_executor.ops import RowLayout


def step_block(plan: StepPlan, rows: int) -> npt.NDArray[np.int32]:
    """The used part of the block: it ends after the last prompt token.

    Decode runs say CONTINUE, since the device knows the row's length even when the host does not.
    """
    decoding, tokens = len(plan.decode), plan.tokens
    prompts = (plan.score,) if plan.score else plan.prompts
    given = RowLayout.HEADER + RowLayout.RUN * rows
    block = np.zeros(given + (tokens if prompts else 0), dtype=np.int32)
    block[:2] = tokens, plan.runs
    runs = block[RowLayout.HEADER : given].reshape(rows, RowLayout.RUN)
    runs[:decoding, 0] = [sequence.row for sequence in plan.decode]
    runs[:decoding, 1:3] = RowLayout.CONTINUE, 1
    at = given + decoding
    for index, run in enumerate(prompts, decoding):
        runs[index] = run.sequence.row, run.first, run.count, RowLayout.PROMPT_RUN
        block[at : at + run.count] = run.sequence.request.prompt[run.first : run.first + run.count]
        at += run.count
    return block


def score_targets(run: PromptRun) -> npt.NDArray[np.int32]:
    """The token that follows each position of a scored run; 0 after the prompt's last one, which nothing follows."""
    targets = np.zeros(run.count, dtype=np.int32)
    following = run.sequence.request.prompt[run.first + 1 : run.first + run.count + 1]
    targets[: len(following)] = following
    return targets
