"""Which way is chosen, by clocks that tell what the tests want, and what a device's clock does. No GPU is touched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from poot_executor.backends.triton import choices, stopwatch
from poot_executor.backends.triton.choices import Choices
from poot_executor.backends.triton.stopwatch import LIBRARY, OWN, DeviceClock, Lead, Stopwatch


@dataclass(frozen=True)
class Way:
    """Takes `cold` ms alone and, in its n-th burst, `bursts[n]` a call."""

    cold: float
    bursts: tuple[float, ...] = ()
    error: Exception | None = None

    def __call__(self) -> None:
        if self.error:
            raise self.error


@dataclass
class Script:
    """A clock for such ways. `said`: what it was asked."""

    names: dict[int, str] = field(default_factory=dict)
    said: list[Any] = field(default_factory=list)

    def run(self, way: Any) -> None:
        self.said.append(("run", self.names[id(way)]))
        way()

    def cold(self, ways: Sequence[Any]) -> list[float]:
        self.said.append("cold")
        for way in ways:
            way()
        return [way.cold for way in ways]

    def burst(self, way: Any, times: int) -> float:
        name = self.names[id(way)]
        before = sum(said[:2] == ("burst", name) for said in self.said)
        self.said.append(("burst", name, times))
        return float(times * (way.bursts[before] if way.bursts else way.cold))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(choices, "private_folder", lambda name: tmp_path)
    return tmp_path


def started() -> tuple[Stopwatch, Script]:
    """As in a new process."""
    clock = Script()
    return Stopwatch(clock, Choices(lambda: ("a device",))), clock


def asked(watch: Stopwatch, clock: Script, ways: dict[str, Way], lead: Lead = OWN, site: object = "site") -> str:
    clock.names = {id(way): name for name, way in ways.items()}
    return watch.fastest(site, bound(ways), lead)


def bound(ways: dict[str, Way]) -> dict[str, Callable[[], Way]]:
    return {name: partial(ways.__getitem__, name) for name in ways}


def chosen(ways: dict[str, Way], lead: Lead = OWN) -> tuple[str, list[Any]]:
    watch, clock = started()
    return asked(watch, clock, ways, lead), clock.said


@pytest.mark.parametrize(
    ("lead", "first", "other", "taken"),
    [
        (OWN, 0.0200, 0.0177, "first"),
        (OWN, 0.0200, 0.0175, "other"),
        (OWN, 0.0400, 0.0373, "first"),
        (OWN, 0.0400, 0.0371, "other"),
        (LIBRARY, 0.0400, 0.0393, "first"),
        (LIBRARY, 0.0400, 0.0391, "other"),
        (LIBRARY, 0.0040, 0.00391, "other"),
        (Lead(), 0.0400, 0.0400, "first"),
        (Lead(), 0.0400, 0.0399, "other"),
        (OWN, 0.0200, 0.0300, "first"),
    ],
)
def test_the_first_way_has_a_lead(lead: Lead, first: float, other: float, taken: str) -> None:
    assert chosen({"first": Way(first), "other": Way(other)}, lead) == (taken, ["cold"])


def test_only_the_first_way_has_it() -> None:
    ways = {"first": Way(0.03), "second": Way(0.0201), "third": Way(0.02)}
    assert chosen(ways) == ("third", ["cold"])


def test_long_ways_run_in_bursts_there_and_back() -> None:
    """The three fastest of those within 12 %; 10 ms each time. Alone the second was the fastest."""
    ways = {
        "first": Way(0.210, (0.22, 0.22)),
        "second": Way(0.200, (0.24, 0.24)),
        "slow": Way(0.225, (0.1, 0.1)),
        "fourth": Way(0.223, (0.1, 0.1)),
        "third": Way(0.220, (0.18, 0.27)),
    }
    name, said = chosen(ways, Lead())
    order = [("second", 50), ("first", 48), ("third", 46)]
    assert said == ["cold", *(("burst", *one) for one in (*order, *reversed(order)))]
    assert name == "first"


@pytest.mark.parametrize(("last", "taken"), [(0.30, "second"), (0.28, "first")])
def test_both_bursts_count(last: float, taken: str) -> None:
    assert chosen({"first": Way(0.2, (0.20, last)), "second": Way(0.2, (0.25, 0.24))}, Lead())[0] == taken


@pytest.mark.parametrize(
    ("lead", "burst", "taken"),
    [(LIBRARY, 0.1961, "first"), (LIBRARY, 0.1959, "other"), (OWN, 0.1941, "first"), (OWN, 0.1939, "other")],
)
def test_the_first_way_has_its_lead_in_bursts_too(lead: Lead, burst: float, taken: str) -> None:
    ways = {"first": Way(0.2, (0.2, 0.2)), "other": Way(0.2, (burst, burst))}
    assert chosen(ways, lead)[0] == taken


@pytest.mark.parametrize(
    ("ways", "bursts"),
    [
        ({"a": Way(0.050), "b": Way(0.050)}, 0),
        ({"a": Way(0.051), "b": Way(0.051)}, 4),
        ({"a": Way(0.100), "b": Way(0.111)}, 4),
        ({"a": Way(0.100), "b": Way(0.113)}, 0),
        ({"a": Way(20.0), "b": Way(20.0), "c": Way(20.0), "d": Way(20.0)}, 6),
    ],
)
def test_bursts_are_for_ways_that_are_long_and_near(ways: dict[str, Way], bursts: int) -> None:
    name, said = chosen(ways, Lead())
    assert name == "a"
    assert len(said) == 1 + bursts
    assert {one[2] for one in said[1:]} <= {1, 91, 100, 197}


def test_one_way_is_not_timed() -> None:
    assert chosen({"only": Way(1.0)}) == ("only", [])


def test_equal_sites_are_asked_once() -> None:
    watch, clock = started()
    ways = {"first": Way(0.02), "other": Way(0.01)}
    assert watch.known(("a", 1)) is None
    for _ in range(3):
        assert asked(watch, clock, ways, site=("a", 1)) == "other"
    assert clock.said == ["cold"]
    assert watch.known(("a", 1)) == "other"
    assert watch.known(("a", 2)) is None
    assert asked(watch, clock, {"first": Way(0.01), "other": Way(0.02)}, site=("a", 2)) == "first"


def test_a_later_process_chooses_the_same_and_runs_it_once() -> None:
    ways = {"first": Way(0.02), "other": Way(0.01)}
    asked(*started(), ways)
    watch, clock = started()
    assert watch.known("site") == "other"
    for _ in range(3):
        # By now it would be the slower one.
        assert asked(watch, clock, {"first": Way(0.01), "other": Way(0.02)}) == "other"
    assert clock.said == [("run", "other")]


def test_ways_are_bound_only_to_be_timed_or_run() -> None:
    bindings: list[str] = []

    def bind(name: str) -> Way:
        bindings.append(name)
        return ways[name]

    ways = {"first": Way(0.02), "other": Way(0.01)}
    watch, clock = started()
    clock.names = {id(way): name for name, way in ways.items()}
    assert watch.settled("site") is None
    for _ in range(3):
        assert watch.fastest("site", {name: partial(bind, name) for name in ways}) == "other"
        assert watch.settled("site") == "other"
    assert bindings == ["first", "other"]
    later, clock = started()
    clock.names = {id(way): name for name, way in ways.items()}
    assert later.settled("site") is None  # known, but here it has not run
    bindings.clear()
    for _ in range(3):
        assert later.fastest("site", {name: partial(bind, name) for name in ways}) == "other"
    assert bindings == ["other"]
    other, _ = started()
    other.settle("site")
    assert other.settled("site") == "other"


def test_a_name_that_is_no_longer_known_is_chosen_anew() -> None:
    asked(*started(), {"first": Way(0.02), "gone": Way(0.01)})
    ways = {"first": Way(0.02), "new": Way(0.01)}
    watch, clock = started()
    assert asked(watch, clock, ways) == "new"
    assert clock.said == ["cold"]
    watch, clock = started()
    assert asked(watch, clock, ways) == "new"
    assert clock.said == [("run", "new")]


def test_what_a_way_raises_is_raised_and_nothing_is_chosen() -> None:
    watch, clock = started()
    broken = {"first": Way(0.02), "other": Way(0.01, error=ValueError("no kernel"))}
    for _ in range(2):
        with pytest.raises(ValueError, match="no kernel"):
            asked(watch, clock, broken)
        assert watch.known("site") is None
    asked(watch, clock, {"first": Way(0.02), "other": Way(0.01)})
    watch, clock = started()
    for _ in range(2):  # chosen by an earlier process, and it does not run in this one
        with pytest.raises(ValueError, match="no kernel"):
            asked(watch, clock, broken)


class FakeDevice:
    """Stands in for torch: its events read a clock that ways and clearing of memory put forward."""

    uint8 = "uint8"

    def __init__(self) -> None:
        self.now, self.said, self.stream = 0.0, [], None
        self.cuda = SimpleNamespace(stream=self.on, Event=self.event)

    @contextlib.contextmanager
    def on(self, stream: str) -> Iterator[None]:
        self.stream = stream
        yield
        self.stream = None

    def event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=None, synchronize=lambda: self.said.append("wait"))

        def record() -> None:
            assert self.stream == "side"
            event.at = self.now

        event.record, event.elapsed_time = record, lambda end: end.at - event.at
        return event

    def empty(self, nbytes: int, *, dtype: str, device: str) -> Any:
        assert (self.stream, dtype, device) == ("side", "uint8", "cuda")
        return SimpleNamespace(zero_=lambda: self.pass_time(f"clear {nbytes}", 7.0))

    def pass_time(self, what: str, time: float) -> None:
        assert self.stream == "side"
        self.said.append(what)
        self.now += time

    def way(self, name: str, *times: float) -> Callable[[], None]:
        left = list(times)
        return lambda: self.pass_time(name, left.pop(0))


class Side(str):
    """A stream's name that can be waited for."""

    waits: list[str]

    def synchronize(self) -> None:
        self.waits.append("wait")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    made = FakeDevice()
    monkeypatch.setattr(stopwatch, "torch", made)
    return made


def clock_of(device: FakeDevice) -> DeviceClock:
    side = Side("side")
    side.waits = device.said
    return DeviceClock(side, 50, lambda: device.said.append("ready"))  # type: ignore[arg-type]


def test_a_cold_time_is_the_shortest_of_five_after_one_that_does_not_count(device: FakeDevice) -> None:
    """Of two, where those are more than 1.3 times what another one took."""
    ways = [
        device.way("a", 9.0, 3.0, 2.0, 4.0, 2.5, 6.0),
        device.way("b", 0.1, 2.7, 2.65),
        device.way("c", 9.0, 2.7, 2.55, 2.6, 1.9, 2.6),
    ]
    assert clock_of(device).cold(ways) == [2.0, pytest.approx(2.65), pytest.approx(1.9)]
    two, three = (lambda name: ["clear 100", name] * 2), (lambda name: ["clear 100", name] * 3)
    whole = [[name, *two(name), "wait", *three(name), "wait"] for name in "ac"]
    assert device.said == ["ready", *whole[0], "b", *two("b"), "wait", *whole[1]]


def test_a_burst_is_so_many_in_a_row(device: FakeDevice) -> None:
    assert clock_of(device).burst(device.way("a", 1.0, 2.0, 3.0), 3) == 6.0
    assert device.said == ["a", "a", "a", "wait"]


def test_a_way_runs_on_the_stream(device: FakeDevice) -> None:
    clock_of(device).run(device.way("a", 1.0))
    assert device.said == ["a"]
