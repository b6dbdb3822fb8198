"""Stop strings in a text that comes in parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from poot_models.errors import InvalidTextError

__all__ = ["StopMatcher"]


@dataclass(slots=True)
class _Node:
    """A prefix of some stop strings, ``depth`` characters long.

    ``fail``: the node of its longest proper suffix that is such a prefix too. ``stop``: the length of the longest stop
    string that it ends with, or 0.
    """

    depth: int
    next: dict[str, int] = field(default_factory=dict)
    fail: int = 0
    stop: int = 0


class StopMatcher:
    """Finds the first stop string to be complete in a text, however the text is split.

    Of stop strings complete at the same character the longest counts. Text is held back only while it may be the
    beginning of a stop string. The search is Aho and Corasick's automaton (CACM 18(6), 1975): one step a character.
    """

    __slots__ = ("_held", "_include_stop", "_nodes", "_state", "_stopped")

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """Raises ``InvalidTextError`` for an empty stop string."""
        if "" in stops:
            raise InvalidTextError("a stop string is empty, and would match everywhere; leave it out")
        self._nodes = _automaton(stops)
        self._include_stop = include_stop
        self._state = 0
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        return self._stopped

    def push(self, text: str) -> tuple[str, bool]:
        """(the text that may be sent, whether a stop string was found). After a stop, nothing more is sent."""
        if self._stopped:
            return "", True
        nodes, state, root = self._nodes, self._state, self._nodes[0]
        if not root.next:
            return text, False
        for index, char in enumerate(text, 1):
            while (following := nodes[state].next.get(char)) is None and state:
                state = nodes[state].fail
            state = following or 0
            if size := nodes[state].stop:
                self._stopped = True
                seen = self._held + text[:index]
                self._held = ""
                return (seen if self._include_stop else seen[: len(seen) - size]), True
        self._state = state
        seen = self._held + text
        safe = len(seen) - nodes[state].depth
        self._held = seen[safe:]
        return seen[:safe], False

    def finish(self) -> str:
        """The text that was held back, once no more will come."""
        held, self._held, self._state = self._held, "", 0
        return held


def _automaton(stops: Sequence[str]) -> list[_Node]:
    nodes = [_Node(0)]
    for stop in stops:
        at = 0
        for char in stop:
            if (following := nodes[at].next.get(char)) is None:
                following = nodes[at].next[char] = len(nodes)
                nodes.append(_Node(nodes[at].depth + 1))
            at = following
        nodes[at].stop = len(stop)
    waiting = deque(nodes[0].next.values())
    while waiting:
        at = waiting.popleft()
        for char, child in nodes[at].next.items():
            fail = nodes[at].fail
            while char not in nodes[fail].next and fail:
                fail = nodes[fail].fail
            nodes[child].fail = nodes[fail].next.get(char, 0)
            nodes[child].stop = nodes[child].stop or nodes[nodes[child].fail].stop
            waiting.append(child)
    return nodes
