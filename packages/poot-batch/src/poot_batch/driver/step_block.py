"""The packed block of a step: header, runs, prompt tokens (`RowLayout`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from poot_batch.schedule import StepPlan
from poot_executor.ops import RowLayout


def step_block(plan: StepPlan, rows: int) -> npt.NDArray[np.int32]:
    """The used part of the block: it ends after the last prompt token.

    Decode runs say CONTINUE, since the device knows the row's length even when the host does not.
    """
    decoding, tokens = len(plan.decode), plan.tokens
    given = RowLayout.HEADER + RowLayout.RUN * rows
    block = np.zeros(given + (tokens if plan.prompts else 0), dtype=np.int32)
    block[:2] = tokens, plan.runs
    runs = block[RowLayout.HEADER : given].reshape(rows, RowLayout.RUN)
    runs[:decoding, 0] = [sequence.row for sequence in plan.decode]
    runs[:decoding, 1:3] = RowLayout.CONTINUE, 1
    at = given + decoding
    for index, run in enumerate(plan.prompts, decoding):
        runs[index] = run.sequence.row, run.first, run.count, RowLayout.PROMPT_RUN
        block[at : at + run.count] = run.sequence.request.prompt[run.first : run.first + run.count]
        at += run.count
    return block
