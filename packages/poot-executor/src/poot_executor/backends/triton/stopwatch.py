"""Which of several ways to do the same is the fastest, seen from the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from poot_executor.backends.triton.choices import Choices

Call = Callable[[], object]
Bind = Callable[[], Call]

_REPEATS, _FIRST = 5, 2
_FAR = 1.3  # times the fastest so far: more of the repeats would not make up for that
# Milliseconds from which on a way is long enough for its power to count: a device that draws too much slows down, and
# then the way that needs less of it may be the faster one, which a call alone does not show.
_LONG = 0.05
_NEAR = 1.12  # times the fastest: ways that take longer are not run in bursts
_MOST_NEAR = 3
_BURST = 10.0  # milliseconds


@dataclass(frozen=True, slots=True)
class Lead:
    """By what another way must be faster than the first to be taken: milliseconds, and a share of the first's time."""

    milliseconds: float = 0.0
    share: float = 0.0

    def off(self, time: float) -> float:
        return time * (1.0 - self.share) - self.milliseconds


# Kernels of our own come first: their launch hides behind the kernel before them and the next one's behind theirs,
# which a call alone does not show. Times that differ by less than some percent may change places the next time.
OWN = Lead(milliseconds=0.002, share=0.02)
# torch's choice of the library's algorithms comes first.
LIBRARY = Lead(share=0.02)


class Clock(Protocol):
    """What runs ways on a device, and says how many milliseconds that took."""

    def run(self, way: Call) -> None:
        """Enqueue it once."""

    def cold(self, ways: Sequence[Call]) -> list[float]:
        """The shortest time of each, with a cold cache, since a step never finds its weights there."""

    def burst(self, way: Call, times: int) -> float:
        """Of so many in a row, together."""


class Stopwatch:
    """Chooses by a clock, once for each site; `choices` keeps what was chosen, also by earlier processes."""

    def __init__(self, clock: Clock, choices: Choices) -> None:
        self._clock, self._choices = clock, choices
        self._tried: set[str] = set()

    @property
    def fresh(self) -> bool:
        """Whether nothing has been chosen yet, by this process or an earlier one."""
        return not self._choices

    def known(self, site: object) -> str | None:
        """What was chosen at a site that has the same repr, if that is known."""
        return self._choices.get(_text(site))

    def settled(self, site: object) -> str | None:
        """What is known of a site, once it has been timed or run in this process."""
        text = _text(site)
        return self._choices.get(text) if text in self._tried else None

    def settle(self, site: object) -> None:
        """What is known of a site has been run."""
        self._tried.add(_text(site))

    def fastest(self, site: object, ways: Mapping[str, Bind], lead: Lead = OWN) -> str:
        """The name of the fastest way. `lead` is the first one's. Raises what a way raises.

        Ways are bound only to be timed or run: a step has as many sites as layers, and few different ones.
        """
        text = _text(site)
        name = self._choices.get(text)
        if name is None or name not in ways:
            name = self._measured({name: bind() for name, bind in ways.items()}, lead)
            self._choices.put(text, name)
        elif text not in self._tried:
            # An earlier process chose it: here it may not run.
            self._clock.run(ways[name]())
        self._tried.add(text)
        return name

    def _measured(self, ways: Mapping[str, Call], lead: Lead) -> str:
        names = list(ways)
        if len(names) == 1:
            return names[0]
        cold = dict(zip(names, self._clock.cold(list(ways.values())), strict=True))
        ranked = _ranked(cold, names[0], lead)
        fastest = ranked[0][0]
        near = [name for name, time in ranked[:_MOST_NEAR] if time <= _NEAR * ranked[0][1]]
        if cold[fastest] <= _LONG or len(near) == 1:
            return fastest
        spent = dict.fromkeys(near, 0.0)
        # There and back: what changes as the device gets warm is the same for all of them.
        for name in (*near, *reversed(near)):
            times = math.ceil(_BURST / cold[name])
            spent[name] += self._clock.burst(ways[name], times) / times / 2
        return _ranked(spent, names[0], lead)[0][0]


class DeviceClock:
    """Times on one stream, by events. `ready` returns when nothing else keeps the device busy."""

    def __init__(self, stream: torch.cuda.Stream, cache_bytes: int, ready: Callable[[], None]) -> None:
        self._stream, self._cache, self._ready = stream, cache_bytes, ready

    def run(self, way: Call) -> None:
        with torch.cuda.stream(self._stream):
            way()

    def cold(self, ways: Sequence[Call]) -> list[float]:
        self._ready()
        times: list[float] = []
        with torch.cuda.stream(self._stream):
            evict = torch.empty(2 * self._cache, dtype=torch.uint8, device="cuda")
            for way in ways:
                way()
                time = self._shortest(way, evict, _FIRST)
                if time <= _FAR * min(times, default=time):
                    time = min(time, self._shortest(way, evict, _REPEATS - _FIRST))
                times.append(time)
        return times

    def burst(self, way: Call, times: int) -> float:
        begin, end = _event(), _event()
        with torch.cuda.stream(self._stream):
            begin.record()
            for _ in range(times):
                way()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def _shortest(self, way: Call, evict: torch.Tensor, times: int) -> float:
        spans = []
        for _ in range(times):
            begin, end = _event(), _event()
            evict.zero_()
            begin.record()
            way()
            end.record()
            spans.append((begin, end))
        self._stream.synchronize()
        return float(min(begin.elapsed_time(end) for begin, end in spans))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _text(site: object) -> str:
    return site if isinstance(site, str) else repr(site)


def _ranked(times: Mapping[str, float], first: str, lead: Lead) -> list[tuple[str, float]]:
    """Names and times, the fastest first, once the way `first` has its lead."""
    led = [(name, lead.off(time) if name == first else time) for name, time in times.items()]
    return sorted(led, key=lambda pair: pair[1])
