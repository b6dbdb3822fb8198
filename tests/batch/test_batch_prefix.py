"""The prefix cache without an engine: digests, pools, and what a space finds, keeps and gives up first."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_batch.kv import BlockPool, KvSpace, Reservation
from poot_batch.kv.digest import Chain

BLOCK = 4


def tokens_of(*values: int) -> array[int]:
    return array("i", values)


def space_of(blocks: int = 20, tables: tuple[int, ...] = (10,), **options: object) -> KvSpace:
    return KvSpace(BLOCK, tuple(blocks for _ in tables), tables, **options)


def reserved(space: KvSpace, tokens: array[int], room: int = 0, **fields: str) -> Reservation:
    found = space.reserve(len(tokens) + room, space.chain(tokens, (len(tokens) - 1) // BLOCK, **fields))
    assert found is not None
    return found


def left_behind(space: KvSpace, tokens: array[int], **fields: str) -> list[int]:
    """Run a sequence to its end; the blocks it had."""
    held = reserved(space, tokens, **fields)
    space.publish(held, tokens, len(tokens))
    space.release(held)
    return [int(block) for block in held.blocks[0]]


# --- digests


@given(st.lists(st.integers(0, 2**31 - 1), min_size=12, max_size=12), st.integers(0, 11))
def test_a_digest_depends_on_every_token_up_to_its_block(values: list[int], at: int) -> None:
    other = list(values)
    other[at] ^= 1
    first, second = Chain(BLOCK, {}), Chain(BLOCK, {})
    first.extend(tokens_of(*values), 3)
    second.extend(tokens_of(*other), 1)
    second.extend(tokens_of(*other), 3)
    same = [a == b for a, b in zip(first.digests, second.digests, strict=True)]
    assert same == [index < at // BLOCK for index in range(3)]
    assert all(len(digest) == 32 for digest in first.digests)


def test_field_lists_do_not_collide() -> None:
    fields = [
        {}, {"salt": ""}, {"adapter": ""}, {"salt": "a"}, {"adapter": "a"}, {"salt": "ab"}, {"salta": "b"},
        {"model": "a", "salt": "b"}, {"model": "ab", "salt": ""}, {"model": "", "salt": "ab"}, {"model": "a" * 300},
    ]  # fmt: skip
    chains = [Chain(BLOCK, each) for each in fields]
    for chain in chains:
        chain.extend(tokens_of(1, 2, 3, 4), 1)
    assert len({chain.digests[0] for chain in chains}) == len(fields)


def test_tokens_that_are_not_known_have_no_digest() -> None:
    with pytest.raises(ValueError, match="not all known"):
        Chain(BLOCK, {}).extend(tokens_of(1, 2, 3, 4, 5), 2)


# --- pools


class PoolModel:
    """A pool by the book: lists and dicts."""

    def __init__(self, size: int) -> None:
        self.references = [0] * size
        self.found: dict[bytes, int] = {}
        self.order: list[int] = []  # findable blocks, the one to be evicted first in front

    def used(self, block: int) -> None:
        if block in self.order:
            self.order.remove(block)
        self.order.append(block)

    def idle(self) -> list[int]:
        return [block for block in self.order if block in self.found.values() and not self.references[block]]


@given(
    st.integers(1, 12),
    st.lists(
        st.tuples(st.sampled_from(["allocate", "publish", "pin", "release", "forget"]), st.integers(0, 11)), max_size=80
    ),
)
def test_a_pool_keeps_references_and_evicts_in_order(size: int, actions: list[tuple[str, int]]) -> None:
    pool, model, held = BlockPool(size), PoolModel(size), []
    names = iter(range(10**6))
    for action, n in actions:
        free = [block for block in range(size) if not model.references[block] and block not in model.found.values()]
        if action == "allocate":
            idle = model.idle()
            blocks = pool.allocate(n)
            assert (blocks is None) == (n > len(free) + len(idle))
            if blocks is None:
                continue
            given_out = blocks.tolist()
            evicted = idle[: max(0, n - len(free))]
            assert len(set(given_out)) == n
            assert {*given_out} - {*free} == {*evicted}
            model.found = {name: block for name, block in model.found.items() if block not in evicted}
            for block in given_out:
                assert model.references[block] == 0
                model.references[block] = 1
            held.append(blocks)
        elif action == "publish" and held:
            for block in held[n % len(held)].tolist():
                if block not in model.found.values():
                    digest = str(next(names) // 2).encode()  # every name twice: the second finds it taken
                    assert pool.publish(block, digest) == (digest not in model.found)
                    model.found.setdefault(digest, block)
        elif action == "pin" and model.found:
            block = [*model.found.values()][n % len(model.found)]
            pool.share(np.array([block], np.int32))
            model.references[block] += 1
            held.append(np.array([block], np.int32))
        elif action == "release" and held:
            blocks = held.pop(n % len(held))
            pool.release(blocks)
            for block in reversed(blocks.tolist()):
                model.references[block] -= 1
                model.used(block)
        elif action == "forget" and model.found:
            name, block = [*model.found.items()][n % len(model.found)]
            pool.forget(np.array([block]))
            del model.found[name]
        assert pool.used == sum(count > 0 for count in model.references)
        assert pool.findable == len(model.found)
        assert all(pool.find(name) == block for name, block in model.found.items())
    for blocks in held:
        pool.release(blocks)
    assert (pool.used, pool.free) == (0, size)


def test_only_blocks_that_somebody_holds_are_published() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="nobody holds"):
        pool.publish(0, b"x")


def test_free_blocks_go_before_idle_ones() -> None:
    pool = BlockPool(4)
    first = pool.allocate(2)
    assert first is not None
    pool.publish(0, b"a")
    pool.publish(1, b"b")
    pool.release(first)
    assert pool.allocate(2).tolist() == [2, 3]
    assert pool.find(b"a") == 0 and pool.find(b"b") == 1
    # Of a chain the tail goes first.
    assert pool.allocate(1).tolist() == [1]
    assert pool.find(b"a") == 0 and pool.find(b"b") is None


# --- spaces


def test_full_blocks_before_the_last_token_are_found() -> None:
    space = space_of()
    prompt = tokens_of(*range(12))
    blocks = left_behind(space, prompt)
    assert space.used == 0
    again = reserved(space, prompt, room=5)
    # The third block is full too, but the prompt's last token must run.
    assert (again.cached, again.blocks[0].tolist()[:2]) == (2, blocks[:2])
    assert len(again.blocks[0]) == 5 and space.used == 5
    longer = reserved(space, tokens_of(*range(13)))
    assert (longer.cached, longer.blocks[0].tolist()[:3]) == (3, blocks)
    assert space.used == 5 + 2
    for held in (again, longer):
        space.release(held)
    assert space.used == 0


def test_salt_and_adapter_and_model_keep_apart() -> None:
    space, prompt = space_of(), tokens_of(*range(9))
    left_behind(space, prompt, salt="one")
    for fields, hits in (({}, 0), ({"salt": "two"}, 0), ({"adapter": "one"}, 0), ({"salt": "one"}, 2)):
        held = reserved(space, prompt, **fields)
        assert held.cached == hits
        space.release(held)
    assert space_of(model="a").chain(prompt, 2).digests != space_of(model="b").chain(prompt, 2).digests


def test_what_is_not_computed_is_not_found() -> None:
    space, prompt = space_of(), tokens_of(*range(12))
    first = reserved(space, prompt)
    space.publish(first, prompt, 7)
    assert reserved(space, prompt).cached == 1
    space.publish(first, prompt, 8)
    assert reserved(space, prompt).cached == 2


def test_of_two_equal_blocks_the_first_is_found_and_the_other_stays_private() -> None:
    space, prompt = space_of(), tokens_of(*range(9))
    first, second = reserved(space, prompt), reserved(space, prompt)
    space.publish(second, prompt, 8)
    space.publish(first, prompt, 8)
    third = reserved(space, prompt)
    assert third.blocks[0].tolist()[:2] == second.blocks[0].tolist()[:2]
    assert set(first.blocks[0].tolist()).isdisjoint(second.blocks[0].tolist())
    assert first.shadowed == [0, 1]
    for held in (first, second, third):
        space.release(held)
    assert space.used == 0
    assert reserved(space, prompt).cached == 2


def test_a_private_block_takes_the_place_of_an_evicted_equal() -> None:
    space, prompt = space_of(blocks=10), tokens_of(*range(9))
    first, second = reserved(space, prompt), reserved(space, prompt)
    space.publish(first, prompt, 8)
    space.publish(second, prompt, 4)
    space.release(first)
    filler = space.reserve(7 * BLOCK)  # all but what `second` holds: the first one's blocks are evicted
    assert filler is not None
    space.release(filler)
    space.release(second)
    assert reserved(space, prompt).cached == 1


def test_hits_are_held_before_room_is_counted() -> None:
    space = space_of(blocks=10)
    prompt = tokens_of(*range(17))
    left_behind(space, prompt)
    other = space.reserve(6 * BLOCK)
    assert other is not None
    # Four idle blocks are all there is: as hits they are the sequence's own, and not room for its rest.
    assert space.reserve(17, space.chain(prompt, 4)) is None
    assert space.reserve(16, space.chain(prompt, 3)) is not None


def test_doubtful_blocks_are_found_no_longer() -> None:
    space, prompt = space_of(), tokens_of(*range(13))
    left_behind(space, prompt[:5])
    held = reserved(space, prompt)
    space.publish(held, prompt, 12)
    assert (held.cached, reserved(space, prompt).cached) == (1, 3)
    space.retract(held)
    # What it had found itself was computed by another.
    assert reserved(space, prompt).cached == 1
    space.publish(held, prompt, 12)
    assert reserved(space, prompt).cached == 1


def test_a_sequence_that_writes_over_its_own_blocks_takes_no_part() -> None:
    space = KvSpace(BLOCK, (20, 20), (10, 3))
    short, long = tokens_of(*range(12)), tokens_of(*range(13))
    assert (space.wraps(12), space.wraps(13)) == (False, True)
    left_behind(space, long)
    assert reserved(space, short).cached == 0
    left_behind(space, short)
    assert reserved(space, long).cached == 0
    both = reserved(space, short)
    assert both.cached == 2 and [len(blocks) for blocks in both.blocks] == [3, 3]


def test_groups_find_only_what_all_of_them_have() -> None:
    space, prompt = KvSpace(BLOCK, (10, 4), (4, 4)), tokens_of(*range(13))
    left_behind(space, prompt)
    # The second group has no room for another sequence beside the old blocks, the first has.
    other = tokens_of(*range(50, 58))
    left_behind(space, other)
    assert reserved(space, prompt).cached == 2


def test_without_caching_nothing_is_found() -> None:
    space, prompt = space_of(caching=False), tokens_of(*range(9))
    left_behind(space, prompt)
    assert reserved(space, prompt).cached == 0


@given(st.integers(6, 14), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 22), st.booleans()), max_size=40))
def test_what_is_found_is_what_was_left(size: int, asked: list[tuple[int, int, bool]]) -> None:
    """Sequences of few kinds come and go; a model of the pool's contents says what each finds."""
    space = KvSpace(BLOCK, (size,), (6,))
    contents: dict[int, tuple[int, ...]] = {}
    held: list[tuple[Reservation, array[int]]] = []
    for kind, length, keep in asked:
        tokens = tokens_of(*((kind >> n % 2) * 100 + n // 7 for n in range(length)))
        reservation = space.reserve(length, space.chain(tokens, (length - 1) // BLOCK))
        if reservation is None:
            if held:
                space.release(held.pop(0)[0])
            continue
        blocks = reservation.blocks[0].tolist()
        for index in range(reservation.cached):
            assert contents[blocks[index]] == tuple(tokens[: (index + 1) * BLOCK])
        others = {block for other, _ in held for block in other.blocks[0].tolist()}
        fresh = blocks[reservation.cached :]
        assert others.isdisjoint(fresh)
        for block in fresh:
            contents.pop(block, None)
        for index in range(reservation.cached, length // BLOCK):
            contents[blocks[index]] = tuple(tokens[: (index + 1) * BLOCK])
        space.publish(reservation, tokens, length)
        held.append((reservation, tokens))
        if not keep:
            space.release(held.pop()[0])
        assert space.used == len({block for other, _ in held for block in other.blocks[0].tolist()})
    for reservation, _ in held:
        space.release(reservation)
    assert space.used == 0
