"""From sampled tokens to outputs: end tokens, limits, stop strings, log-probabilities."""

from poot_batch.delivery.commit import Committer
from poot_batch.delivery.text import RowText

__all__ = ["Committer", "RowText"]
