"""JSON from an untrusted file: bounded before it is parsed, and with one reading only."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from poot_models.errors import CheckpointFormatError

MAX_DEPTH = 64
MAX_MARKS = 1 << 20
"""Quotes, commas and opening brackets: they bound the objects that a parse can make, to about 100 MB."""

MAX_DIGITS = 300
"""Of a whole number: any that is read can become a float."""

# A quote alone is a string without an end. Possessive repeats: no backtracking, so time and memory stay linear.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)


def parse_object(raw: bytes, what: str, *, non_finite: bool = False) -> dict[str, Any]:
    """A JSON object in UTF-8. `what` names it in messages; `non_finite` admits NaN and Infinity.

    CheckpointFormatError: no such object, a key twice in one object, nesting above MAX_DEPTH, more than MAX_MARKS, a
    whole number of more than MAX_DIGITS.
    """
    if sum(raw.count(mark) for mark in (b'"', b",", b"[", b"{")) > MAX_MARKS:
        raise CheckpointFormatError(f"{what} has more than {MAX_MARKS} JSON quotes, commas and opening brackets")
    _check_depth(raw, what)

    def refuse_constant(name: str) -> float:
        raise CheckpointFormatError(f"{what} holds {name}, which is not JSON")

    def whole_number(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise CheckpointFormatError(f"{what} has a whole number of {len(digits)} digits; at most {MAX_DIGITS}")
        return int(digits)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise CheckpointFormatError(f"{what} has the key {twice[:80]!r} twice in one object")
        return found

    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=None if non_finite else refuse_constant,
            parse_int=whole_number,
        )
    except ValueError as error:  # bad UTF-8 or bad JSON
        raise CheckpointFormatError(f"{what} is not JSON in UTF-8: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointFormatError(f"{what} is not a JSON object")
    return value


def _check_depth(raw: bytes, what: str) -> None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(raw):
        token = match[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth > MAX_DEPTH:
                raise CheckpointFormatError(f"{what} nests deeper than {MAX_DEPTH}")
        elif token in (b"]", b"}"):
            depth -= 1
            if depth < 0:
                raise CheckpointFormatError(f"{what} is not JSON: a bracket closes that never opened")
        elif token == b'"':
            raise CheckpointFormatError(f"{what} is not JSON: a string has no end")
