"""All KV groups of a model: a sequence holds blocks of each, or of none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_batch.kv.pool import BlockPool, Blocks


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """The blocks of one sequence, an array for each group."""

    blocks: tuple[Blocks, ...]


class KvSpace:
    """`tables[g]` bounds the blocks that a row can name in group g; a group with a window needs no more than that."""

    def __init__(self, block: int, pools: Sequence[int], tables: Sequence[int]) -> None:
        self.block = block
        self._tables = tuple(tables)
        self._pools = tuple(BlockPool(size) for size in pools)
        if any(pool.size < table for pool, table in zip(self._pools, self._tables, strict=True)):
            raise ValueError("a pool holds less than one sequence: such a sequence would wait for ever")

    def reserve(self, tokens: int) -> Reservation | None:
        """Blocks of every group for `tokens` positions; None, with nothing taken, when a pool has too few."""
        whole = -(-tokens // self.block)
        taken: list[Blocks] = []
        for pool, table in zip(self._pools, self._tables, strict=True):
            blocks = pool.allocate(min(whole, table))
            if blocks is None:
                for other, held in zip(self._pools, taken, strict=False):
                    other.release(held)
                return None
            taken.append(blocks)
        return Reservation(tuple(taken))

    def release(self, reservation: Reservation) -> None:
        for pool, blocks in zip(self._pools, reservation.blocks, strict=True):
            pool.release(blocks)

    @property
    def used(self) -> int:
        return sum(pool.used for pool in self._pools)

    @property
    def total(self) -> int:
        return sum(pool.size for pool in self._pools)
