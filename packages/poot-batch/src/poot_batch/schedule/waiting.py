"""The queue of those who have no row yet."""

from __future__ import annotations

from collections.abc import Iterator

from poot_batch.kv import KvSpace, Reservation
from poot_batch.schedule.reuse import look_up
from poot_batch.schedule.sequence import Sequence

# Admissions that may pass a sequence which finds no blocks.
OVERTAKEN = 64
# Sequences without room that are tried in one turn: what lies further back waits, so that a turn stays short.
_TRIED = 32


class WaitingLine:
    """First come, first served, but for two exceptions.

    A sequence that finds no blocks may be passed by later ones that do, by OVERTAKEN of them at most; then nobody
    passes it until it is in. So nobody starves: from then on blocks only come back, and a pool holds any sequence. A
    fork whose leader's prompt is being read keeps its place but neither holds up those behind it nor counts them.
    """

    def __init__(self, kv: KvSpace) -> None:
        self._kv = kv
        # In the order of arrival; a dict for its cheap removal.
        self._line: dict[Sequence, None] = {}

    def __len__(self) -> int:
        return len(self._line)

    def add(self, sequence: Sequence) -> None:
        self._line[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        del self._line[sequence]

    def take(self, rows: int) -> Iterator[tuple[Sequence, Reservation]]:
        """At most `rows` that may go in now, one by one, with the blocks of all they may ever need; each has left the
        line when it is given."""
        if not rows or not self._line:
            return
        without: list[Sequence] = []
        for sequence in tuple(self._line):
            if sequence.following:
                continue
            if sequence.chain is None:
                look_up(sequence, self._kv)  # once, and while the device has work
            leader = sequence.leader
            if leader is not None and leader.reservation is not None and not leader.finished:
                self._kv.restore(leader.reservation)
            reservation = self._kv.reserve(sequence.prompt_length + sequence.max_tokens, sequence.chain)
            if reservation is None:
                without.append(sequence)
            else:
                for passed in without:
                    passed.passed += 1
                del self._line[sequence]
                rows -= 1
                yield sequence, reservation
            if not rows or len(without) == _TRIED or any(passed.passed >= OVERTAKEN for passed in without):
                return
