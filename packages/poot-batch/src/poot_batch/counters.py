"""What the engine counts, for /metrics."""

from __future__ import annotations

from bisect import bisect_left

from poot_batch.request import EngineStats
from poot_batch.request.info import QUEUE_BUCKETS_MS, Histogram
from poot_batch.schedule import Sequence


class Counters:
    """Counters never fall. Requests are counted when they end, once each, but for `requests`, counted on arrival."""

    def __init__(self) -> None:
        self.requests = self.completed = self.cancelled = self.errored = 0
        self.prompt_tokens = self.completion_tokens = 0
        self.prefix_hit_tokens = self.prefix_query_tokens = 0
        self.steps, self.batch = 0, 0
        self.wall_seconds = self.busy_seconds = 0.0
        self._waits = [0] * (len(QUEUE_BUCKETS_MS) + 1)
        self._waited_ms = 0.0

    def admitted(self, sequence: Sequence) -> None:
        """A request was given blocks, some of them from the prefix cache."""
        self.prefix_hit_tokens += sequence.cached
        if sequence.looked_up:
            self.prefix_query_tokens += sequence.prompt_length

    def waited(self, milliseconds: float) -> None:
        """A request was given a row, after this time in the queue."""
        self._waits[bisect_left(QUEUE_BUCKETS_MS, milliseconds)] += 1
        self._waited_ms += milliseconds

    def stats(self, *, running: int, waiting: int, blocks: int, device_bytes: int) -> EngineStats:
        return EngineStats(
            requests_total=self.requests,
            requests_completed=self.completed,
            requests_cancelled=self.cancelled,
            requests_errored=self.errored,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            inflight=running + waiting,
            queue_depth=waiting,
            batch_size=self.batch,
            kv_blocks_used=blocks,
            prefix_hit_tokens=self.prefix_hit_tokens,
            prefix_query_tokens=self.prefix_query_tokens,
            steps=self.steps,
            step_wall_seconds=self.wall_seconds,
            step_busy_seconds=self.busy_seconds,
            device_bytes=device_bytes,
            queue_wait_ms=Histogram(tuple(self._waits), self._waited_ms, sum(self._waits)),
        )
