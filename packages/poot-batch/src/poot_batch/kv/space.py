"""All KV groups of a model: a sequence holds blocks of each, or of none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from poot_batch.faults import reach
from poot_batch.kv.digest import Chain, Tokens
from poot_batch.kv.pool import BlockPool, Blocks


@dataclass(slots=True, eq=False)
class Reservation:
    """The blocks of one sequence, an array for each group.

    The first `cached` of each were found, and the first `published` of each can be found by others; a sequence without
    `chain` neither finds nor publishes. `shadowed` are those whose equal was published first: they stay private. Others
    wait until its first `awaited` positions have been published.
    """

    blocks: tuple[Blocks, ...]
    chain: Chain | None = None
    cached: int = 0
    published: int = 0
    awaited: int = 0
    shadowed: list[int] = field(default_factory=list)


class KvSpace:
    """`tables[g]` bounds the blocks that a row can name in group g; a group with a window needs no more than that.

    The prefix cache: full blocks are findable once published, by the chained digest of what they hold. A sequence that
    is longer than the table of a window group writes over its own blocks, so it takes no part. `model` names what
    computes the blocks; without `caching` nothing is ever found. The blocks of a prompt that is being read can be
    awaited, so that they are computed once.

    Every pool holds a sequence of full length, so that whatever may be asked for fits in the end.
    """

    def __init__(
        self, block: int, pools: Sequence[int], tables: Sequence[int], *, model: str = "", caching: bool = True
    ) -> None:
        self.block, self.caching = block, caching
        self._model = model
        self._tables = tuple(tables)
        self._pools = tuple(BlockPool(size) for size in pools)
        # Of the prompts that have blocks, what is not published yet, and by whom it will be.
        self._promised: dict[bytes, Reservation] = {}
        if any(pool.size < table for pool, table in zip(self._pools, self._tables, strict=True)):
            raise ValueError("a pool holds less than one sequence: such a sequence would wait for ever")

    def wraps(self, tokens: int) -> bool:
        """Whether a sequence of so many positions writes over its own blocks in some group."""
        return tokens > self.block * min(self._tables, default=0)

    def chain(self, tokens: Tokens[int], blocks: int, *, salt: str | None = None, adapter: str | None = None) -> Chain:
        """The chain of a sequence, with the digests of its first `blocks` blocks. Another salt finds nothing of it."""
        fields = {"model": self._model, "groups": str(len(self._pools)), "adapter": adapter, "salt": salt}
        chain = Chain(self.block, {tag: value for tag, value in fields.items() if value is not None})
        chain.extend(tokens, blocks)
        return chain

    def reserve(self, tokens: int, chain: Chain | None = None) -> Reservation | None:
        """Blocks of every group for `tokens` positions; None, with nothing taken, when a pool has too few.

        The digests that `chain` has are looked up; what is found from the first on is shared and not allocated.
        """
        if reach("kv.reserve"):
            return None
        whole = -(-tokens // self.block)
        if not self.caching or self.wraps(tokens):
            chain = None
        most = len(chain.digests) if chain is not None else 0
        wanted = [min(whole, table) for table in self._tables]
        if any(count - most > pool.free for pool, count in zip(self._pools, wanted, strict=True)):
            return None
        found = [np.array(blocks, dtype=np.int32) for blocks in self._find(chain)] if chain is not None else []
        hits = len(found[0]) if found else 0
        if hits:
            rooms = [pool.free - pool.idle(blocks) for pool, blocks in zip(self._pools, found, strict=True)]
        else:
            rooms = [pool.free for pool in self._pools]
        if any(count - hits > room for count, room in zip(wanted, rooms, strict=True)):
            return None
        taken: list[Blocks] = []
        for group, (pool, count) in enumerate(zip(self._pools, wanted, strict=True)):
            # Held before room is made for the rest, which could evict them.
            if hits:
                pool.share(found[group])
            fresh = pool.allocate(count - hits)
            assert fresh is not None, "the room was counted"
            taken.append(np.concatenate([found[group], fresh]) if hits else fresh)
        reservation = Reservation(tuple(taken), chain, hits, hits)
        for digest in chain.digests[hits:] if chain is not None else ():
            self._promised.setdefault(digest, reservation)
        return reservation

    def awaited(self, chain: Chain) -> bytes | None:
        """Of the blocks that this chain lacks, the last of those that running sequences will publish one after another;
        None when nobody will publish the first. Their reservations take note that somebody waits."""
        last = None
        for index, digest in enumerate(chain.digests if self._promised else ()):
            promising = self._promised.get(digest)
            if promising is not None:
                promising.awaited = max(promising.awaited, (index + 1) * self.block)
                last = digest
            elif last is not None or any(pool.find(digest) is None for pool in self._pools):
                break
        return last

    def promised(self, digest: bytes) -> bool:
        """Whether a running sequence will publish this block, unless it ends before."""
        return digest in self._promised

    def publish(self, reservation: Reservation, tokens: Tokens[int], positions: int) -> None:
        """Make findable the full blocks among the first `positions`, all of which have been computed."""
        chain, blocks = reservation.chain, positions // self.block
        if chain is None:
            return
        chain.extend(tokens, blocks)
        for index in range(reservation.published, blocks):
            self._promised.pop(chain.digests[index], None)
            if not self._publish(reservation, index, chain.digests[index]):
                reservation.shadowed.append(index)
        reservation.published = max(reservation.published, blocks)

    def retract(self, reservation: Reservation) -> None:
        """Make what this sequence computed and published findable no longer: its contents are in doubt."""
        self._renounce(reservation)
        for pool, blocks in zip(self._pools, reservation.blocks, strict=True):
            pool.forget(blocks[reservation.cached : reservation.published])
        reservation.chain = None

    def restore(self, reservation: Reservation) -> None:
        """Let private blocks be found where their equals, published first, have been evicted since; and so is what
        follows them in the chain."""
        if reservation.chain is not None:
            for index in reservation.shadowed:
                self._publish(reservation, index, reservation.chain.digests[index])

    def release(self, reservation: Reservation) -> None:
        """Give the sequence's blocks back; those that can be found stay until their room is needed."""
        self._renounce(reservation)
        chain = reservation.chain
        shadowed = reservation.shadowed if chain is not None else []
        self.restore(reservation)
        for pool, blocks in zip(self._pools, reservation.blocks, strict=True):
            pool.release(blocks)
            if shadowed:
                # The findable ones in place of the private ones, so that a chain's head outlives its tail.
                assert chain is not None
                findable = [pool.find(digest) for digest in chain.digests[: reservation.published]]
                pool.touch(np.array([block for block in findable if block is not None], dtype=np.int32))

    @property
    def used(self) -> int:
        """Blocks that running sequences hold; what is kept only to be found is not among them."""
        return sum(pool.used for pool in self._pools)

    @property
    def total(self) -> int:
        return sum(pool.size for pool in self._pools)

    def _find(self, chain: Chain) -> list[list[int]]:
        """Of each group, the blocks of the longest leading part of the chain that all groups have."""
        found: list[list[int]] = [[] for _ in self._pools]
        for digest in chain.digests:
            blocks = [pool.find(digest) for pool in self._pools]
            for group, block in zip(found, blocks, strict=True):
                if block is None:
                    return [group[: len(found[-1])] for group in found]
                group.append(block)
        return found

    def _renounce(self, reservation: Reservation) -> None:
        """What it has not published it never will."""
        for digest in reservation.chain.digests[reservation.published :] if reservation.chain is not None else ():
            if self._promised.get(digest) is reservation:
                del self._promised[digest]

    def _publish(self, reservation: Reservation, index: int, digest: bytes) -> bool:
        first = True
        for pool, blocks in zip(self._pools, reservation.blocks, strict=True):
            first &= pool.publish(int(blocks[index]), digest)
        return first
