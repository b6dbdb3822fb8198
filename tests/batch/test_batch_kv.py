"""Block pools and reservations over several groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_batch.kv import BlockPool, KvSpace

# What to do next: allocate so many blocks, or give back the n-th holding, or share it once more.
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(0, 12)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("share"), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(st.integers(1, 20), ACTIONS)
def test_a_pool_counts_references_and_gives_no_block_twice(size: int, actions: list[tuple[str, int]]) -> None:
    pool, held = BlockPool(size), []
    for action, n in actions:
        owned = {int(block) for blocks in held for block in blocks}
        if action == "allocate":
            blocks = pool.allocate(n)
            assert (blocks is None) == (n > size - len(owned))
            if blocks is not None:
                assert len(set(blocks.tolist())) == n
                assert owned.isdisjoint(blocks.tolist())
                assert blocks.dtype == np.int32
                held.append(blocks)
        elif held and action == "release":
            pool.release(held.pop(n % len(held)))
        elif held:
            blocks = held[n % len(held)]
            pool.share(blocks)
            held.append(blocks)
        owned = {int(block) for blocks in held for block in blocks}
        assert (pool.used, pool.free) == (len(owned), size - len(owned))
    for blocks in held:
        pool.release(blocks)
    assert pool.used == 0


def test_blocks_that_follow_each_other_are_preferred() -> None:
    pool = BlockPool(8)
    first, second, third = (pool.allocate(2) for _ in range(3))
    assert first is not None and second is not None and third is not None
    pool.release(first)
    # Free: 0, 1, 6, 7. One run of two, and no run of three.
    pool.share(third)
    assert pool.allocate(2).tolist() == [0, 1]
    pool.release(second)
    assert pool.allocate(4).tolist() == [2, 3, 6, 7]


def test_a_free_block_is_neither_shared_nor_released() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(ValueError, match="free"):
        pool.release(blocks)
    with pytest.raises(ValueError, match="free"):
        pool.share(blocks)
    assert pool.used == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=40))
def test_a_reservation_takes_all_groups_or_none(actions: list[tuple[bool, int]]) -> None:
    # A full group whose rows have up to 8 blocks of 16, and a window group whose rows have up to 3.
    space, held = KvSpace(16, (20, 7), (8, 3)), []
    for reserve, n in actions:
        if reserve:
            used, wanted = space.used, (min(-(-n // 16), 8), min(-(-n // 16), 3))
            taken = [sum(len(r.blocks[group]) for r in held) for group in range(2)]
            fits = taken[0] + wanted[0] <= 20 and taken[1] + wanted[1] <= 7
            reservation = space.reserve(n)
            assert (reservation is not None) == fits
            if reservation is None:
                assert space.used == used
            else:
                assert tuple(map(len, reservation.blocks)) == wanted
                held.append(reservation)
        elif held:
            space.release(held.pop(n % len(held)))
        for group in range(2):
            owned = [block for r in held for block in r.blocks[group].tolist()]
            assert len(owned) == len(set(owned))
        assert space.used == sum(len(blocks) for r in held for blocks in r.blocks)
    assert space.total == 27


def test_a_pool_that_can_never_hold_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="less than one sequence"):
        KvSpace(16, (8, 2), (8, 3))
