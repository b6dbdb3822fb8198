"""What the invariants read of the engine's own state: the one file of the simulator that looks into private fields."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from poot_batch.kv import KvSpace


def references(kv: KvSpace) -> list[npt.NDArray[np.int32]]:
    """Of each KV group, the references of its blocks."""
    return [pool._references for pool in kv._pools]


def findable(kv: KvSpace) -> list[Mapping[bytes, int]]:
    """Of each KV group, the block that is found by a digest."""
    return [pool._index for pool in kv._pools]


def marked_findable(kv: KvSpace) -> list[int]:
    """Of each KV group, how many blocks the allocator takes for findable."""
    return [int(np.count_nonzero(pool._findable)) for pool in kv._pools]
