"""What a flag of the command line is, and the kinds of value that several flags take."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from poot_serve.errors import SettingsError

# What one flag sets: fields of Settings by name.
Fields = dict[str, object]

_INTEGER = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that takes one value, or none if `value`, its name in the help, is empty.

    `set` turns the value's text into fields of Settings, or raises SettingsError.
    """

    name: str
    value: str
    help: str
    set: Callable[[str], Fields]


def integer(flag: str, field: str, low: int, high: int, *, unit: int = 1) -> Callable[[str], Fields]:
    """Sets `field` to a whole number of `low` to `high`, times `unit`."""

    def parse_integer(text: str) -> Fields:
        if _INTEGER.fullmatch(text) is None or not low <= int(text) <= high:
            raise SettingsError(f"{flag} takes a whole number of {low} to {high}, not {text!r}")
        return {field: int(text) * unit}

    return parse_integer


def items(flag: str, text: str, most: int) -> list[str]:
    """The parts of a list with commas, none of them empty or there twice, `most` at most. Raises SettingsError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise SettingsError(f"{flag}: {text!r} has an empty part; it takes one or several, with commas between them")
    if len(parts) > most:
        raise SettingsError(f"{flag} takes {most} at most, not {len(parts)}")
    for part in parts:
        if parts.count(part) > 1:
            raise SettingsError(f"{flag} names {part!r} twice")
    return parts


def read_file(flag: str, path: str, most_bytes: int) -> bytes:
    """What is in a file that a flag names, `most_bytes` at most. Raises SettingsError."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a path that holds NUL
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{flag}: cannot read {path!r}: {reason}") from None
    if len(raw) > most_bytes:
        raise SettingsError(f"{flag}: {path!r} is larger than {most_bytes} bytes")
    return raw
