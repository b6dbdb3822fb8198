"""Strict JSON: what parsers disagree on is refused before a body is decoded (RFC 8259, RFC 7493 "I-JSON")."""

from __future__ import annotations

import json
import re
from typing import NoReturn

from poot_serve.errors import BadJsonError

MAX_DEPTH = 64
MAX_VALUES = 1_000_000
MAX_KEYS = 200_000
# The closing quote is optional so that an unterminated string costs one pass, not one for each quote in it.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_SPACE = re.compile(r"[ \t\n\r]*")
_NOT_BRACKET = re.compile(r"[^\[\]{}]+")
_ESCAPED_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def check_json_text(body: bytes) -> None:
    """Refuse what is not UTF-8, not JSON, deeper than MAX_DEPTH, or holds duplicate keys, NaN or lone surrogates.

    Linear in the body, and builds no tree. Raises BadJsonError.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadJsonError(f"the body is not UTF-8 (byte {error.start})") from None
    if "\\u" in text:
        _check_surrogates(text)
    _check_nesting(text)
    # Few bodies have space around what they hold.
    begin = 0 if text.startswith("{") else _after_space(text, 0)
    try:
        _, end = _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        raise BadJsonError(f"the body is not JSON: {error.msg} (character {error.pos})") from None
    if end != len(text) and (end := _after_space(text, end)) != len(text):
        raise BadJsonError(f"the body is not JSON: Extra data (character {end})")


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def _check_surrogates(text: str) -> None:
    if _ESCAPED_SURROGATE.search(text) is None:
        return
    # Blanking escaped backslashes first leaves each remaining backslash at the start of an escape.
    rest = _ESCAPED_PAIR.sub("  ", text.replace("\\\\", "  "))
    if _ESCAPED_SURROGATE.search(rest) is not None:
        raise BadJsonError("the body holds half of a surrogate pair, which is no character")


def _check_nesting(text: str) -> None:
    if text.count("[") + text.count("{") + text.count(",") <= MAX_DEPTH:
        return
    bare = _STRING.sub("", text)
    if bare.count(",") + bare.count("[") + bare.count("{") > MAX_VALUES:
        raise BadJsonError(f"the body holds more than {MAX_VALUES} values")
    if bare.count(":") > MAX_KEYS:
        raise BadJsonError(f"the body holds more than {MAX_KEYS} keys")
    depth = 0
    for bracket in _NOT_BRACKET.sub("", bare):
        if bracket in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise BadJsonError(f"the body nests deeper than {MAX_DEPTH} levels")
        else:
            depth -= 1


def _distinct_keys(pairs: list[tuple[str, object]]) -> None:
    if len(pairs) > 1 and len(dict(pairs)) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadJsonError(f"the body holds the key {key[:64]!r} twice in one object")
            seen.add(key)


def _refuse_constant(name: str) -> NoReturn:
    raise BadJsonError(f"the body holds {name}, which is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_distinct_keys, parse_int=len, parse_float=len, parse_constant=_refuse_constant
)
