"""Device time by kernel, from torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel or copy. Microseconds."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Of one kernel's `count` launches: device microseconds that no earlier work also took."""

    name: str
    count: int
    microseconds: float


def spans(run: Callable[[], object]) -> list[Span]:
    """All device work of `run`."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return [
        Span(event.name, event.time_range.start, event.time_range.end)
        for event in found.events() or ()
        if event.device_type.name == "CUDA"
    ]


def attribute(found: Sequence[Span]) -> list[KernelTime]:
    """Each moment to the work that ends first after it, largest sum first.

    With dependent launches a kernel's programs start, and wait, while the one before still runs: its own length would
    count that time twice.
    """
    counts: dict[str, int] = {}
    times: dict[str, float] = {}
    before = float("-inf")
    for span in sorted(found, key=lambda span: span.end):
        counts[span.name] = counts.get(span.name, 0) + 1
        times[span.name] = times.get(span.name, 0.0) + max(0.0, span.end - max(span.begin, before))
        before = max(before, span.end)
    made = [KernelTime(name, counts[name], times[name]) for name in times]
    return sorted(made, key=lambda kernel: -kernel.microseconds)


def table(kernels: Sequence[KernelTime], most: int = 22) -> str:
    return "\n".join(
        f"  {kernel.name[:70]:70} {kernel.count:6} x {kernel.microseconds / kernel.count:8.2f} us = "
        f"{kernel.microseconds / 1000:8.2f} ms"
        for kernel in kernels[:most]
    )
