"""Formatting in templates, which may pad a little to very much: ``%``, ``str.format`` and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter

from poot_models.text.template_meter import MAX_SIZE, Meter, TooMuchWork

__all__ = ["BoundedEscapeFormatter", "BoundedFormatter", "check_percent", "tojson"]

_MAX_WIDTH = 1 << 16
_MAX_INDENT = 64
_TEXT_OF_ONE = 10  # the most characters that repr makes of one
_FIELD = re.compile(
    r"%(?:\([^()]*\))?[#0 +-]*(?P<width>\*|[0-9]+)?(?:\.(?P<precision>\*|[0-9]+)?)?[hlL]?(?P<kind>.)", re.DOTALL
)
_NESTED_KEY = re.compile(r"%\([^()]*\(")
_DIGITS = re.compile(r"[0-9]{5,}")


def check_percent(meter: Meter, form: str | bytes, given: Any) -> None:
    """Before ``form % given``: the widths that the form asks for, and its fields times the largest thing given."""
    text = form if isinstance(form, str) else form.decode("latin-1")
    if _NESTED_KEY.search(text):
        raise TooMuchWork("it formats by a key with parentheses")
    if isinstance(given, tuple):
        values = list(given)
    else:
        values = list(given.values()) if isinstance(given, Mapping) else [given]
    meter.spend(len(values))
    plain = max(
        (len(value) if isinstance(value, str) else _TEXT_OF_ONE * meter.size(value) for value in values), default=0
    )
    total = len(text)
    for field in _FIELD.finditer(text):
        meter.spend(1)
        total += plain * (_TEXT_OF_ONE if field["kind"] in "ra" else 1)
        for asked in (field["width"], field["precision"]):
            if asked == "*":
                total += _width(max((abs(value) for value in values if isinstance(value, int)), default=0))
            elif asked:
                total += _width(int(asked) if len(asked) < 9 else MAX_SIZE)
        meter.room(total)


def _width(width: int) -> int:
    if width > _MAX_WIDTH:
        raise TooMuchWork(f"it pads a value to over {_MAX_WIDTH} characters")
    return width


class BoundedFormatter(SandboxedFormatter):
    """``str.format`` of the sandbox, of which no field is padded to much and the whole has a bound."""

    _made = 0

    def format_field(self, value: Any, format_spec: str) -> str:
        if _DIGITS.search(format_spec):
            raise TooMuchWork(f"it pads a value to over {_MAX_WIDTH} characters")
        text = str(super().format_field(value, format_spec))
        self._made += len(text)
        if self._made > MAX_SIZE:
            raise TooMuchWork(f"it formats a text of over {MAX_SIZE} characters")
        return text


class BoundedEscapeFormatter(BoundedFormatter, SandboxedEscapeFormatter):
    """The same for text that is marked as safe, which escapes what it is given."""


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Python's ``json.dumps``, as transformers has it: not jinja2's own filter, which escapes for HTML."""
    if indent is None and separators is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
    unit = indent if isinstance(indent, str) else " " * min(max(int(indent or 0), 0), _MAX_INDENT + 1)
    if len(unit) > _MAX_INDENT or any(len(separator) > _MAX_INDENT for separator in separators or ()):
        raise TooMuchWork(f"it writes JSON with over {_MAX_INDENT} characters between two values")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces, size = [], 0
    for piece in encoder.iterencode(value):
        size += len(piece)
        if size > MAX_SIZE:
            raise TooMuchWork(f"it writes JSON of over {MAX_SIZE} characters")
        pieces.append(piece)
    return "".join(pieces)
