"""Named points at which the engine can be made to fail. Off, unless a plan is armed: one comparison with None.

Nothing arms a plan by itself: no flag of a server, no environment. Tests and the simulator do, with an explicit object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

POINTS = ("kv.reserve", "driver.open", "driver.submit", "driver.collect", "driver.logits", "worker.send")
# Points that refuse: "kv.reserve" finds no room, "driver.logits" finds the first row's logits not finite.
REFUSING = ("kv.reserve", "driver.logits")


class FaultPlan(Protocol):
    def reach(self, point: str) -> bool:
        """Called at each point. May raise what could be raised there; True lets a point that can refuse do so."""


class InjectedFaultError(Exception):
    """What a `CountedFaults` raises: no error of this package, as what breaks in earnest would be none."""


class CountedFaults:
    """Fails the given visits of each point, counted from 1: those of REFUSING refuse, the others raise `error`."""

    def __init__(self, visits: Mapping[str, Collection[int]], error: type[Exception] = InjectedFaultError) -> None:
        unknown = set(visits).difference(POINTS)
        if unknown:
            raise ValueError(f"no fault points: {', '.join(sorted(unknown))}")
        self._visits, self._error = visits, error
        self.reached: dict[str, int] = dict.fromkeys(POINTS, 0)
        self.failed: list[str] = []

    def reach(self, point: str) -> bool:
        self.reached[point] += 1
        if self.reached[point] not in self._visits.get(point, ()):
            return False
        self.failed.append(point)
        if point in REFUSING:
            return True
        raise self._error(f"{point}, visit {self.reached[point]}")


_plan: FaultPlan | None = None


def reach(point: str) -> bool:
    """Mark a point: whether it is to refuse."""
    return _plan is not None and _plan.reach(point)


@contextmanager
def armed(plan: FaultPlan) -> Iterator[None]:
    """Arm a plan for this process, all its threads included, until the block ends. One at a time."""
    global _plan
    if _plan is not None:
        raise ValueError("a fault plan is armed already")
    _plan = plan
    try:
        yield
    finally:
        _plan = None
