"""Server-sent events as OpenAI clients read them (WHATWG HTML, section 9.2): unnamed data events and comments."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def event(value: msgspec.Struct) -> bytes:
    """One event; JSON has no raw line breaks, so one `data:` line holds it."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def events(values: Iterable[msgspec.Struct]) -> bytes:
    return b"".join([event(value) for value in values])
