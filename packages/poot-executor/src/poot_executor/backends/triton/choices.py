"""Which of several ways was chosen where, on disk, so that later starts choose the same and spend no time on it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from poot_executor.devices.private_folder import private_folder

# No file of choices is read beyond this, nor written.
_MOST_BYTES = 4 * 2**20


class Choices:
    """Names of ways by site: texts that are the same in every process.

    `made_of`: what choices depend on, device and libraries with their versions; asked once, at the first use. Each has
    a file of its own, which says so in its first line; then a line is a JSON list of site and way, the later one of a
    site counting. Processes append to it as they choose. What cannot be read was never chosen, and what cannot be
    written is known to this process alone.
    """

    def __init__(self, made_of: Callable[[], Sequence[str]]) -> None:
        self._made_of = made_of

    def __len__(self) -> int:
        return len(self._known)

    def get(self, site: str) -> str | None:
        return self._known.get(site)

    def put(self, site: str, way: str) -> None:
        self._known[site] = way
        if self._path is None:
            return
        try:
            _append(self._path, [self._parts], [site, way])
        except OSError:
            return

    @cached_property
    def _parts(self) -> str:
        return ", ".join(self._made_of())

    @cached_property
    def _path(self) -> Path | None:
        try:
            folder = private_folder("choices")
        except OSError:
            return None
        return folder / f"{hashlib.sha256(self._parts.encode()).hexdigest()[:32]}.txt"

    @cached_property
    def _known(self) -> dict[str, str]:
        return dict(_pairs(_read(self._path))) if self._path else {}


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""


def _pairs(held: bytes) -> Iterator[tuple[str, str]]:
    """Sites and ways of a file; lines that are no such pair are passed over."""
    for line in held.split(b"\n"):
        try:
            pair = json.loads(line)
        except (ValueError, RecursionError):
            continue
        match pair:
            case [str(site), str(way)]:
                yield site, way


def _append(path: Path, head: Sequence[str], line: Sequence[str]) -> None:
    """One write a line, which processes at once do not tear; `head` is the line before all others."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(file).st_size
        lines = [line] if size else [head, line]
        # The last line of a process that was ended in it is not finished.
        before = "\n" if size and os.pread(file, 1, size - 1) != b"\n" else ""
        data = (before + "".join(json.dumps(each) + "\n" for each in lines)).encode()
        if size + len(data) <= _MOST_BYTES:
            os.write(file, data)
    finally:
        os.close(file)
