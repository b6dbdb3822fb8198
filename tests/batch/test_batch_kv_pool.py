"""Which blocks a pool gives out, against the rule written down plainly: free ones, a run if there is one, then idle
ones, those least recently in use first."""

from __future__ import annotations

import random

import numpy as np
import pytest

from poot_batch.kv import pool as pools
from poot_batch.kv.pool import BlockPool


class PlainPool:
    """The rule, by lists. `references` and `digest` are by block, `seen` has blocks by when they were in use last."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.references = [0] * size
        self.digest: list[bytes | None] = [None] * size
        self.seen: list[int] = []

    def allocate(self, count: int) -> list[int] | None:
        unused = [block for block in range(self.size) if not self.references[block]]
        if count > len(unused):
            return None
        free = [block for block in unused if self.digest[block] is None]
        idle = [block for block in self.seen if not self.references[block] and self.digest[block] is not None]
        for block in idle[: max(0, count - len(free))]:
            self.digest[block] = None
            free.append(block)
        free.sort()
        runs = [free[i : i + count] for i in range(len(free) - count + 1)]
        whole = [run for run in runs if not run or run[-1] - run[0] == count - 1]
        blocks = whole[0] if whole else free[:count]
        for block in blocks:
            self.references[block] = 1
        return blocks

    def release(self, blocks: list[int]) -> None:
        for block in blocks:
            self.references[block] -= 1
        self.touch(blocks)

    def touch(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            if block in self.seen:
                self.seen.remove(block)
            self.seen.append(block)


class Both:
    """A pool and the rule, to which the same happens."""

    def __init__(self, size: int, seed: int) -> None:
        self.pool, self.plain, self.chance = BlockPool(size), PlainPool(size), random.Random(seed)
        self.held: list[list[int]] = []
        self.evictions = self.published = 0

    def some(self, share: float, *, findable: bool) -> list[int]:
        blocks = [block for block in range(self.plain.size) if self.chance.random() < share]
        return [block for block in blocks if not findable or self.plain.digest[block] is not None]

    def allocate(self) -> None:
        count, findable = self.chance.choice((0, 1, 2, 3, 5, 8, 20)), self.pool.findable
        given, wanted = self.pool.allocate(count), self.plain.allocate(count)
        self.evictions += findable - self.pool.findable
        assert (None if given is None else given.tolist()) == wanted
        if wanted:
            self.held.append(wanted)

    def release(self) -> None:
        if self.held:
            blocks = self.held.pop(self.chance.randrange(len(self.held)))
            self.pool.release(np.array(blocks, dtype=np.int32))
            self.plain.release(blocks)

    def publish(self) -> None:
        for block in self.chance.choice(self.held) if self.held else ():
            if self.plain.digest[block] is None:
                self.published += 1
                digest = self.published.to_bytes(4, "little")
                assert self.pool.publish(block, digest)
                self.plain.digest[block] = digest

    def share(self) -> None:
        blocks = self.some(0.1, findable=True)
        if blocks:
            self.pool.share(np.array(blocks, dtype=np.int32))
            for block in blocks:
                self.plain.references[block] += 1
            self.held.append(blocks)

    def forget(self) -> None:
        blocks = self.some(0.02, findable=False)
        self.pool.forget(np.array(blocks, dtype=np.int32))
        for block in blocks:
            self.plain.digest[block] = None

    def touch(self) -> None:
        blocks = self.some(0.1, findable=True)
        self.chance.shuffle(blocks)
        self.pool.touch(np.array(blocks, dtype=np.int32))
        self.plain.touch(blocks)


@pytest.mark.parametrize("seed", range(8))
def test_a_pool_gives_out_what_the_rule_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_WINDOW", 4)
    monkeypatch.setattr(pools, "_CANDIDATES", 5)
    both = Both(60, seed)
    often = (both.allocate, both.publish, both.publish, both.release)
    for _ in range(600):
        for happens in (*often, both.chance.choice((both.share, both.forget, both.touch, both.release))):
            happens()
        assert both.pool.free == both.plain.references.count(0)
    assert both.evictions > 100
