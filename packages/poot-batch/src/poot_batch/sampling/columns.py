"""Rows of the table from requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from poot_batch.schedule import Sequence
from poot_executor.ops import RowLayout
from poot_executor.programs import FULL, LOGPROBS, PENALTIES, RowTableShape


def features_of(sequence: Sequence) -> frozenset[str]:
    """The features that a sample entry needs to give this row what it asked for."""
    sampling = sequence.request.sampling
    asked = {
        FULL: not sampling.greedy,
        PENALTIES: sampling.penalised or bool(sampling.logit_bias) or bool(sequence.request.min_tokens),
        LOGPROBS: sampling.logprobs is not None,
    }
    return frozenset(feature for feature, needed in asked.items() if needed)


def open_block(sequence: Sequence, shape: RowTableShape) -> npt.NDArray[np.int32]:
    """The block that writes this sequence's row: see `RowLayout.open_block`."""
    request, sampling = sequence.request, sequence.request.sampling
    assert sequence.reservation is not None
    ints = np.zeros(RowLayout.INTS, dtype=np.int32)
    seed = np.array([sequence.seed & 0xFFFFFFFF, sequence.seed >> 32 & 0xFFFFFFFF], dtype=np.uint32)
    ints[[RowLayout.SEED_LOW, RowLayout.SEED_HIGH]] = seed.view(np.int32)
    ints[RowLayout.TOP_K] = sampling.top_k
    ints[RowLayout.PROMPT] = sequence.prompt_length
    ints[RowLayout.MIN_LENGTH] = sequence.prompt_length + request.min_tokens
    ints[RowLayout.BIAS_COUNT] = len(sampling.logit_bias)
    reals = np.zeros(RowLayout.FLOATS, dtype=np.float32)
    reals[RowLayout.TEMPERATURE] = 0.0 if sampling.greedy else sampling.temperature
    reals[RowLayout.TOP_P] = sampling.top_p
    reals[RowLayout.MIN_P] = sampling.min_p
    reals[RowLayout.PRESENCE] = sampling.presence_penalty
    reals[RowLayout.FREQUENCY] = sampling.frequency_penalty
    reals[RowLayout.REPETITION] = sampling.repetition_penalty
    ids = np.zeros(shape.bias, dtype=np.int32)
    values = np.zeros(shape.bias, dtype=np.float32)
    for index, (token, bias) in enumerate(sampling.logit_bias):
        ids[index], values[index] = token, bias
    tables = []
    for blocks, width in zip(sequence.reservation.blocks, shape.tables, strict=True):
        # What lies past the row's own blocks is never looked up: no position of the row leads there.
        tables.append(np.resize(blocks, width))
    head = np.array([sequence.row], dtype=np.int32)
    return np.concatenate([head, ints, reals.view(np.int32), ids, values.view(np.int32), *tables])


def recall_blocks(sequence: Sequence, most: int) -> Iterator[npt.NDArray[np.int32]]:
    """The blocks that put the cached part of a prompt into its row's history: row, first position, tokens, these."""
    for first in range(0, sequence.cached, most):
        tokens = sequence.request.prompt[first : min(first + most, sequence.cached)]
        yield np.array([sequence.row, first, len(tokens), *tokens], dtype=np.int32)
