"""What one rendering of a chat template may do: a deadline, an amount of work, a size for every value.

Every value that a template makes is measured when it is made, so that no operation ever meets a value which it could
work on for long. What is left are operations whose result is far larger than what they are given; those are looked at
before they run (``template_bounds``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["METER", "Counted", "Meter", "TooMuchWork"]

METER = "poot meter"  # a space: no template can name it

# Characters and items of one value, everything inside it counted as often as it would be written.
MAX_SIZE = 8 << 20
# Of one container, itself; and containers within containers (the hash of a tuple recurses without a check).
MAX_ITEMS = 1 << 20
MAX_DEPTH = 200
# More digits than Python turns into text.
MAX_BITS = 1 << 14
# Units of work, a character made being one: what keeps the values of a rendering, all together, within some memory.
MAX_WORK = 256 << 20
# Text written by macros and blocks counts again in what they are written to.
MAX_WRITTEN = 8 * MAX_SIZE
# Input of the few operations whose work grows with the square of it.
MAX_SQUARED = 1 << 17
TURN = 8
_QUANTUM = 1 << 14  # units between two looks at the clock
_RECENT = 32
_ITEMS: type = type({}.items())  # dictionaries' own views: the classes of collections.abc are slow to ask
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, _ITEMS, type({}.keys()), type({}.values()))


class TooMuchWork(Exception):
    """The template worked for too long or made too much."""


class Counted:
    """Lazy items, as jinja2's ``map`` gives them, of which each is counted when it is taken.

    ``depth``: how many such lie within each other.
    """

    __slots__ = ("_items", "_meter", "depth")

    def __init__(self, items: Iterable[Any], meter: Meter, depth: int) -> None:
        self._items, self._meter, self.depth = items, meter, depth

    def __iter__(self) -> Iterator[Any]:
        for number, item in enumerate(self._meter.count(self._items)):
            if number >= MAX_ITEMS:
                raise too_large()
            yield item


class Meter:
    """One rendering's account. Every method raises ``TooMuchWork`` when something is used up.

    ``deadline``: on ``time.monotonic``'s clock, in seconds. ``work``: in units, of which a character made is one.
    """

    __slots__ = ("_deadline", "_left", "_nested", "_quantum", "_recent", "_written")

    def __init__(self, deadline: float, work: int = MAX_WORK) -> None:
        self._deadline = deadline
        self._left = work
        self._quantum = _QUANTUM
        self._written = 0
        # Sizes by identity, with the object, so that its identity stays its own: of containers inside others, and of
        # those made last, since a list that a loop adds to is made anew each time.
        self._nested: dict[int, tuple[object, int, int]] = {}
        self._recent: dict[int, tuple[object, int, int]] = {}

    def check(self) -> None:
        if time.monotonic() > self._deadline:
            raise TooMuchWork("it ran for too long")

    def spend(self, units: int) -> None:
        self._quantum -= units
        if self._quantum < 0:
            self._settle()

    def _settle(self) -> None:
        self._left -= _QUANTUM - self._quantum
        self._quantum = _QUANTUM
        if self._left < 0:
            raise TooMuchWork("it works through too much")
        self.check()

    def count(self, items: Iterable[Any]) -> Iterator[Any]:
        """``items``, each taken for the price of a turn."""
        for item in items:
            self._quantum -= TURN
            if self._quantum < 0:
                self._settle()
            yield item

    def write(self, characters: int) -> None:
        """Text goes to the output, or to that of a macro or block."""
        self._written += characters
        if self._written > MAX_WRITTEN:
            raise TooMuchWork(f"it writes over {MAX_WRITTEN} characters")
        self.spend(characters + TURN)

    def made(self, value: Any, depth: int = 0) -> Any:
        """``value``, which an operation made, unless it is too large; lazy items become ``Counted``.

        ``depth``: that of the lazy items which it was made of.
        """
        if isinstance(value, str):
            size = len(value)
            if size > MAX_SIZE:
                raise too_large()
            self._quantum -= size + TURN
            if self._quantum < 0:
                self._settle()
        elif isinstance(value, int):
            self.spend(TURN)
            if value.bit_length() > MAX_BITS:
                raise too_large()
        elif isinstance(value, list | tuple | dict | set | frozenset | bytes):
            self.spend(len(value) + TURN)
            self.size(value)
        elif isinstance(value, Iterator):
            if depth >= MAX_DEPTH:
                raise TooMuchWork("it nests lazy values too deeply")
            return Counted(value, self, depth + 1)
        return value

    def room(self, size: int) -> None:
        """Something of ``size`` characters is about to be made."""
        if size > MAX_SIZE:
            raise too_large()

    def size(self, value: Any) -> int:
        """Characters and items of ``value``, at most ``MAX_SIZE``, whatever lies inside it."""
        return self._measured(value, self._recent)[0]

    def _measured(self, value: Any, memory: dict[int, tuple[object, int, int]]) -> tuple[int, int]:
        if isinstance(value, str | bytes):
            return len(value), 0
        if isinstance(value, range):
            return len(value), 0
        if not isinstance(value, _CONTAINERS):
            return 1, 0
        key = id(value)
        known = self._nested.get(key) or self._recent.get(key)
        if known is None:
            size, depth = self._walked(value)
            known = (value, size, depth)
            memory[key] = known
            if memory is self._recent and len(memory) > _RECENT:
                del memory[next(iter(memory))]
        return known[1], known[2]

    def _walked(self, value: Any) -> tuple[int, int]:
        if len(value) > MAX_ITEMS:
            raise too_large()
        self.spend(len(value))
        size, depth = len(value) + 1, 0
        pairs = isinstance(value, dict | _ITEMS)
        for item in value.items() if isinstance(value, dict) else value:
            for part in item if pairs else (item,):
                if isinstance(part, str):
                    size += len(part)
                    continue
                inner, deep = self._measured(part, self._nested)
                size += inner
                depth = max(depth, deep + 1)
        if size > MAX_SIZE:
            raise too_large()
        if depth > MAX_DEPTH:
            raise TooMuchWork(f"it nests values over {MAX_DEPTH} deep")
        return size, depth


def too_large() -> TooMuchWork:
    return TooMuchWork(f"it makes a value of over {MAX_SIZE} characters or {MAX_ITEMS} items")
