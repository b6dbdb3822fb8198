"""The blocks of one KV group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.int32]


class BlockPool:
    """Reference-counted blocks 0..size-1 (arXiv 2309.06180).

    Blocks that follow each other are given out when there is such a run, since some kernels read those in place.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._references = np.zeros(size, dtype=np.int32)

    @property
    def free(self) -> int:
        return self.size - self.used

    @property
    def used(self) -> int:
        return int(np.count_nonzero(self._references))

    def allocate(self, count: int) -> Blocks | None:
        """`count` blocks with one reference each; None when fewer are free."""
        free = np.flatnonzero(self._references == 0)
        if len(free) < count:
            return None
        blocks = _first_run(free, count)
        self._references[blocks] = 1
        return blocks.astype(np.int32)

    def share(self, blocks: Blocks) -> None:
        """One more reference to blocks that are in use."""
        if np.any(self._references[blocks] == 0):
            raise ValueError("a free block cannot be shared")
        self._references[blocks] += 1

    def release(self, blocks: Blocks) -> None:
        """Give one reference of each block back. Blocks must not repeat."""
        if np.any(self._references[blocks] == 0):
            raise ValueError("a free block was released")
        self._references[blocks] -= 1


def _first_run(free: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """The first `count` consecutive numbers of a rising list, or its first `count` numbers if there is no such run."""
    if count:
        starts = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        if len(starts):
            return free[starts[0] : starts[0] + count]
    return free[:count]
