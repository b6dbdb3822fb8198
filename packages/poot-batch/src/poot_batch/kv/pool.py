"""The blocks of one KV group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.int32]

_WINDOW = 1024  # blocks that are looked at first
_CANDIDATES = 1024  # for eviction, found at once


class BlockPool:
    """Reference-counted blocks 0..size-1 (arXiv 2309.06180), some of them findable by the digest of what they hold.

    A block without references is free, or, if it is findable, idle: it keeps its contents until its room is needed.
    Free blocks are given out first, and blocks that follow each other if there is such a run, since some kernels read
    those in place; then idle ones, those least recently in use first.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        """Blocks that have references."""
        self._references = np.zeros(size, dtype=np.int32)
        self._digests: list[bytes | None] = [None] * size
        self._index: dict[bytes, int] = {}
        self._findable = np.zeros(size, dtype=np.bool_)
        # When an idle block was in use last: larger is later.
        self._stamps = np.zeros(size, dtype=np.int64)
        self._clock = 0
        # How many blocks are free and not idle, and none before this one is.
        self._plain, self._lowest = size, 0
        # The blocks least recently in use, in order, with their stamps when they were found.
        self._candidates = np.empty((2, 0), dtype=np.int64)

    @property
    def free(self) -> int:
        """Blocks that can be given out: free and idle ones."""
        return self.size - self.used

    @property
    def findable(self) -> int:
        return len(self._index)

    def allocate(self, count: int) -> Blocks | None:
        """`count` blocks with one reference each; None when fewer can be given out."""
        if count > self.free:
            return None
        if count <= self._plain:
            blocks = self._take(count)
        else:
            free = np.union1d(self._free(self._lowest, self.size), self._evict(count - self._plain))
            blocks = _first_run(free, count)
        self._references[blocks] = 1
        self._plain -= count
        self.used += count
        return blocks.astype(np.int32)

    def _take(self, count: int) -> npt.NDArray[np.intp]:
        """`count` of the free blocks. Where most are, a run is among the first ones, and the others need no look."""
        if not count:
            return np.empty(0, dtype=np.intp)
        width = max(_WINDOW, 4 * count)
        while True:
            end = min(self._lowest + width, self.size)
            free = self._free(self._lowest, end)
            blocks = _first_run(free, count)
            run = len(blocks) == count and blocks[-1] - blocks[0] == count - 1
            if run or end == self.size:
                break
            width *= 4
        # Those between the first free block and the last of a run that begins there are taken.
        self._lowest = int(blocks[-1]) + 1 if run and blocks[0] == free[0] else int(free[0])
        return blocks

    def _free(self, begin: int, end: int) -> npt.NDArray[np.intp]:
        """The free blocks among these that are not idle, rising."""
        return begin + np.flatnonzero((self._references[begin:end] == 0) & ~self._findable[begin:end])

    def _evict(self, count: int) -> npt.NDArray[np.int64]:
        """Make `count` idle blocks free, those least recently in use.

        Whatever becomes idle or is touched gets a later stamp than all candidates have, so that those among them that
        are as they were found are still the first.
        """
        evicted = []
        while count:
            if not self._candidates.shape[1]:
                idle = np.flatnonzero((self._references == 0) & self._findable)
                most = min(len(idle), max(_CANDIDATES, count))
                first = idle[np.argpartition(self._stamps[idle], most - 1)[:most]]
                first = first[np.argsort(self._stamps[first])]
                self._candidates = np.stack([first, self._stamps[first]])
            blocks, stamps = self._candidates[:, :count]
            self._candidates = self._candidates[:, count:]
            idle = (self._references[blocks] == 0) & self._findable[blocks] & (self._stamps[blocks] == stamps)
            self.forget(blocks[idle])
            evicted.append(blocks[idle])
            count -= len(evicted[-1])
        return np.concatenate(evicted)

    def share(self, blocks: Blocks) -> None:
        """One more reference to blocks that are in use or idle. Blocks must not repeat."""
        unused = self._references[blocks] == 0
        if np.any(unused & ~self._findable[blocks]):
            raise ValueError("a free block cannot be shared")
        self._references[blocks] += 1
        self.used += int(np.count_nonzero(unused))

    def idle(self, blocks: Blocks) -> int:
        """How many of these blocks have no references."""
        return int(np.count_nonzero(self._references[blocks] == 0))

    def release(self, blocks: Blocks) -> None:
        """Give one reference of each block back. Blocks must not repeat.

        They are in a sequence's order: of those that become idle, the last is the first to be evicted.
        """
        if np.any(self._references[blocks] == 0):
            raise ValueError("a free block was released")
        self._references[blocks] -= 1
        unused = self._references[blocks] == 0
        self.used -= int(np.count_nonzero(unused))
        self._freed(blocks[unused & ~self._findable[blocks]])
        self.touch(blocks)

    def _freed(self, blocks: npt.NDArray[np.integer]) -> None:
        """Note that these blocks are free now, and were not before."""
        if len(blocks):
            self._plain += len(blocks)
            self._lowest = min(self._lowest, int(blocks.min()))

    def touch(self, blocks: Blocks) -> None:
        """Note that these blocks, in a sequence's order, were in use now."""
        self._clock += len(blocks)
        self._stamps[blocks] = np.arange(self._clock, self._clock - len(blocks), -1)

    def find(self, digest: bytes) -> int | None:
        return self._index.get(digest)

    def publish(self, block: int, digest: bytes) -> bool:
        """Make a block in use findable; False, and nothing changes, when another block with this digest is."""
        if self._references[block] == 0:
            raise ValueError("a block that nobody holds was published")
        if self._index.setdefault(digest, block) != block:
            return False
        self._digests[block] = digest
        self._findable[block] = True
        return True

    def forget(self, blocks: npt.NDArray[np.integer]) -> None:
        """Nobody finds these blocks any longer. Idle ones are free now."""
        for block in blocks.tolist():
            digest = self._digests[block]
            if digest is not None:
                del self._index[digest]
                self._digests[block] = None
        self._freed(blocks[(self._references[blocks] == 0) & self._findable[blocks]])
        self._findable[blocks] = False


def _first_run(free: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """The first `count` consecutive numbers of a rising list, or its first `count` numbers if there is no such run."""
    if 0 < count <= len(free):
        starts = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        if len(starts):
            return free[starts[0] : starts[0] + count]
    return free[:count]
