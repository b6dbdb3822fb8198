"""Deliberate faults of the host logic, planted one by one: a simulator that misses one proves nothing.

They replace methods while a block runs and put them back; no file is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from poot_batch.counters import Counters
from poot_batch.engine import Engine
from poot_batch.kv import BlockPool, KvSpace
from poot_batch.schedule import Scheduler, Sequence, StepPlan, waiting
from poot_batch.simulation.campaign import Found, play


@dataclass(frozen=True, slots=True)
class Mutation:
    """`plant(original)` is the faulty stand-in for `owner.attribute`."""

    name: str
    owner: Any
    attribute: str
    plant: Callable[[Any], Any]

    @contextmanager
    def planted(self) -> Iterator[None]:
        original = self.owner.__dict__[self.attribute]
        setattr(self.owner, self.attribute, self.plant(original))
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, original)


def detect(mutation: Mutation, seeds: int, first: int = 0) -> Found | None:
    """The first of `seeds` seeds whose world breaks with the mutation planted; None if none does."""
    with mutation.planted():
        for seed in range(first, first + seeds):
            _, found = play(seed)
            if found is not None:
                return found
    return None


def _release_forgotten(finish: Callable[..., None]) -> Callable[..., None]:
    """A request that ends before its prompt has been read keeps its blocks."""

    def faulty(self: Scheduler, sequence: Sequence) -> None:
        release = self.kv.release
        if sequence.reservation is not None and sequence.prompt_left:
            self.kv.release = lambda reservation: None  # type: ignore[method-assign]
        try:
            finish(self, sequence)
        finally:
            self.kv.release = release  # type: ignore[method-assign]

    return faulty


def _evicted_still_findable(forget: Callable[..., None]) -> Callable[..., None]:
    """An evicted block is given out, and its digest still leads to it."""
    return lambda self, blocks: None


def _head_before_tail(touch: Callable[..., None]) -> Callable[..., None]:
    """Of a sequence's idle blocks the first is evicted first, and those after it are of no use any longer."""
    return lambda self, blocks: touch(self, blocks[::-1])


def _published_early(plan: Callable[..., Any]) -> Callable[..., Any]:
    """Blocks are findable once a step that fills them is planned, not once it is collected."""

    def faulty(self: Scheduler) -> StepPlan | None:
        made: StepPlan | None = plan(self)
        for sequence, positions in () if made is None else made.fills:
            if sequence.reservation is not None and positions <= len(sequence.tokens):
                self.kv.publish(sequence.reservation, sequence.tokens, positions)
        return made

    return faulty


def _hits_not_held(share: Callable[..., None]) -> Callable[..., None]:
    """What a request found in the cache is not held for it."""

    def faulty(self: BlockPool, blocks: np.ndarray[Any, Any]) -> None:
        held = self._references[blocks] > 0
        share(self, blocks)
        self._references[blocks[held]] -= 1

    return faulty


def _hits_counted_twice(admitted: Callable[..., None]) -> Callable[..., None]:
    def faulty(self: Counters, sequence: Sequence) -> None:
        admitted(self, sequence)
        if sequence.cached:
            admitted(self, sequence)

    return faulty


def _salt_ignored(chain: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(self: KvSpace, tokens: Any, blocks: int, **fields: str | None) -> Any:
        return chain(self, tokens, blocks, **{**fields, "salt": None})

    return faulty


def _doubt_ignored(retract: Callable[..., None]) -> Callable[..., None]:
    """A row whose logits were not finite still publishes what it wrote."""
    return lambda self, reservation: None


def _forks_do_not_wait(following: property) -> property:
    """A fork may go in before its leader has anything to share."""
    return property(lambda self: False)


def _nothing_awaited(awaited: Callable[..., Any]) -> Callable[..., Any]:
    """What others are reading is computed once more."""
    return lambda self, chain: None


def _promises_kept_by_nobody(renounce: Callable[..., None]) -> Callable[..., None]:
    """Blocks of a request that ended before it computed them are still waited for."""
    return lambda self, reservation: None


def _credit_counted_twice(grant: Callable[..., None]) -> Callable[..., None]:
    """A reader's credit counts twice."""

    def faulty(self: Sequence, tokens: int) -> None:
        grant(self, 2 * tokens)

    return faulty


def _stuck_after_grant(grant: Callable[..., None]) -> Callable[..., None]:
    """A grant does not wake an engine that had nothing to do."""

    def faulty(self: Engine, request_id: int, tokens: int) -> None:
        stuck = self._stuck
        grant(self, request_id, tokens)
        self._stuck = stuck

    return faulty


MUTATIONS = (
    Mutation("a release is forgotten", Scheduler, "finish", _release_forgotten),
    Mutation("an evicted block is still found", BlockPool, "forget", _evicted_still_findable),
    Mutation("heads are evicted before tails", BlockPool, "touch", _head_before_tail),
    Mutation("a block is published before its step is collected", Scheduler, "plan", _published_early),
    Mutation("what was found is not held", BlockPool, "share", _hits_not_held),
    Mutation("hits are counted twice", Counters, "admitted", _hits_counted_twice),
    Mutation("a fork does not wait", Sequence, "following", _forks_do_not_wait),
    Mutation("nobody waits for what is being read", KvSpace, "awaited", _nothing_awaited),
    Mutation("what nobody will read is waited for", KvSpace, "_renounce", _promises_kept_by_nobody),
    Mutation("nothing bounds overtaking", waiting, "OVERTAKEN", lambda bound: 10**9),
    Mutation("a salt separates nothing", KvSpace, "chain", _salt_ignored),
    Mutation("doubtful blocks are published", KvSpace, "retract", _doubt_ignored),
    Mutation("credit counts twice", Sequence, "grant", _credit_counted_twice),
    Mutation("a grant wakes nobody", Engine, "grant", _stuck_after_grant),
)
