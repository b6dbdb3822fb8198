"""What of a prompt may come from the prefix cache, and why the rest does not."""

from __future__ import annotations

from poot_batch.kv import KvSpace
from poot_batch.schedule.sequence import Sequence


def reusable(sequence: Sequence, block: int) -> int:
    """Blocks that could be found: those before the prompt's last token, which must run so that it can sample."""
    return (sequence.prompt_length - 1) // block


def look_up(sequence: Sequence, kv: KvSpace) -> None:
    """Give a sequence its chain, with the digests of the blocks that are to be found.

    One that is scored is run whole, and only leaves blocks for others.
    """
    request = sequence.request
    sequence.looked_up = (
        kv.caching and not sequence.scored and not kv.wraps(sequence.prompt_length + sequence.max_tokens)
    )
    blocks = reusable(sequence, kv.block) if sequence.looked_up else 0
    sequence.chain = kv.chain(sequence.tokens, blocks, salt=request.cache_salt, adapter=request.adapter)


def miss(sequence: Sequence, kv: KvSpace, hits: int) -> str | None:
    """Why fewer blocks than possible were found, for people; None when all were."""
    possible = reusable(sequence, kv.block)
    if not kv.caching:
        return "switched off"
    if sequence.scored:
        return "prompt log-probabilities"
    if possible == 0:
        return "shorter than a block"
    if not sequence.looked_up:
        return "disabled for window attention"
    if hits == 0:
        return "not seen before"
    return None if hits == possible else f"first {hits} of {possible} blocks only"
