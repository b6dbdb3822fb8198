"""Logits of tiny random models against transformers in float32, for every way a prompt may arrive."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from poot_models import ModelHandle
from poot_models.families import known_architectures

TOLERANCE = 1e-4
_OLD_CONFIGURATIONS = [
    "llama untied, llama3 rope",
    "llama wide heads, linear rope",
    "llama yarn rope",
    "qwen2 tied",
    "qwen2 window",
    "gemma2",
    "gemma3 linear rope",
    "phi3 partial rotary, short longrope",
    "glm4",
    "command-r",
    "cohere2",
    "starcoder2",
    "apertus",
    "olmo",
    "deci",
]
TOKENS = np.random.default_rng(3).integers(0, 203, (2, 57)).tolist()


def reference_logits(model: Any, tokens: list[int]) -> npt.NDArray[np.float32]:
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def check(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> None:
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def check_schedules(make: Callable[..., Any], path: Path, model: Any) -> ModelHandle:
    """Whole, in uneven chunks then token by token, and two rows side by side, over a ring and over a long table."""
    first, second = TOKENS
    expected, other = reference_logits(model, first), reference_logits(model, second)
    assert np.abs(expected).max() > 1, "the reference must say something"

    whole = make(path)
    whole.open(1)
    check(whole.step((1, first[:45])), expected[44:45])

    small = make(path, chunk=7)  # a window's ring wraps several times
    small.open(2)
    at = 0
    for size in (1, 7, 3, 7, 7, 2, 7, 5, 6):
        check(small.step((2, first[at : at + size])), expected[at + size - 1 : at + size])
        at += size
    for position in range(at, at + 12):
        check(small.step((2, first[position : position + 1])), expected[position : position + 1])

    small.open(0)
    small.open(2)
    at, behind = 0, 0
    for size, late in ((4, 3), (7, 1), (1, 7), (1, 1), (5, 5), (1, 1)):
        found = small.step((2, first[at : at + size]), (0, second[behind : behind + late]))
        at, behind = at + size, behind + late
        check(found, np.stack([expected[at - 1], other[behind - 1]]))
    return whole.handle


def test_safetensors(tiny: str, saved: Any, runner: Any) -> None:
    assert check_schedules(runner, *saved(tiny)).ignored == ()


@pytest.mark.parametrize("name", ["llama untied, llama3 rope", "qwen3 tied", "gemma3", "phi3"])
def test_shards(name: str, saved: Any, runner: Any) -> None:
    path, model = saved(name, max_shard_size="70KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    check_schedules(runner, path, model)


@pytest.mark.parametrize("name", _OLD_CONFIGURATIONS)
def test_configuration_of_transformers_4(name: str, saved: Any, old_config: Any, runner: Any) -> None:
    path, model = saved(name)
    old_config(path)
    check_schedules(runner, path, model)


@pytest.mark.parametrize("tied", [False, True])
def test_the_text_part_of_a_model_for_images(tied: bool, with_images: Any, runner: Any) -> None:
    path, model = with_images("ministral3", tied)
    check_schedules(runner, path, model)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_gguf(tiny_gguf: str, kind: str, written: Any, runner: Any) -> None:
    assert check_schedules(runner, *written(tiny_gguf, kind)).ignored == ()


def test_layers_of_a_llama_may_differ(written: Any, runner: Any) -> None:
    """Heads and widths a layer, as arrays of a GGUF file."""
    handle = check_schedules(runner, *written("deci kv heads by layer", "F32", "llama"))
    assert handle.architecture == "llama"
    assert [layer.kv_heads for layer in handle.config.layers] == [1, 4, 2]


def test_every_architecture_has_a_tiny_model(tiny_models: Any, tiny_gguf_writer: Any) -> None:
    """Every one of the registry, or its parity is not shown."""
    classes = {"DeciLMForCausalLM", "Mistral3ForConditionalGeneration"}  # by other makers than `build`
    classes |= {type(tiny_models.build(name)).__name__ for name in tiny_models.TINY}
    files = {tiny_gguf_writer.architecture_of(tiny_models.build(name)) for name in tiny_models.IN_GGUF}
    assert set(known_architectures()) <= classes | files


@pytest.mark.parametrize("name", ["llama tied", "qwen2 tied", "qwen3 wide heads", "gemma2", "gemma3", "phi3"])
def test_the_gguf_writer_agrees_with_transformers_reader(name: str, written: Any) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path, model = written(name, "Q8_0")
    found = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    expected = model.state_dict()
    assert set(expected) - set(found) <= {"lm_head.weight"}
    for parameter, weight in found.items():
        torch.testing.assert_close(weight, expected[parameter], rtol=0, atol=1e-6)
