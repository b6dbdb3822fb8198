"""How much of which prompts a step reads."""

from __future__ import annotations

from poot_batch.schedule.sequence import Sequence


def shares(reading: list[Sequence], room: int) -> dict[Sequence, int]:
    """The step's tokens for those whose prompts are being read, in order of admission: `room` of them, or all there
    are.

    Half of the room goes by that order. Where it ends on a prompt that needs more, the other half is for those behind
    that have at most half as much left, the shortest first, and of about one length (up to the next power of two) the
    earliest; what they leave goes by the order again. So a short prompt does not wait until a long one is read, which
    keeps at least half of its speed, and prompts of about one length are read one after another.
    """
    share = room // 2
    rest = room - share
    given: dict[Sequence, int] = {}
    index = 0
    while index < len(reading) and (left := reading[index].prompt_left) <= rest:
        given[reading[index]] = left
        rest -= left
        index += 1
    behind = [(_wanted(sequence), sequence) for sequence in reading[index + 1 :]]
    short = sorted((pair for pair in behind if pair[0] <= left // 2), key=lambda pair: pair[0].bit_length())
    for wanted, sequence in short:
        if not share:
            break
        given[sequence] = min(wanted, share)
        share -= given[sequence]
    rest += share
    for sequence in reading[index:]:
        if not rest:
            break
        before = given.get(sequence, 0)
        given[sequence] = min(sequence.prompt_left, before + rest)
        rest -= given[sequence] - before
    return given


def _wanted(sequence: Sequence) -> int:
    """How much of a prompt is wanted soon: all that is left, or, if others wait for some of it, that."""
    assert sequence.reservation is not None
    return max(0, sequence.reservation.awaited - sequence.scheduled) or sequence.prompt_left
