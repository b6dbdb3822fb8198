"""Who runs in a step: pure host logic over plain numbers, no tensors, no clock of its own."""

from poot_batch.schedule.budget import PromptBudget
from poot_batch.schedule.plan import PromptRun, ScoreResult, StepPlan, StepResult
from poot_batch.schedule.scheduler import Scheduler
from poot_batch.schedule.sequence import Sequence

__all__ = ["PromptBudget", "PromptRun", "Scheduler", "ScoreResult", "Sequence", "StepPlan", "StepResult"]
