"""A request's sampling parameters as columns of the row table, and what a step must pay for them."""

from poot_batch.sampling.columns import features_of, open_block, recall_blocks

__all__ = ["features_of", "open_block", "recall_blocks"]
