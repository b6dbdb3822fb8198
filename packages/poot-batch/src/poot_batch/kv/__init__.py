"""Paged KV as host bookkeeping: block pools with reference counts, reservations over all groups, the prefix cache.

No tensors.
"""

from poot_batch.kv.digest import Chain
from poot_batch.kv.pool import BlockPool
from poot_batch.kv.space import KvSpace, Reservation

__all__ = ["BlockPool", "Chain", "KvSpace", "Reservation"]
