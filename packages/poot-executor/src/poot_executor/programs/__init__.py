"""Programs that no model family owns: the row table's states, opening a row, sampling."""

from poot_executor.programs.rows import RowTableShape, open_graph, recall_graph
from poot_executor.programs.sample import FULL, LOGPROBS, PENALTIES, sample_graph

__all__ = ["FULL", "LOGPROBS", "PENALTIES", "RowTableShape", "open_graph", "recall_graph", "sample_graph"]
