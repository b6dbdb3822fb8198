"""What a person sees while the server starts: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TextIO

from poot_serve.logs import Outlet

BAR_CHARS = 30


class Progress:
    """Shows phases of the start as (phase, done, total) calls come, from any thread. `total` 0 means unknown.

    What cannot be written is lost: a start does not end for a full disk.
    """

    def __init__(self, out: TextIO | Outlet) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._lock = threading.Lock()
        self._shown: dict[str, int] = {}
        self._drawn = False

    def __call__(self, phase: str, done: int, total: int) -> None:
        percent = min(100, done * 100 // total) if total > 0 else 0
        with self._lock:
            # A terminal gets each percent once, a log the first call and the end.
            step = percent if self._terminal else percent // 100
            if self._shown.get(phase) == step:
                return
            self._shown[phase] = step
            if self._terminal:
                filled = BAR_CHARS * percent // 100
                self._write(f"\r\x1b[K{phase:<16} [{'#' * filled}{'.' * (BAR_CHARS - filled)}] {percent:3d}%")
                self._drawn = True
            else:
                self._write(f"{phase}: {'done' if percent == 100 else 'started'}\n")

    def clear(self) -> None:
        """Takes the bar off the terminal, before anything else is written to it."""
        with self._lock:
            if self._drawn:
                self._drawn = False
                self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self._out.write(text)
            self._out.flush()
