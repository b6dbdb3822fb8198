"""A prompt that a completion repeats before its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Echo:
    """`text` is the prompt's as the client gave it, or that of its tokens."""

    text: str
    tokens: tuple[int, ...]
