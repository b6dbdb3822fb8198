"""Which of several calls is the fastest, seen from the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_REPEATS = 5
# Milliseconds by which a call must be faster than the first to be taken. Kernels of our own come first: their launch
# hides behind the kernel before them and the next one's behind theirs, which a call alone does not show.
_HIDDEN = 0.002


class Stopwatch:
    """Times calls on one stream, with a cold cache, since a step never finds its weights there."""

    def __init__(self, stream: torch.cuda.Stream, cache_bytes: int) -> None:
        self._stream, self._cache = stream, cache_bytes
        self._known: dict[object, int] = {}

    def fastest(self, site: object, calls: Sequence[Callable[[], object]]) -> int:
        """The index of the fastest; remembered for sites that are equal."""
        if site not in self._known:
            with torch.cuda.stream(self._stream):
                evict = torch.empty(2 * self._cache, dtype=torch.uint8, device="cuda")
                times = [self._milliseconds(call, evict) for call in calls]
            times[0] -= _HIDDEN
            self._known[site] = times.index(min(times))
        return self._known[site]

    def _milliseconds(self, call: Callable[[], object], evict: torch.Tensor) -> float:
        call()
        spans = []
        for _ in range(_REPEATS):
            begin, end = _event(), _event()
            evict.zero_()
            begin.record()
            call()
            end.record()
            spans.append((begin, end))
        self._stream.synchronize()
        return float(min(begin.elapsed_time(end) for begin, end in spans))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
