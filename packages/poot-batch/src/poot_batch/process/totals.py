"""Figures over the engine processes that one server has had: counters go on where the process before left them."""

from __future__ import annotations

from msgspec.structs import replace

from poot_batch.request import EngineStats, FinishReason
from poot_batch.request.info import Histogram

_COUNTERS = (
    "prompt_tokens",
    "completion_tokens",
    "prefix_hit_tokens",
    "prefix_query_tokens",
    "steps",
    "step_wall_seconds",
    "step_busy_seconds",
)


class Totals:
    """Requests are counted on this side of the socket, once when they are sent and once when they end, so that those
    of an engine that dies are counted as well. All else is what the engine said last: what a dead one did after that
    is lost, but nothing falls."""

    def __init__(self) -> None:
        self.restarts = 0
        self._requests = self._completed = self._cancelled = self._errored = 0
        self._before = self._last = EngineStats()

    def opened(self) -> None:
        self._requests += 1

    def ended(self, finish: FinishReason) -> None:
        if finish == "abort":
            self._cancelled += 1
        elif finish == "error":
            self._errored += 1
        else:
            self._completed += 1

    def heard(self, stats: EngineStats) -> EngineStats:
        """The figures, now that the engine has told its own."""
        self._last = stats
        return self._with_requests(_sum(self._before, stats))

    def unheard(self, open_requests: int) -> EngineStats:
        """The figures when the engine does not answer: all but the requests that are open as it told them last."""
        return replace(self._with_requests(_sum(self._before, self._last)), inflight=open_requests)

    def lost(self) -> None:
        """The engine process is gone, and what it held with it."""
        self._before, self._last = _sum(self._before, self._last), EngineStats()

    def _with_requests(self, stats: EngineStats) -> EngineStats:
        return replace(
            stats,
            requests_total=self._requests,
            requests_completed=self._completed,
            requests_cancelled=self._cancelled,
            requests_errored=self._errored,
            restarts=self.restarts,
        )


def _sum(before: EngineStats, now: EngineStats) -> EngineStats:
    """`now` with the counters of `before` added to its own."""
    counters = {name: getattr(before, name) + getattr(now, name) for name in _COUNTERS}
    return replace(now, queue_wait_ms=_joined(before.queue_wait_ms, now.queue_wait_ms), **counters)


def _joined(before: Histogram | None, now: Histogram | None) -> Histogram | None:
    if before is None or now is None:
        return now if before is None else before
    buckets = tuple(a + b for a, b in zip(before.buckets, now.buckets, strict=True))
    return Histogram(buckets, before.sum + now.sum, before.count + now.count)
