"""Live bytes by class, as the executor itself allocates them."""

from __future__ import annotations

from typing import Literal

# "recordings" is what the device's free memory fell by while entries were recorded: nobody allocates it by size.
MemoryClass = Literal["weights", "kv", "rows", "arena", "staging", "recordings"]


class Account:
    """Adds up what a device holds. `peak` is the highest total ever seen."""

    def __init__(self) -> None:
        self._bytes: dict[MemoryClass, int] = dict.fromkeys(
            ("weights", "kv", "rows", "arena", "staging", "recordings"), 0
        )
        self.peak = 0

    def add(self, kind: MemoryClass, nbytes: int) -> None:
        self._bytes[kind] += nbytes
        self.peak = max(self.peak, self.total)

    def remove(self, kind: MemoryClass, nbytes: int) -> None:
        if nbytes > self._bytes[kind]:
            raise ValueError(f"{nbytes} bytes of {kind} were never added")
        self._bytes[kind] -= nbytes

    def of(self, kind: MemoryClass) -> int:
        return self._bytes[kind]

    @property
    def total(self) -> int:
        return sum(self._bytes.values())

    def snapshot(self) -> dict[MemoryClass, int]:
        return dict(self._bytes)
