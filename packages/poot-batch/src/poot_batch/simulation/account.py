"""The world's own account of who waits, who holds a row and what each may expect; it never asks the engine."""

from __future__ import annotations

from collections.abc import Iterator

from poot_batch.errors import InvariantError
from poot_batch.request import GenerateRequest
from poot_batch.schedule import Sequence
from poot_batch.schedule.waiting import OVERTAKEN
from poot_batch.simulation.device import Shape
from poot_batch.simulation.life import Life
from poot_batch.simulation.model import Alone


class Account:
    """`waiting` are in the order of arrival. `held` have a row and wait for what others read, `holders` have blocks
    too; both are in the order in which they got that. `lives` are all there were.

    `caching` and `default_max_tokens` are how the engine was set.
    """

    def __init__(self, shape: Shape, caching: bool, default_max_tokens: int | None) -> None:
        self.shape, self.caching, self.default_max_tokens = shape, caching, default_max_tokens
        self.lives: dict[int, Life] = {}
        self.waiting: dict[int, Life] = {}
        self.held: dict[int, Life] = {}
        self.holders: dict[Life, None] = {}
        # Logits were not finite somewhere: all that this row had published is in doubt and found no longer.
        self.doubted = False

    def open(self) -> Iterator[Life]:
        yield from self.waiting.values()
        yield from self.held.values()
        yield from self.holders

    def arrive(self, request: GenerateRequest) -> Life:
        alone = Alone(request, self._most_tokens(request), self.shape.block, self.shape.windows)
        life = self.lives[request.id] = self.waiting[request.id] = Life(request, alone, request.credit)
        return life

    def end(self, life: Life) -> None:
        self.waiting.pop(life.request.id, None)
        self.held.pop(life.request.id, None)
        self.holders.pop(life, None)
        self.doubted = self.doubted or (life.finish == "error" and life.spoilt_at is not None)

    def first_in_line(self) -> Life | None:
        """Who must be admitted by the next step: the first to have a row, or to have come when a row is there, and
        only when enough blocks are.

        A fork whose leader is being read waits for it, so it is passed over; so is whoever may wait for others, and
        there must be room for it all the same.
        """
        free, passed = self.shape.rows - len(self.holders) - len(self.held), list[Life]()
        for life in (*self.held.values(), *self.waiting.values()):
            if self._follows(life):
                continue
            if life.request.id in self.waiting:
                free -= 1
            if free < 0:
                return None
            if not self.may_await(life):
                return life if self._fits(life, *passed) else None
            passed.append(life)
        return None

    def hold(self, request_id: int, *, unseen: bool) -> None:
        """The engine says that a request has a row, and the device has not opened it; `unseen` ones may have been given
        what it waits for."""
        life = self.held[request_id] = self.waiting.pop(request_id)
        life.was_held = True
        if not (unseen or self.may_await(life)):
            raise InvariantError(f"request {request_id} is held, and nobody reads what it needs")
        self._overtake(life)

    def may_await(self, life: Life) -> bool:
        """Whether somebody may be reading a block that this one needs."""
        return any(not holder.tokens and self._shared(life, holder) for holder in self.holders)

    def admit(self, sequence: Sequence, findable: set[int] | None) -> Life:
        """The device opened a row. `findable` are the digests that could be found, where that is certain."""
        held = self.held.pop(sequence.request.id, None)
        life = held or self.waiting.pop(sequence.request.id)
        assert sequence.reservation is not None
        life.row, life.cached, life.read = sequence.row, sequence.cached, sequence.cached
        life.tables = [blocks.tolist() for blocks in sequence.reservation.blocks]
        self._check_cached(life, sequence.cache_miss, findable)
        self._check_fork(life)
        self._check_awaited(life)
        self.holders[life] = None
        if held is None:
            self._overtake(life)
        return life

    def _overtake(self, life: Life) -> None:
        for earlier in self.waiting.values():
            if earlier.request.id > life.request.id:
                break
            if not self._follows(earlier):
                earlier.overtaken += 1
                if earlier.overtaken > OVERTAKEN:
                    raise InvariantError(f"request {earlier.request.id} was overtaken {earlier.overtaken} times")

    def _check_cached(self, life: Life, miss: str | None, findable: set[int] | None) -> None:
        """Whole blocks, all that could be found of them, and never the last token; a reason where some are missing."""
        request, block, cached = life.request, self.shape.block, life.cached
        possible = (len(request.prompt) - 1) // block * block
        told = f"request {request.id} has {cached} of {len(request.prompt)} prompt tokens from the cache"
        if cached % block or cached > possible:
            raise InvariantError(f"{told}, of blocks of {block}")
        if cached and not self._looked_up(life):
            raise InvariantError(f"{told}, and takes no part in it")
        if possible and (cached < possible) != (miss is not None):
            raise InvariantError(f"{told}: miss {miss}")
        if findable is not None and self._looked_up(life) and self.shape.windows == (None,):
            digests = life.alone.digests[: possible // block]
            hits = next((n for n, digest in enumerate(digests) if digest not in findable), len(digests))
            # More is no fault: what a fork's leader holds may become findable in this very turn.
            if cached < hits * block:
                raise InvariantError(f"{told}, although {hits * block} could be found")

    def _check_fork(self, life: Life) -> None:
        """A fork waits for its leader, and then shares all it holds of their prompt, unless that is in doubt."""
        leader, asked, block = self._leader(life), life.request, self.shape.block
        if leader is None:
            return
        if not leader.tokens:
            raise InvariantError(f"request {asked.id} did not wait for the one it is a fork of")
        same = (asked.prompt, asked.cache_salt) == (leader.request.prompt, leader.request.cache_salt)
        shared = same and self._looked_up(life) and not self.doubted and self.shape.windows == (None,)
        if shared and life.cached != (len(asked.prompt) - 1) // block * block:
            raise InvariantError(f"request {asked.id} is a fork and shares {life.cached} tokens of its prompt")

    def _check_awaited(self, life: Life) -> None:
        """Nobody computes a block that another is sure to bring."""
        next_block, block = life.cached // self.shape.block, self.shape.block
        if self.doubted or self.shape.windows != (None,):
            return
        for holder in self.holders:
            unread = holder.read < (next_block + 1) * block
            if unread and holder.cached <= life.cached and next_block < self._shared(life, holder):
                raise InvariantError(f"request {life.request.id} computes what {holder.request.id} is reading")

    def _shared(self, life: Life, other: Life) -> int:
        """How many of the blocks before their prompts' last tokens are the same, if both take part in the cache."""
        if not (self._looked_up(life) and self._looked_up(other)):
            return 0
        most = min(len(each.request.prompt) - 1 for each in (life, other)) // self.shape.block
        pairs = zip(life.alone.digests[:most], other.alone.digests, strict=False)
        return next((n for n, (one, two) in enumerate(pairs) if one != two), most)

    def _looked_up(self, life: Life) -> bool:
        return self.caching and life.request.prompt_logprobs is None

    def _most_tokens(self, request: GenerateRequest) -> int:
        if request.max_tokens is not None:
            return request.max_tokens
        left, default = self.shape.max_seq - len(request.prompt), self.default_max_tokens
        return left if default is None else min(left, max(default, request.min_tokens))

    def _leader(self, life: Life) -> Life | None:
        """Whose blocks a fork is to share, while that one has not ended."""
        leader = self.lives.get(life.request.fork_of or 0)
        return leader if self.caching and leader is not None and leader.finish is None else None

    def _follows(self, life: Life) -> bool:
        leader = self._leader(life)
        return leader is not None and not leader.tokens

    def _fits(self, *lives: Life) -> bool:
        shape = self.shape
        whole = [-(-(len(life.request.prompt) + self._most_tokens(life.request)) // shape.block) for life in lives]
        for group, (pool, table) in enumerate(zip(shape.pools, shape.tables, strict=True)):
            held = {block for holder in self.holders for block in holder.tables[group]}
            if sum(min(blocks, table) for blocks in whole) > pool - len(held):
                return False
        return True
