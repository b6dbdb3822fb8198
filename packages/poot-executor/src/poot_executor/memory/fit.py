"""The fit: rows and length that a device can hold, and the KV blocks that take the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poot_executor.errors import CapacityError

MIN_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Pool:
    """One KV group's needs: bytes of a block, and how many blocks a sequence of full length takes."""

    name: str
    block_bytes: int
    blocks_per_row: int


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes that a workload takes whatever runs, and the pools that grow with what is left."""

    weights: int
    arena: int
    rows: int
    staging: int
    reserve: int
    pools: tuple[Pool, ...]

    @property
    def fixed(self) -> int:
        return self.weights + self.arena + self.rows + self.staging + self.reserve

    @property
    def sequence(self) -> int:
        """Bytes of KV of one sequence of full length."""
        return sum(pool.block_bytes * pool.blocks_per_row for pool in self.pools)


@dataclass(frozen=True, slots=True)
class Fit:
    """What was settled on. `blocks` holds the blocks of each pool, in the order of `demand.pools`."""

    rows: int
    max_seq: int
    demand: Demand
    blocks: tuple[int, ...]
    capacity: int
    reasons: tuple[str, ...]

    @property
    def kv_bytes(self) -> int:
        return sum(n * pool.block_bytes for n, pool in zip(self.blocks, self.demand.pools, strict=True))


def fit(
    rows: int,
    max_seq: int,
    capacity: int,
    demand: Callable[[int, int], Demand],
    device: str = "the device",
    *,
    most_blocks: int = 0,
) -> Fit:
    """Find the largest workload that fits in `capacity` bytes.

    All fixed needs and one sequence of full length must fit. Only if they do not are rows halved, then the length
    (down to 128). Pools get room for `rows` full sequences if there is room, else an even share of what is left. With
    `most_blocks` they take more than that where there is more: nine tenths of what is left, since no plan foresees
    everything, until the largest has so many blocks.
    Weights and reserve are taken to depend on neither: where they alone are too large, the least workload is refused.

    Raises CapacityError naming the device and the shortfall.
    """
    reasons: list[str] = []
    while True:
        need = demand(rows, max_seq)
        spare = capacity - need.fixed
        if spare >= need.sequence:
            break
        short = need.sequence - spare
        hopeless = need.weights + need.reserve > capacity
        if hopeless and (rows > 1 or max_seq > MIN_LENGTH):
            # Nothing between changes that: the least workload says by how much it fails.
            rows, max_seq = 1, min(max_seq, MIN_LENGTH)
        elif rows > 1:
            reasons.append(f"rows halved from {rows}: {short} bytes short")
            rows //= 2
        elif max_seq > MIN_LENGTH:
            reasons.append(f"max_seq halved from {max_seq}: {short} bytes short")
            max_seq = max(MIN_LENGTH, max_seq // 2)
        else:
            raise CapacityError(
                f"{device} has {capacity} bytes free, but one row of {max_seq} positions takes "
                f"{need.fixed + need.sequence} (weights {need.weights}, arena {need.arena}, row table {need.rows}, "
                f"staging {need.staging}, reserve {need.reserve}, KV {need.sequence}): {short} bytes short",
                shortfall=short,
            )
    room = min(spare, rows * need.sequence)
    longest = max((pool.blocks_per_row for pool in need.pools), default=1)
    room = max(room, min(spare * 9 // 10, need.sequence * most_blocks // longest))
    if room < rows * need.sequence:
        reasons.append(f"KV pools hold {room / need.sequence:.1f} sequences of {max_seq} positions, rows are {rows}")
    blocks = tuple(pool.blocks_per_row * room // need.sequence for pool in need.pools)
    return Fit(rows, max_seq, need, blocks, capacity, tuple(reasons))
