"""The judge of greedy answers, on logits worked out by hand."""

from types import ModuleType

import pytest
import torch

# Best token by row: 0 (by 1.0), 2 (by 0.5), 1 (by 0.02), 0 (by 2.0).
LOGITS = torch.tensor([[3.0, 2.0, 1.0], [0.0, 0.5, 1.0], [0.98, 1.0, 0.0], [2.0, 0.0, -1.0]])


@pytest.mark.parametrize(
    ("generated", "equal", "mismatch", "gap"),
    [
        ((0, 2, 1, 0), 4, None, 0.0),
        ((0, 2, 0, 0), 3, None, 0.0),  # the other side of the tie
        ((0, 2, 2, 0), 3, 2, 1.0),  # no side of the tie
        ((0, 1, 1, 0), 3, 1, 0.5),
        ((0, 2, 1, 1), 3, 3, 2.0),  # past the tie
        ((1, 0, 1, 0), 2, 0, 1.0),
    ],
)
def test_judge(reference: ModuleType, generated: tuple[int, ...], equal: int, mismatch: int | None, gap: float) -> None:
    verdict = reference.judge(LOGITS, generated)
    assert (verdict.positions, verdict.compared) == (4, 2)
    assert (verdict.equal, verdict.mismatch) == (equal, mismatch)
    assert verdict.gap == pytest.approx(gap)
    assert verdict.passed == (mismatch is None)


def test_without_a_tie_everything_is_compared(reference: ModuleType) -> None:
    assert reference.judge(LOGITS[:2], (0, 2)).compared == 2


def test_an_empty_answer_does_not_pass(reference: ModuleType) -> None:
    assert not reference.judge(LOGITS[:0], ()).passed
