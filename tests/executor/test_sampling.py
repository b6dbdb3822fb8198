"""Draws: known answers of the generator, the distributions, and the sets that survive the cuts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from poot_executor.devices import Live, open_device
from poot_executor.ops import RowLayout, TopLogProbs
from poot_executor.ops.sampling import Draw, kept_threshold, philox, uniform
from poot_executor.programs import FULL, LOGPROBS, RowTableShape, sample_graph
from poot_executor.runtime import EntryKey, EntrySet, compile_graphs, prepare

VOCABULARY = 50
# Upper 0.1 % points of chi-square, by degrees of freedom (any table of the distribution).
CHI_SQUARE = {4: 18.47, 9: 27.88}


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # kat_vectors of Random123, lines "philox4x32 10".
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert philox(key, counter) == expected  # type: ignore[arg-type]


def test_uniform_takes_the_top_24_bits_and_signed_seeds() -> None:
    assert uniform(0, 0, 0) == (0x6627E8D5 >> 8) / 2**24
    assert uniform(-1, -1, 5) == uniform(0xFFFFFFFF, 0xFFFFFFFF, 5)
    drawn = [uniform(1, 2, position) for position in range(2000)]
    assert min(drawn) >= 0 and max(drawn) < 1
    assert abs(np.mean(drawn) - 0.5) < 0.02
    assert len(set(drawn)) > 1990


class Sampler:
    """A prepared `sample` entry over `rows` rows, with rows' parameters set as states."""

    def __init__(self, rows: int, vocabulary: int, *features: str) -> None:
        self.rows, self.shape = rows, RowTableShape(rows, 16, 2, (1,))
        self.key = EntryKey("sample", rows, frozenset(features))
        graph = sample_graph(self.shape, rows, vocabulary, frozenset(features), ends=(), top=3)
        device = open_device("cpu")
        self.entries: EntrySet = prepare(device, compile_graphs(device, {self.key: graph}), {})
        self.ints = np.zeros((rows, RowLayout.INTS), np.int32)
        self.reals = np.zeros((rows, RowLayout.FLOATS), np.float32)
        self.reals[:, [RowLayout.TEMPERATURE, RowLayout.TOP_P, RowLayout.REPETITION]] = 1.0

    def tokens(self, logits: torch.Tensor, order: list[int] | None = None) -> np.ndarray:
        """One run over the rows in this order; logits are in that order too."""
        order = list(range(self.rows)) if order is None else order
        self.entries.write_state("rows.ints", self.ints)
        self.entries.write_state("rows.floats", self.reals)
        self.entries.write_state("rows.logits", logits.contiguous().numpy())
        entry = self.entries[self.key]
        entry.stage("rows", np.array(order, np.int32))
        entry.run(Live(rows=len(order)))
        assert not entry.read("flags", len(order)).any()
        return entry.read("tokens", len(order))


def drawn(logits: torch.Tensor, seeds: int, **reals: float) -> np.ndarray:
    """How often each token is drawn from one row of logits, over this many seeds."""
    sampler = Sampler(seeds, len(logits), FULL)
    sampler.ints[:, RowLayout.SEED_LOW] = np.arange(seeds)
    sampler.ints[:, RowLayout.TOP_K] = reals.pop("TOP_K", 0)
    for name, value in reals.items():
        sampler.reals[:, getattr(RowLayout, name)] = value
    return np.bincount(sampler.tokens(logits.expand(seeds, -1)), minlength=len(logits))


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    expected = counts.sum() * p
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_draws_follow_the_distribution(temperature: float) -> None:
    logits = torch.linspace(-1.0, 1.0, 10)
    counts = drawn(logits, 4000, TEMPERATURE=temperature)
    assert chi_square(counts, (logits / temperature).softmax(-1).numpy()) < CHI_SQUARE[9]


@pytest.mark.parametrize("cut", [{"TOP_K": 5}, {"TOP_P": 0.73}, {"MIN_P": 0.41}])
def test_draws_after_a_cut_follow_what_is_left(cut: dict[str, float]) -> None:
    logits = torch.tensor([0.1, -0.8, 0.9, 0.3, -1.0, 0.5, -0.6, 0.7, -0.4, -0.2])
    counts = drawn(logits, 3000, **cut)
    kept = logits.argsort(descending=True)[:5].numpy()
    assert counts[kept].sum() == 3000
    assert chi_square(counts[kept], logits[kept].softmax(-1).numpy()) < CHI_SQUARE[4]


def test_temperature_zero_and_tiny_are_greedy() -> None:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(1)) * 30
    for temperature in (0.0, 1e-3, 1e-38):
        counts = drawn(logits, 50, TEMPERATURE=temperature)
        assert counts[int(logits.argmax())] == 50


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 0.9),
    temperature=st.floats(0.2, 3.0),
)
def test_the_cuts_keep_what_transformers_keeps(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2
    scores = logits / temperature
    if 0 < top_k < VOCABULARY:
        scores = TopKLogitsWarper(top_k)(None, scores)
    scores = TopPLogitsWarper(top_p)(None, scores) if top_p < 1 else scores
    scores = MinPLogitsWarper(min_p)(None, scores) if min_p else scores
    expected = torch.isfinite(scores[0])
    ints, reals = torch.zeros(RowLayout.INTS, dtype=torch.int32), torch.zeros(RowLayout.FLOATS)
    ints[RowLayout.TOP_K], reals[RowLayout.TOP_P], reals[RowLayout.MIN_P] = top_k, top_p, min_p
    p = (logits[0].double() / temperature).softmax(-1)
    threshold = kept_threshold(p, ints, reals)
    kept = p >= threshold
    differing = (kept != expected).nonzero()[:, 0]
    # A probability at the very edge of a cut may fall on either side of it, by rounding.
    assert len(differing) <= 1
    if len(differing):
        ordered = p.sort(descending=True).values
        ordered = ordered[:top_k] if 0 < top_k < VOCABULARY else ordered
        mass = ordered.cumsum(-1) / ordered.sum()
        edges = [*(mass - top_p).abs().tolist(), *(ordered / ordered[0] - min_p).abs().tolist()]
        assert min(edges) < 1e-5


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), top_k=st.integers(0, 40), top_p=st.floats(0.1, 1.0), min_p=st.floats(0.0, 0.5))
def test_the_kernel_draws_what_the_reference_draws(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    noise = torch.Generator().manual_seed(seed)
    sampler = Sampler(4, VOCABULARY, FULL)
    sampler.ints[:, RowLayout.SEED_LOW : RowLayout.SEED_HIGH + 1] = torch.randint(
        -(2**31), 2**31, (4, 2), generator=noise
    ).numpy()
    sampler.ints[:, RowLayout.LENGTH] = [1, 5, 9, 15]
    sampler.ints[:, RowLayout.TOP_K] = top_k
    sampler.reals[:, RowLayout.TOP_P], sampler.reals[:, RowLayout.MIN_P] = top_p, min_p
    logits = torch.randn(4, VOCABULARY, generator=noise) * 2
    expected, _ = Draw().reference(
        logits, torch.arange(4), torch.from_numpy(sampler.ints), torch.from_numpy(sampler.reals)
    )
    assert sampler.tokens(logits).tolist() == expected.tolist()


def test_a_draw_depends_on_seed_and_position_not_on_the_batch() -> None:
    noise = torch.Generator().manual_seed(9)
    sampler, logits = Sampler(6, VOCABULARY, FULL), torch.randn(6, VOCABULARY, generator=noise)
    sampler.ints[:, RowLayout.SEED_LOW] = [3, 1, 4, 1, 5, 9]
    sampler.ints[:, RowLayout.LENGTH] = [2, 7, 1, 8, 2, 8]
    together = sampler.tokens(logits)
    for row in range(6):
        assert sampler.tokens(logits[row : row + 1], [row]).tolist() == [together[row]]
    order = [4, 2, 0, 5, 1, 3]
    assert sampler.tokens(logits[order], order).tolist() == together[order].tolist()
    sampler.ints[:, RowLayout.LENGTH] += 1
    assert sampler.tokens(logits).tolist() != together.tolist()


def test_top_log_probs_are_those_of_log_softmax() -> None:
    sampler = Sampler(3, VOCABULARY, LOGPROBS)
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(2))
    logits[1] = 1.0  # all equal: the lowest ids win
    tokens = sampler.tokens(logits)
    entry, expected = sampler.entries[sampler.key], logits.double().log_softmax(-1)
    ids, values, chosen = (entry.read(name) for name in ("top_ids", "top_values", "chosen"))
    assert ids[1].tolist() == [0, 1, 2]
    np.testing.assert_allclose(values, expected.gather(1, torch.from_numpy(ids).long()).numpy(), atol=1e-5)
    np.testing.assert_allclose(chosen, expected[range(3), tokens].numpy(), atol=1e-5)
    assert all(a >= b for row in values for a, b in pairwise(row))
    reference = TopLogProbs(3).reference(logits, torch.from_numpy(tokens))
    assert torch.equal(reference[1], torch.from_numpy(ids))


def test_the_token_is_appended_to_its_row() -> None:
    sampler = Sampler(2, VOCABULARY)
    sampler.ints[:, RowLayout.LENGTH] = [4, 15]
    logits = torch.zeros(2, VOCABULARY)
    logits[0, 7] = logits[1, 9] = 1.0
    assert sampler.tokens(logits, [1, 0]).tolist() == [7, 9]
    history = sampler.entries.read_state("rows.history")
    assert (history[1, 15], history[0, 4], np.count_nonzero(history)) == (7, 9, 2)
