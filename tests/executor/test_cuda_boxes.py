"""Matrices that the copy engine takes, and those that it does not."""

from __future__ import annotations

import pytest
import torch

from poot_executor.backends.cuda.boxes import Boxes
from poot_executor.errors import GraphError


def numbers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("tensor", "rows"),
    [
        (numbers(16, 64).half(), 8),
        (numbers(16, 64).float(), 8),
        (numbers(64), 8),
        (numbers(2, 16, 64), 8),
        (numbers(64, 16).T, 8),  # columns are not next to each other
        (numbers(16, 128)[:, ::2], 8),
        (numbers(16, 68), 8),  # rows are no multiples of 16 bytes apart
        (numbers(16, 72)[:, 4:68], 8),  # rows begin between vectors
        (numbers(16, 64), 0),
        (numbers(16, 64), -1),
        (numbers(16, 64), 257),
        (numbers(1, 64).expand(16, 64), 8),  # rows are in one place
        (numbers(0, 64), 8),
    ],
)
def test_matrices_that_the_copy_engine_does_not_take_are_refused(tensor: torch.Tensor, rows: int) -> None:
    with pytest.raises(GraphError, match=f"no boxes of {rows} rows"):
        Boxes(tensor, rows)


@pytest.mark.parametrize("rows", [1, 256])
def test_matrices_within_others_are_taken(rows: int) -> None:
    assert Boxes(numbers(16, 72)[3:5, 8:], rows).rows == rows


@pytest.mark.parametrize(
    ("columns", "rows", "pieces"),
    [
        (72, 8, 1),  # the last would not be whole
        (128, 12, 2),  # chunks would have changed places in another way
        (128, 4, 2),
        (128, 0, 2),
        (128, 264, 2),
        (128, 8, 3),
        (128, 8, 0),
        (128, 8, -1),
    ],
)
def test_boxes_next_to_each_other_are_whole(columns: int, rows: int, pieces: int) -> None:
    with pytest.raises(GraphError, match=f"no boxes of {rows} rows"):
        Boxes(numbers(16, columns), rows, pieces)


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_as_many_boxes_are_copied_at_once_as_there_are(pieces: int) -> None:
    assert Boxes(numbers(16, 320)[3:5, 64:256], 16, pieces).pieces == pieces
    assert Boxes(numbers(16, 192), 16).pieces is None


@pytest.mark.parametrize(
    ("tensor", "rows", "pieces"),
    [
        (numbers(24, 64), 16, None),  # halves of 12 rows
        (numbers(32, 64), 8, None),  # no eight of each
        (numbers(32, 64), 24, None),
        (numbers(32, 64), 272, None),
        (numbers(32, 64), 16, 1),
    ],
)
def test_boxes_of_halves_have_whole_eights_of_both(tensor: torch.Tensor, rows: int, pieces: int | None) -> None:
    with pytest.raises(GraphError, match=f"no boxes of {rows} rows"):
        Boxes(tensor, rows, pieces, halves=True)
    assert Boxes(numbers(48, 72)[:32, 8:], 128, halves=True).halves
