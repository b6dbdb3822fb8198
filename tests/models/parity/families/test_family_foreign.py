"""config.json and weights that contradict each other or have too much, read as transformers reads them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from poot_models import load
from poot_models.errors import CheckpointError, CheckpointFormatError, UnsupportedArchitectureError

TOKENS = np.random.default_rng(7).integers(3, 203, 57).tolist()
BIASED = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj")


def reference(path: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(torch.tensor([TOKENS]), use_cache=False).logits[0, -1:].numpy()


def check(path: Path, runner: Any) -> None:
    found = runner(path)
    found.open(1)
    np.testing.assert_allclose(found.step((1, TOKENS)), reference(path), rtol=0, atol=1e-4)


def add_tensors(path: Path, *, tied: bool) -> int:
    """A bias for every product that has none, and a matrix of the logits for a tied one: how many."""
    tensors, random = load_file(path / "model.safetensors"), torch.Generator().manual_seed(5)
    more = {
        f"{stem}.bias": torch.randn(weight.shape[0], generator=random)
        for stem, kind, weight in ((*name.rpartition(".")[::2], weight) for name, weight in tensors.items())
        if kind == "weight" and stem.endswith(BIASED) and f"{stem}.bias" not in tensors
    }
    if tied:
        more["lm_head.weight"] = torch.randn(tensors["model.embed_tokens.weight"].shape, generator=random) / 8
    save_file({**tensors, **more}, path / "model.safetensors", {"format": "pt"})
    return len(more)


def test_what_an_architecture_has_not_is_ignored(
    tiny_each: str, saved: Any, runner: Any, stated: Any, changed: Any
) -> None:
    """Settings and tensors of other families, beside its own."""
    path, model = saved(tiny_each)
    config = stated(path)
    layers = config["num_hidden_layers"]
    alien = {
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * layers,
        "max_window_layers": 0,
        "sliding_window_pattern": 2,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 3,
        "original_max_position_embeddings": 48,
        "no_rope_layer_interval": 2,
        "logit_scale": 0.5,
        "residual_multiplier": 0.5,
        "clip_qkv": 0.5,
    }
    alien["layer_types"] = alien["layer_types"][:layers]
    rules = config["rope_parameters"]
    if rules.get("full_attention", rules)["rope_type"] == "default":
        alien["partial_rotary_factor"] = 0.5
    # What it states itself remains, so that each of its own settings is tested elsewhere.
    changed(path, {**alien, **config})
    add_tensors(path, tied=model.config.tie_word_embeddings)
    check(path, runner)


FLAGS = ("attention_bias", "mlp_bias", "attention_out_bias", "use_bias")


@pytest.mark.parametrize(
    "name",
    [
        *("llama biases", "olmo2 one kv head", "granite biases", "seed_oss all biases", "glm4", "starcoder2"),
        *("command-r normed heads, biases", "cohere2 own layers, biases", "apertus biases, tied"),
    ],
)
def test_biases_are_those_that_the_configuration_has(
    name: str, saved: Any, runner: Any, stated: Any, changed: Any
) -> None:
    path, _ = saved(name)
    config = stated(path)
    flags = [flag for flag in FLAGS if config.get(flag)]
    assert flags
    for flag in flags:
        check(changed(path, {**config, flag: False}), runner)
        with pytest.raises(CheckpointFormatError, match=f"{flag} must be true or false"):
            load(changed(path, {**config, flag: 1}))


def test_a_bias_that_the_configuration_has_must_be_there(saved: Any, stated: Any, changed: Any) -> None:
    path, _ = saved("llama tied")
    config = stated(path)
    with pytest.raises(CheckpointError, match=r"no tensor blk\.0\.attn_q\.bias"):
        load(changed(path, {**config, "attention_bias": True}))


def test_an_equal_matrix_of_the_logits_is_tied(saved: Any) -> None:
    path, _ = saved("llama tied")
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path / "model.safetensors")
    assert load(path).config.tied
    add_tensors(path, tied=True)
    assert not load(path).config.tied


LINEAR = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize("name", ["llama tied", "olmo3", "gemma3", "glm4", "qwen2 tied", "smollm3"])
@pytest.mark.parametrize("theta", [{}, {"rope_theta": 300.0}], ids=["", "theta"])
def test_rope_scaling_comes_before_rope_parameters(
    name: str, theta: dict[str, float], *, saved: Any, runner: Any, stated: Any, changed: Any
) -> None:
    path, _ = saved(name)
    config = stated(path)
    check(changed(path, {**config, "rope_scaling": {**LINEAR, **theta}, "rope_theta": 700.0}), runner)


@pytest.mark.parametrize("name", ["smollm3 window", "qwen2 window", "ministral", "gemma3", "olmo3", "cohere2"])
def test_layer_types_say_which_layers_have_a_window(
    name: str, saved: Any, runner: Any, stated: Any, changed: Any
) -> None:
    path, _ = saved(name)
    config = stated(path)
    kinds = ["full_attention", "sliding_attention", "sliding_attention"] * config["num_hidden_layers"]
    check(changed(path, {**config, "layer_types": kinds[: config["num_hidden_layers"]]}), runner)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("llama tied", {"is_causal": False}, "is_causal"),
        ("qwen3 tied", {"is_causal": False}, "is_causal"),
        ("llama tied", {"partial_rotary_factor": 0.5, "rope_scaling": LINEAR}, "partial_rotary_factor"),
    ],
)
def test_what_no_layer_does_is_refused_by_name(
    name: str, change: dict[str, Any], words: str, *, saved: Any, stated: Any, changed: Any
) -> None:
    path, _ = saved(name)
    config = stated(path)
    with pytest.raises(UnsupportedArchitectureError, match=words):
        load(changed(path, {**config, **change}))


@pytest.mark.parametrize(
    ("name", "rules", "words"),
    [
        ("gemma3", {"rope_type": "default", "rope_theta": 5e5}, "a rule for each kind of layer"),
        ("olmo3", {"rope_type": "default", "rope_theta": 5e5}, "a rule for each kind of layer"),
        ("llama tied", {"full_attention": {"rope_theta": 5e5}}, "one rule for all layers"),
    ],
)
def test_rules_of_another_form_are_refused(
    name: str, rules: dict[str, Any], words: str, *, saved: Any, stated: Any, changed: Any
) -> None:
    path, _ = saved(name)
    config = stated(path)
    with pytest.raises(CheckpointFormatError, match=words):
        load(changed(path, {**config, "rope_parameters": rules}))
