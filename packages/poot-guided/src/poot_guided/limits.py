"""Bounds on constraints, so that one request cannot take a server's time or memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in characters, counts, and nesting levels."""

    text: int = 64 * 1024
    choices: int = 4096
    nodes: int = 8192
    depth: int = 32


DEFAULT = Limits()
