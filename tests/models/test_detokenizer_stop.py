"""Stop strings: the same answer at every split, and nothing of a stop string leaks."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_models.errors import InvalidTextError
from poot_models.text import StopMatcher

LETTERS = st.text("ab\n", max_size=24)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def expected(text: str, stops: list[str], include_stop: bool) -> tuple[str, bool]:
    """By trying every place: the stop string that is complete first, and of those the longest."""
    for end in range(1, len(text) + 1):
        sizes = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if sizes:
            return text[: end if include_stop else end - max(sizes)], True
    return text, False


@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 24), max_size=6), include_stop=st.booleans())
@settings(max_examples=500, deadline=None)
def test_every_split_gives_the_same(text: str, stops: list[str], cuts: list[int], include_stop: bool) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    matcher = StopMatcher(stops, include_stop=include_stop)
    sent, stopped = "", False
    want, want_stopped = expected(text, stops, include_stop)
    for start, end in pairwise(edges):
        part, stopped = matcher.push(text[start:end])
        sent += part
        assert want.startswith(sent)  # nothing was sent that must not be
    assert (sent + matcher.finish(), stopped) == (want, want_stopped)


@given(text=LETTERS, stops=STOPS)
@settings(max_examples=300, deadline=None)
def test_only_a_possible_beginning_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    sent, stopped = matcher.push(text)
    if not stopped:
        beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        longest = max((size for size in range(len(text) + 1) if size == 0 or text[-size:] in beginnings), default=0)
        assert sent == text[: len(text) - longest]


def test_examples() -> None:
    matcher = StopMatcher(["</s>", "\n\nUser:"])
    assert matcher.push("Hello\n") == ("Hello", False)
    assert matcher.push("\nUse") == ("", False)
    assert matcher.push("ful <") == ("\n\nUseful ", False)
    assert matcher.push("/s> and more") == ("", True)
    assert matcher.stopped
    assert matcher.push("later") == ("", True)
    assert matcher.finish() == ""
    assert StopMatcher(["bc", "abcd"]).push("xabcd") == ("xa", True)  # "bc" is complete first
    assert StopMatcher(["c", "abc"]).push("xabc") == ("x", True)  # both at once: the longest
    assert StopMatcher(["🦙"], include_stop=True).push("a🦙b") == ("a🦙", True)
    assert StopMatcher([]).push("anything") == ("anything", False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidTextError, match="empty"):
        StopMatcher(["ok", ""])


def test_long_stop_strings_cost_no_more() -> None:
    stops = ["a" * size + "b" for size in range(900, 1000)]
    matcher = StopMatcher(stops)
    sent, stopped = matcher.push("a" * 200_000)  # minutes, if each character looked at each stop string
    assert (len(sent), stopped) == (200_000 - 999, False)
    assert matcher.push("b") == ("", True)
