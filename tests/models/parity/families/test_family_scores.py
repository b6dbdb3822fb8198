"""Log-probabilities of prompts of tiny random models against transformers in float32, over borders of chunks."""

from typing import Any

import numpy as np
import pytest
import torch

TOLERANCE = 1e-4
CHUNK = 7
TOP = 4
TOKENS = np.random.default_rng(5).integers(0, 203, 3 * CHUNK + 5).tolist()


@pytest.mark.parametrize("count", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_scores_of_a_prompt(tiny_short: str, count: int, scored: Any) -> None:
    runner, model = scored(tiny_short)
    tokens = TOKENS[:count]
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    expected = logits.log_softmax(-1).numpy()

    runner.open(1)
    chosen, ids, values, last = runner.score(1, tokens)

    assert chosen.shape == (count - 1,)
    np.testing.assert_allclose(chosen, expected[np.arange(count - 1), tokens[1:]], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(values, -np.sort(-expected, axis=-1)[:, :TOP], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(np.take_along_axis(expected, ids, axis=-1), values, rtol=0, atol=TOLERANCE)
    # What `head` and `sample` go on from.
    np.testing.assert_allclose(last, logits[-1].numpy(), rtol=0, atol=TOLERANCE)


def test_a_scored_row_goes_on_as_any_other(scored: Any) -> None:
    runner, model = scored("gemma3")
    for row in (0, 2):
        runner.open(row)
    runner.score(2, TOKENS[:10])
    found = runner.step((0, TOKENS[:3]), (2, TOKENS[10:13]))
    with torch.inference_mode():
        first, second = (model(torch.tensor([TOKENS[:end]]), use_cache=False).logits[0, -1].numpy() for end in (3, 13))
    np.testing.assert_allclose(found, np.stack([first, second]), rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def scored(saved: Any, runner: Any) -> Any:
    """(name) -> a runner with a score program and the transformers model, made once."""
    made: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in made:
            path, model = saved(name)
            made[name] = runner(path, chunk=CHUNK, top=TOP), model
        return made[name]

    return make
