"""Server-sent events as OpenAI clients read them (WHATWG HTML, section 9.2): unnamed data events and comments."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def event(value: msgspec.Struct) -> bytes:
    """One event; JSON has no raw line breaks, so one `data:` line holds it."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def events(values: Iterable[msgspec.Struct]) -> bytes:
    return b"".join([event(value) for value in values])


class TextEvents:
    """The events of values that differ in one text alone: everything else is encoded once.

    `make` gives the value that holds a text.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, make: Callable[[str], msgspec.Struct]) -> None:
        one, other = event(make("a")), event(make("b"))
        # Where they differ, in bytes from the end.
        at = len(one) - ((int.from_bytes(one) ^ int.from_bytes(other)).bit_length() + 7) // 8
        self._before, self._after = one[: at - 1], one[at + 2 :]

    def __call__(self, text: str) -> bytes:
        return self._before + msgspec.json.encode(text) + self._after
