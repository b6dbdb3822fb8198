"""config.json read as transformers reads it: what it leaves out, has too much of, or contradicts."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from poot_models import load
from poot_models.blocks import DecoderConfig
from poot_models.errors import CheckpointError, UnsupportedArchitectureError
from poot_models.families import known_architectures

# What the others may state; without it transformers derives it from them.
DERIVED = ("layer_types", "no_rope_layers")


def completed(path: Path) -> dict[str, Any] | None:
    """config.json with nothing left out, by transformers; None where it refuses, which it does in many ways."""
    try:
        config = AutoConfig.from_pretrained(path).to_dict()
    except Exception:
        return None
    whole: dict[str, Any] = json.loads(json.dumps(config, default=str))
    return whole


def read(path: Path) -> DecoderConfig | str:
    """The configuration, or the refusal."""
    try:
        return load(path).config
    except CheckpointError as error:
        return str(error)


def without(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(field, the configuration without it) for each one, those of rope_parameters too."""
    for name in config:
        if name not in ("architectures", "model_type"):
            yield name, {key: value for key, value in config.items() if key != name}
    for kind in ("", "full_attention", "sliding_attention"):
        rules = config.get("rope_parameters") or {}
        for name in rules.get(kind, {}) if kind else rules:
            less = copy.deepcopy(config)
            (less["rope_parameters"][kind] if kind else less["rope_parameters"]).pop(name)
            yield name, less


def test_what_is_absent_is_as_transformers_has_it_or_refused(tiny_each: str, saved: Any, changed: Any) -> None:
    path, _ = saved(tiny_each)
    full = completed(path)
    assert full is not None
    taken = 0
    for base in (full, {key: value for key, value in full.items() if key not in DERIVED}):
        for field, less in without(base):
            found = read(changed(path, less))
            if isinstance(found, str) and field in found:
                continue
            whole = completed(path)
            if whole is None:
                assert isinstance(found, str), f"without {field}"
                continue
            assert found == read(changed(path, whole)), f"without {field}"
            taken += not isinstance(found, str)
    assert taken > 20


# Fields that mean something else where they are null than where they are absent.
NULLABLE = (
    *("sliding_window", "layer_types", "num_key_value_heads", "head_dim", "attn_logit_softcapping"),
    *(
        "final_logit_softcapping",
        "query_pre_attn_scalar",
        "max_window_layers",
        "use_qk_norm",
        "clip_qkv",
        "logit_scale",
    ),
    *("attention_bias", "use_sliding_window", "no_rope_layers", "tie_word_embeddings", "rope_parameters"),
)


def test_what_is_null_is_as_transformers_has_it_or_refused(tiny_each: str, saved: Any, changed: Any) -> None:
    path, _ = saved(tiny_each)
    full = completed(path)
    assert full is not None
    for field in NULLABLE:
        found = read(changed(path, {**full, field: None}))
        whole = completed(path)  # where it refuses, poot may still take null for absent
        if whole is not None and not (isinstance(found, str) and field in found):
            assert found == read(changed(path, whole)), f"{field} null"


def test_every_architecture_is_held_to_transformers(tiny_models: Any) -> None:
    seen = {type(tiny_models.build(name)).__name__ for name in tiny_models.ONE_EACH}
    known = {name for name in known_architectures() if name.endswith(("ForCausalLM", "ForConditionalGeneration"))}
    # transformers has no DeciLM; the text part of a model for images is read as one of the others.
    assert known - seen == {"DeciLMForCausalLM", "Mistral3ForConditionalGeneration"}


def test_a_text_part_is_read_as_the_model_that_it_is(with_images: Any, stated: Any, changed: Any) -> None:
    """A Mistral has a window where nothing is said, a Ministral 3 has none."""
    for name, window in (("mistral", 4096), ("ministral3", None)):
        path, _ = with_images(name, False)
        config = stated(path)
        config["text_config"].pop("sliding_window")
        config["text_config"]["max_position_embeddings"] = 8192
        assert {layer.window for layer in load(changed(path, config)).config.layers} == {window}
        del config["text_config"]["model_type"]
        assert {layer.window for layer in load(changed(path, config)).config.layers} == {4096}
    config["text_config"]["model_type"] = "llama"
    with pytest.raises(UnsupportedArchitectureError, match="text part of type 'llama'"):
        load(changed(path, config))
    del config["text_config"]
    with pytest.raises(UnsupportedArchitectureError, match=r"not supported in config\.json alone"):
        load(changed(path, config))
