"""The packaged real models: greedy tokens and logits against transformers in float32 from the dequantised weights."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from poot_models.text import open_text

TOLERANCE = 1e-3
PROMPTS = Path(__file__).parents[2] / "data" / "prompts.json"


def greedy(runner: Any, prompts: list[list[int]], count: int) -> tuple[list[list[int]], list[npt.NDArray[np.float32]]]:
    """`count` tokens of every prompt, all rows in each step, and the logits they were taken from."""
    rows = range(len(prompts))
    for row in rows:
        runner.open(row)
    logits = runner.step(*enumerate(prompts))
    tokens, seen = [[] for _ in rows], [[] for _ in rows]
    for position in range(count):
        for row, token in enumerate(runner.sample(*rows)):
            tokens[row].append(token)
            seen[row].append(logits[row])
        if position + 1 < count:
            logits = runner.step(*((row, None) for row in rows))
    return tokens, [np.stack(each) for each in seen]


def check(runner: Any, reference: ModuleType, path: Path, names: list[str], count: int) -> None:
    known = reference.load_prompts(PROMPTS, open_text(path))
    prompts = [known[name] for name in names]
    chunk = sum(map(len, prompts))
    mine = runner(path, rows=len(prompts), max_seq=max(map(len, prompts)) + count, chunk=chunk, block=16, tile=64)
    tokens, logits = greedy(mine, prompts, count)
    del mine
    model = reference.reference_model(path)
    compared = 0
    for name, prompt, generated, found in zip(names, prompts, tokens, logits, strict=True):
        expected = reference.forced_logits(model, prompt, generated)
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=TOLERANCE, err_msg=name)
        verdict = reference.judge(expected, generated, 2 * TOLERANCE)
        assert verdict.passed, f"{name}: {verdict}"
        compared += verdict.compared
    assert compared >= len(names) * count // 2, "too many ties to say anything"


def test_smollm2(runner: Any, reference: ModuleType, smollm2_path: Path) -> None:
    check(runner, reference, smollm2_path, ["chat with system", "python", "emoji", "one word"], 24)


def test_gemma3(runner: Any, reference: ModuleType, gemma_path: Path) -> None:
    check(runner, reference, gemma_path, ["german", "sql"], 24)


@pytest.mark.slow
def test_the_reference_reads_gguf_as_transformers_does(reference: ModuleType, smollm2_path: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = reference.reference_model(smollm2_path)
    found = load_gguf_checkpoint(smollm2_path, return_tensors=True, model_to_load=model)
    state = model.state_dict()
    assert set(state) - set(found["tensors"]) == {"lm_head.weight"}
    assert all(weight.equal(state[name]) for name, weight in found["tensors"].items())
    config = model.config.to_dict()
    renamed = {"rope_theta": config["rope_parameters"]["rope_theta"]}
    shared = set(found["config"]) & set(config | renamed) - {"pad_token_id", "unk_token_id"}
    assert len(shared) > 8
    assert {name: found["config"][name] for name in shared} == {name: (config | renamed)[name] for name in shared}
