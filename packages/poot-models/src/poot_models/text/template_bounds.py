"""Operations of templates whose result may be far larger than what they are given, or that work far longer.

A function here takes what its filter or method takes, after the rendering's ``Meter``, and raises ``TooMuchWork`` if
the result would be too large. It returns the value to work on, which is a list where lazy items had to be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from jinja2.runtime import Undefined

from poot_models.text.template_format import check_percent
from poot_models.text.template_meter import MAX_BITS, MAX_ITEMS, MAX_SIZE, MAX_SQUARED, Meter, TooMuchWork

__all__ = ["FILTERS", "METHODS", "check_binop", "check_words", "joinable"]

Bound = Callable[..., Any]

_MAX_PRECISION = 400  # a float has no more digits than that before or behind its point
_MAX_WORDS = 10_000
_MAX_CODED = 1024
_CODECS = frozenset({"utf-8", "utf8", "ascii", "us-ascii", "latin-1", "iso-8859-1", "utf-16", "utf-32"})
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # where str.splitlines splits


def check_binop(meter: Meter, operator: str, left: Any, right: Any) -> None:
    """Before ``left operator right``."""
    if isinstance(left, int) and isinstance(right, int):
        bits = max(left.bit_length(), right.bit_length())
        if bits > MAX_BITS or (operator == "**" and abs(left) > 1 and left.bit_length() * abs(right) > MAX_BITS):
            raise TooMuchWork("it works with too large a number")
    elif operator == "+":
        if isinstance(left, str) and isinstance(right, str):
            meter.room(len(left) + len(right))
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            meter.room(meter.size(left) + meter.size(right))
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | bytes | list | tuple) and isinstance(times, int):
                _check_repeated(meter, many, times)
    elif operator == "%" and isinstance(left, str | bytes):
        check_percent(meter, left, right)


def _check_repeated(meter: Meter, many: Any, times: int) -> None:
    if len(many) * times > MAX_ITEMS:
        raise TooMuchWork(f"it repeats a value to over {MAX_ITEMS} characters or items")
    meter.room(meter.size(many) * times)


def _padded(meter: Meter, value: Any, width: int = 80, fill: Any = " ") -> Any:
    meter.room(width)
    return value


def _expanded(meter: Meter, value: Any, tabsize: int = 8) -> Any:
    meter.room(len(value) + value.count("\t" if isinstance(value, str) else b"\t") * max(tabsize, 0))
    return value


def _replaced(meter: Meter, value: Any, old: Any, new: Any, count: int | None = None) -> Any:
    text, old, new = _texts(value, old, new)
    found = text.count(old)
    meter.room(len(text) + len(new) * (found if count is None or count < 0 else min(count, found)))
    return value


def _texts(*values: Any) -> tuple[Any, ...]:
    return tuple(value if isinstance(value, str | bytes) else str(value) for value in values)


def _translated(meter: Meter, value: Any, table: Any, delete: Any = b"") -> Any:
    if isinstance(value, str) and isinstance(table, Mapping):
        longest = max((len(item) for item in table.values() if isinstance(item, str)), default=1)
        meter.room(len(value) * max(longest, 1))
    return value


def _to_bytes(meter: Meter, value: Any, length: int = 1, byteorder: str = "big", *, signed: bool = False) -> Any:
    meter.room(length)
    return value


def joinable(meter: Meter, items: Iterable[Any], between: int) -> Any:
    """The items of a join as a list, unless their text, with ``between`` characters after each, is too large."""
    if isinstance(items, Undefined):
        return items
    if isinstance(items, str):
        meter.room(len(items) * (1 + between))
        return items
    taken, size = [], 0
    for item in meter.count(items):
        size += meter.size(item) + between
        meter.room(size)
        taken.append(item)
    return taken


def _joined(meter: Meter, value: Any, d: Any = "", attribute: Any = None) -> Any:
    return joinable(meter, value, len(_texts(d)[0]))


def _indented(meter: Meter, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    unit = len(width) if isinstance(width, str) else max(width, 0)
    (text,) = _texts(value)
    if (len(text) + 1) * unit > MAX_SIZE:
        meter.room(unit)
        meter.room((len(text.splitlines()) + 1) * unit + len(text))
    return value


def _formatted(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> Any:
    check_percent(meter, _texts(value)[0], kwargs or args)
    return value


def _squared(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> Any:
    if meter.size(value) > MAX_SQUARED:
        raise TooMuchWork(f"it passes over {MAX_SQUARED} characters to a slow filter")
    return value


def _wrapped(meter: Meter, value: Any, *args: Any, wrapstring: str | None = None, **kwargs: Any) -> Any:
    _squared(meter, value)
    between = args[2] if len(args) > 2 else wrapstring
    meter.room((len(_texts(value)[0]) + 1) * (1 + len(between or "")))
    return value


def _summed(meter: Meter, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    taken, size = [], meter.size(start)
    for item in meter.count(value):
        size += meter.size(item)
        taken.append(item)
        if size > MAX_SQUARED:
            raise TooMuchWork(f"it sums over {MAX_SQUARED} items")
    return taken


def _rounded(meter: Meter, value: Any, precision: int = 0, method: str = "common") -> Any:
    if abs(precision) > _MAX_PRECISION:
        raise TooMuchWork(f"it rounds to over {_MAX_PRECISION} digits")
    return value


def _sliced(meter: Meter, value: Any, slices: int, fill_with: Any = None) -> Any:
    _itemised(meter, value)
    if slices > MAX_ITEMS:
        raise TooMuchWork(f"it makes over {MAX_ITEMS} slices")
    return value


def _batched(meter: Meter, value: Any, linecount: int, fill_with: Any = None) -> Any:
    _itemised(meter, value)
    if fill_with is not None and linecount > MAX_ITEMS:
        raise TooMuchWork(f"it makes a batch of over {MAX_ITEMS} items")
    return value


def _itemised(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Before each character of a text becomes an item."""
    if isinstance(value, str) and len(value) > MAX_ITEMS:
        raise TooMuchWork(f"it takes a text apart into over {MAX_ITEMS} items")
    return value


def _split(meter: Meter, value: Any, sep: Any = None, maxsplit: int = -1) -> Any:
    if len(value) > MAX_ITEMS:
        pieces = value.count(sep) if sep else len(value.split(None, MAX_ITEMS + 1))
        if (pieces if maxsplit < 0 else min(pieces, maxsplit)) > MAX_ITEMS:
            raise TooMuchWork(f"it takes a text apart into over {MAX_ITEMS} items")
    return value


def _split_lines(meter: Meter, value: Any, keepends: bool = False) -> Any:
    if len(value) > MAX_ITEMS and isinstance(value, str) and sum(map(value.count, _LINE_ENDS)) > MAX_ITEMS:
        raise TooMuchWork(f"it takes a text apart into over {MAX_ITEMS} items")
    return value


def _coded(meter: Meter, value: Any, encoding: str = "utf-8", errors: str = "strict") -> Any:
    # Punycode takes time that grows with the square, and "namereplace" makes a name of each character.
    plain = encoding.lower().replace("_", "-") in _CODECS and errors in {"strict", "ignore", "replace"}
    if not plain and len(value) > _MAX_CODED:
        raise TooMuchWork(f"it encodes over {_MAX_CODED} characters as {encoding[:20]}, {errors[:20]}")
    return value


def check_words(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> None:
    """Before ``lipsum``."""
    if n * max > _MAX_WORDS:
        raise TooMuchWork(f"it makes over {_MAX_WORDS} words")


FILTERS: Mapping[str, Bound] = MappingProxyType(
    {
        "batch": _batched,
        "center": _padded,
        "format": _formatted,
        "indent": _indented,
        "join": _joined,
        "list": _itemised,
        "pprint": _squared,
        "replace": _replaced,
        "round": _rounded,
        "slice": _sliced,
        "sort": _itemised,
        "striptags": _squared,
        "sum": _summed,
        "title": _itemised,
        "unique": _itemised,
        "urlize": _squared,
        "wordcount": _itemised,
        "wordwrap": _wrapped,
    }
)
METHODS: Mapping[str, Bound] = MappingProxyType(
    {
        "center": _padded,
        "decode": _coded,
        "encode": _coded,
        "expandtabs": _expanded,
        "ljust": _padded,
        "replace": _replaced,
        "rjust": _padded,
        "rsplit": _split,
        "split": _split,
        "splitlines": _split_lines,
        "striptags": _squared,
        "to_bytes": _to_bytes,
        "translate": _translated,
        "zfill": _padded,
    }
)
