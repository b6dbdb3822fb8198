"""The vocabulary that masks are made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens[i]` holds the bytes of token i; `ends` are the tokens that end a text; `special` ones produce no text."""

    tokens: tuple[bytes, ...]
    ends: frozenset[int]
    special: frozenset[int] = frozenset()
