"""How many prompt tokens a step may take: as many as fit a time, learned from the steps measured."""

from __future__ import annotations

_SMOOTHING = 0.3


class PromptBudget:
    """Prompt tokens a step so that running rows wait no longer than `target_ms` for it.

    The time of a step is modelled as a fixed part (what a step of decode rows alone takes) plus a part for each prompt
    token; both are smoothed over the steps seen. Without running rows a prompt takes the whole capacity of a step.
    """

    def __init__(self, target_ms: float, capacity: int, *, least: int = 16) -> None:
        self._target, self._capacity, self._least = target_ms, capacity, min(least, capacity)
        self._fixed: float | None = None
        self._per_token: float | None = None

    def tokens(self, *, running: bool) -> int:
        """Prompt tokens that the next step may take; `running` says whether rows would wait for them."""
        if not running:
            return self._capacity
        if self._per_token is None:
            return self._least
        room = (self._target - (self._fixed or 0.0)) / max(self._per_token, 1e-6)
        return int(min(self._capacity, max(self._least, room)))

    def measured(self, prompt_tokens: int, milliseconds: float) -> None:
        """Learn from a finished step."""
        if prompt_tokens == 0:
            self._fixed = _smooth(self._fixed, milliseconds)
        elif prompt_tokens >= self._least:
            share = max(0.0, milliseconds - (self._fixed or 0.0)) / prompt_tokens
            self._per_token = _smooth(self._per_token, share)


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
