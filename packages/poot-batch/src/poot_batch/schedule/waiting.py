"""The queue of those who have no row yet, and those who have one and wait for what others are reading."""

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
    """First come, first served, but for three exceptions.

    A sequence that finds no blocks may be passed by later ones that do, by OVERTAKEN of them at most; then nobody
    passes it until it is in. So nobody starves: from then on blocks only come back, and a pool holds any sequence. A
    fork whose leader's prompt is being read keeps its place but neither holds up those behind it nor counts them. One
    whose next block a running sequence is about to compute gets a row and is held: it is ahead of all without a row,
    and takes blocks once that one has been published or never will be. It waits for sequences that have all they need,
    and nobody waits for it.
    """

    def __init__(self, kv: KvSpace) -> None:
        self._kv = kv
        # In the order of arrival and of their rows; dicts for their cheap removal.
        self._line: dict[Sequence, None] = {}
        self._held: dict[Sequence, None] = {}

    def __len__(self) -> int:
        """How many have no row."""
        return len(self._line)

    @property
    def held(self) -> int:
        return len(self._held)

    def add(self, sequence: Sequence) -> None:
        self._line[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        del (self._held if sequence in self._held else self._line)[sequence]

    def take(self, rows: int) -> Iterator[tuple[Sequence, Reservation | None]]:
        """Those that may go in now, one by one, with the blocks of all they may ever need; each has left the line when
        it is given. One that is to be held comes without blocks first, for its row. At most `rows` have none yet."""
        if not self._held and not (rows and self._line):
            return
        without: list[Sequence] = []
        for sequence in (*self._held, *(self._line if rows else ())):
            held = sequence in self._held
            if not (rows or held):
                return
            if sequence.following or ((awaiting := self._awaiting(sequence)) and held):
                continue
            reservation = None
            if not awaiting:
                reservation = self._kv.reserve(sequence.prompt_length + sequence.max_tokens, sequence.chain)
            if reservation is None and not awaiting:
                without.append(sequence)
            else:
                for passed in without:
                    passed.passed += 1
                self.remove(sequence)
                if awaiting:
                    self._held[sequence] = None
                rows -= not held
                yield sequence, reservation
            if len(without) == _TRIED or any(passed.passed >= OVERTAKEN for passed in without):
                return

    def _awaiting(self, sequence: Sequence) -> bool:
        """Whether the next block that it needs is being computed. If so it waits for all that are, one after another,
        so that it is asked about once."""
        kv, leader = self._kv, sequence.leader
        if sequence.awaits is not None and kv.promised(sequence.awaits):
            return True
        if sequence.chain is None:
            look_up(sequence, kv)  # once, and while the device has work
        assert sequence.chain is not None
        if leader is not None and leader.reservation is not None and not leader.finished:
            kv.restore(leader.reservation)
        sequence.awaits = kv.awaited(sequence.chain)
        return sequence.awaits is not None
