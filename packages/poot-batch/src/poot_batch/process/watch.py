"""Whether an engine process lives, judged by its beats. Plain arithmetic: the caller has the clock and the socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from poot_batch.process.lifeline import BEAT

Verdict = Literal["well", "stalled", "lost"]
# A step of several hundred prompt tokens of the largest models on a small processor takes minutes, one on a GPU less
# than a second, or a few where others use the GPU too.
_CPU_STEP_SECONDS = 900.0
_GPU_STEP_SECONDS = 60.0
_ON_CPU = ("cpu", "null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds: between two looks at the beats; of silence until an engine counts as stalled, and as lost; that a step
    may take (None: what is right for the backend). A stalled engine may recover, a lost one is ended."""

    look: float = 0.5
    stalled: float = 5.0
    lost: float = 15.0
    step: float | None = None

    def step_on(self, backend: str) -> float:
        if self.step is not None:
            return self.step
        return _CPU_STEP_SECONDS if backend in _ON_CPU else _GPU_STEP_SECONDS


class Watch:
    """Adds up silence. What the engine is lost for is `reason`."""

    def __init__(self, patience: Patience, backend: str) -> None:
        self._patience = patience
        self._step_limit = patience.step_on(backend)
        self._silent = self._step = 0.0
        self._rest = b""
        self.verdict: Verdict = "well"
        self.reason = ""

    @property
    def silent(self) -> float:
        """Seconds without a beat."""
        return self._silent

    def hear(self, data: bytes) -> None:
        """Bytes that came over the lifeline."""
        data = self._rest + data
        whole = len(data) // BEAT.size * BEAT.size
        self._rest = data[whole:]
        if whole:
            (milliseconds,) = BEAT.unpack_from(data, whole - BEAT.size)
            self._step, self._silent = milliseconds / 1000, 0.0

    def look(self, elapsed: float) -> Verdict:
        """Judge, `elapsed` seconds after the last time.

        If this process did not run for a while, neither did it hear: of a late look only a part counts.
        """
        patience = self._patience
        self._silent += min(elapsed, 2 * patience.look)
        if self._silent >= patience.lost:
            self.verdict, self.reason = "lost", f"the engine process has given no sign of life for {self._silent:.0f} s"
        elif self._step >= self._step_limit:
            self.verdict, self.reason = "lost", f"the engine has been in one step for {self._step:.0f} s"
        else:
            self.verdict = "stalled" if self._silent >= patience.stalled else "well"
        return self.verdict
