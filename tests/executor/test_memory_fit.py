"""The fit, by hand and by property, and the account."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_executor.errors import CapacityError
from poot_executor.memory import Account, Demand, Pool, fit


def demand(weights: int = 1000, block: int = 10) -> object:
    """Weights that stay; ten bytes of row table a row; one pool of blocks of 16 positions."""

    def of(rows: int, max_seq: int) -> Demand:
        return Demand(weights, 50, 10 * rows, 5, 20, (Pool("full", block, -(-max_seq // 16)),))

    return of


def test_what_fits_is_left_alone_and_pools_hold_every_row() -> None:
    found = fit(4, 1024, 10**6, demand())
    assert (found.rows, found.max_seq, found.blocks, found.reasons) == (4, 1024, (4 * 64,), ())
    assert found.kv_bytes == 4 * 64 * 10


@pytest.mark.parametrize(
    ("most_blocks", "spare", "blocks"),
    [
        # Ten bytes a block; four rows need 256 of them.
        (1000, 10**6, 1000),
        (1000, 5000, 450),
        (1000, 2600, 256),
        (1000, 2000, 200),
        (100, 10**6, 256),
    ],
)
def test_pools_may_take_more_than_rows_need(most_blocks: int, spare: int, blocks: int) -> None:
    found = fit(4, 1024, 1115 + spare, demand(), most_blocks=most_blocks)
    assert (found.rows, found.max_seq, found.blocks) == (4, 1024, (blocks,))


def test_pools_share_what_is_left() -> None:
    # Fixed: 1000 + 50 + 40 + 5 + 20 = 1115; a sequence takes 640; 1115 + 1600 leaves two and a half sequences.
    found = fit(4, 1024, 1115 + 1600, demand())
    assert (found.rows, found.max_seq, found.blocks) == (4, 1024, (160,))
    assert found.reasons == ("KV pools hold 2.5 sequences of 1024 positions, rows are 4",)


def test_two_pools_get_even_shares() -> None:
    pools = (Pool("full", 10, 64), Pool("window", 4, 5))
    found = fit(4, 1024, 100 + 1320, lambda rows, max_seq: Demand(100, 0, 0, 0, 0, pools))
    assert found.blocks == (128, 10)


def test_rows_are_halved_first() -> None:
    # Rows cost 10 each. With 1 row: 1085 + 640 = 1725; with 2: 1735; with 5: 1765.
    found = fit(5, 1024, 1740, demand())
    assert (found.rows, found.max_seq) == (2, 1024)
    assert found.reasons[0] == "rows halved from 5: 25 bytes short"


def test_then_the_length_down_to_128() -> None:
    found = fit(8, 1000, 1085 + 80, demand())
    assert (found.rows, found.max_seq, found.blocks) == (1, 128, (8,))
    assert [reason.split(":")[0] for reason in found.reasons] == [
        "rows halved from 8",
        "rows halved from 4",
        "rows halved from 2",
        "max_seq halved from 1000",
        "max_seq halved from 500",
        "max_seq halved from 250",
    ]


def test_then_it_is_refused_with_device_and_shortfall() -> None:
    with pytest.raises(
        CapacityError, match=r"^tiny has 1164 bytes free, but one row of 128 positions takes 1165"
    ) as found:
        fit(8, 1000, 1085 + 79, demand(), "tiny")
    assert found.value.shortfall == 1
    assert "weights 1000, arena 50, row table 10, staging 5, reserve 20, KV 80" in str(found.value)


def test_a_length_below_the_least_is_not_raised() -> None:
    assert fit(1, 40, 10**6, demand()).max_seq == 40
    with pytest.raises(CapacityError, match="one row of 40 positions"):
        fit(2, 40, 100, demand())


def test_weights_that_are_too_large_ask_for_the_least_workload_at_once() -> None:
    asked: list[tuple[int, int]] = []

    def of(rows: int, max_seq: int) -> Demand:
        asked.append((rows, max_seq))
        return demand()(rows, max_seq)

    with pytest.raises(CapacityError, match="one row of 128 positions takes 1165") as found:
        fit(64, 4096, 1019, of)
    assert (asked, found.value.shortfall) == ([(64, 4096), (1, 128)], 1165 - 1019)


def test_a_workload_without_pools() -> None:
    found = fit(2, 64, 200, lambda rows, max_seq: Demand(100, 0, 0, 0, 0, ()))
    assert (found.blocks, found.kv_bytes) == ((), 0)


@given(
    rows=st.integers(1, 64),
    max_seq=st.integers(1, 1 << 17),
    capacity=st.integers(0, 1 << 34),
    weights=st.integers(0, 1 << 33),
    pools=st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(1, 64)), max_size=4),
)
def test_a_fit_never_takes_more_than_there_is(
    rows: int, max_seq: int, capacity: int, weights: int, pools: list[tuple[int, int]]
) -> None:
    def of(r: int, m: int) -> Demand:
        needs = tuple(Pool(f"p{i}", size, -(-m // span)) for i, (size, span) in enumerate(pools))
        return Demand(weights, 1000 + m, r * m, r * 16, 500, needs)

    try:
        found = fit(rows, max_seq, capacity, of)
    except CapacityError as error:
        least = of(1, min(max_seq, 128))
        assert least.fixed + least.sequence == capacity + error.shortfall
        assert error.shortfall > 0
        return
    assert found.demand == of(found.rows, found.max_seq)
    assert found.demand.fixed + found.kv_bytes <= capacity
    assert found.rows <= rows and found.max_seq <= max_seq
    for blocks, pool in zip(found.blocks, found.demand.pools, strict=True):
        assert pool.blocks_per_row <= blocks <= found.rows * pool.blocks_per_row


def test_account() -> None:
    account = Account()
    account.add("weights", 100)
    account.add("kv", 50)
    account.add("kv", 7)
    account.remove("kv", 50)
    assert (account.of("kv"), account.total, account.peak) == (7, 107, 157)
    assert account.snapshot() == {"weights": 100, "kv": 7, "rows": 0, "arena": 0, "staging": 0, "recordings": 0}
    with pytest.raises(ValueError, match="8 bytes of kv were never added"):
        account.remove("kv", 8)
