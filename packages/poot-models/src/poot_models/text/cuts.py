"""Which tokens are two others joined, for a whole vocabulary at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["cuts_into_known"]

_BASE = 0x9E3779B97F4A7C15  # odd, and so with an inverse modulo 2**64
_SLOT_BITS = 22


def cuts_into_known(texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """Every cut of a text into two others: the index of its left part, and that of its right part.

    In the order of the texts, which are distinct and not empty; of one text the cut with the longest left part first.

    A vocabulary of Gemma's size has more than a million cuts, too many to look each up in a set. So numpy compares
    64-bit hashes of the parts, sums of char * _BASE**place, each taken from the sums up to its first and its last
    character. Two texts of one hash (chance: 1 in 30 million for such a vocabulary) would pass for each other.
    """
    if not texts:
        return [], []
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(sizes)
    starts = ends - sizes
    chars = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    powers = np.cumprod(np.full(len(chars) + 1, _BASE, np.uint64))  # modulo 2**64, as all of this
    inverses = np.cumprod(np.full(len(chars) + 1, pow(_BASE, -1, 1 << 64), np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(chars * powers[:-1])])

    def hashes(first: np.ndarray, end: np.ndarray) -> np.ndarray:
        found: np.ndarray = (sums[end] - sums[first]) * inverses[first]
        return found

    index = _Index(hashes(starts, ends))
    cuts = sizes - 1
    owner = np.repeat(np.arange(len(texts)), cuts)
    middle = starts[owner] + np.cumsum(cuts)[owner] - np.arange(len(owner))
    lefts = index.find(hashes(starts[owner], middle))
    known = lefts >= 0
    owner, middle, lefts = owner[known], middle[known], lefts[known]
    rights = index.find(hashes(middle, ends[owner]))
    known = rights >= 0
    return lefts[known].tolist(), rights[known].tolist()


class _Index:
    """Where each of many hashes stands: a table by their top bits, and a search for those that share a slot."""

    def __init__(self, hashes: np.ndarray) -> None:
        self._hashes = hashes
        slots = self._slots(hashes)
        places = np.arange(len(hashes))
        self._table = np.zeros(1 << _SLOT_BITS, np.int64)
        self._table[slots] = places
        rest = np.flatnonzero(self._table[slots] != places)
        self._rest = rest[np.argsort(hashes[rest])]
        self._shared = np.zeros(1 << _SLOT_BITS, bool)
        self._shared[slots[rest]] = True

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """The place of each hash, -1 where it is none."""
        slots = self._slots(wanted)
        found: np.ndarray = self._table[slots]
        found[self._hashes[found] != wanted] = -1
        again = np.flatnonzero((found < 0) & self._shared[slots])
        if len(again):
            rest = self._hashes[self._rest]
            at = np.minimum(np.searchsorted(rest, wanted[again]), len(rest) - 1)
            found[again] = np.where(rest[at] == wanted[again], self._rest[at], -1)
        return found

    @staticmethod
    def _slots(hashes: np.ndarray) -> np.ndarray:
        slots: np.ndarray = (hashes >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)
        return slots
