"""What families say of a configuration that does not fit them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_executor.encodings import Dense, WeightSource
from poot_models import load
from poot_models.errors import CheckpointFormatError, ModelError, TensorMissingError, UnsupportedArchitectureError
from poot_models.families.fields import Fields
from poot_models.families.starcoder2 import FAMILY


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))
    return path


def block(part: str, **stated: Any) -> Callable[[dict[str, Any]], object]:
    """Change what the second layer's block says of a part."""
    return lambda config: config["block_configs"][1][part].update(stated)


CASES: list[tuple[str, Callable[[dict[str, Any]], object], type[ModelError], str]] = [
    ("command-r", lambda c: c.update(use_qk_norm=True), CheckpointFormatError, "has not blk.0.attn_q_norm.weight"),
    (
        "command-r normed heads, biases",
        lambda c: c.update(use_qk_norm=False),
        CheckpointFormatError,
        "has blk.0.attn_q_norm.weight",
    ),
    ("command-r", lambda c: c.update(layer_norm_eps=0), CheckpointFormatError, "layer_norm_eps"),
    ("starcoder2", lambda c: c.update(hidden_act="relu"), CheckpointFormatError, "hidden_act.*gelu_pytorch_tanh"),
    ("apertus", lambda c: c.update(hidden_act="silu"), CheckpointFormatError, "hidden_act.*xielu"),
    ("apertus", lambda c: c.pop("rope_parameters"), CheckpointFormatError, "rope_parameters or rope_scaling"),
    ("apertus", lambda c: c.update(num_hidden_layers=4), TensorMissingError, r"layers\.3\.mlp\.act_fn\.alpha_p"),
    ("olmo", lambda c: c.update(clip_qkv=-1), CheckpointFormatError, "clip_qkv"),
    ("deci", lambda c: c["block_configs"].pop(), CheckpointFormatError, "list of 6 objects"),
    ("deci", block("attention", n_heads_in_group=3), CheckpointFormatError, r"block_configs\[1\].*divide 4 heads"),
    ("deci", block("attention", n_heads_in_group="2"), CheckpointFormatError, r"\[1\].*n_heads_in_group"),
    ("deci", lambda c: c["block_configs"][1].pop("attention"), CheckpointFormatError, r"\[1\].*n_heads_in_group"),
    ("deci", block("ffn", ffn_mult=-1.0), CheckpointFormatError, r"\[1\].*ffn_mult"),
    ("deci", block("ffn", ffn_mult=1e300), CheckpointFormatError, r"\[1\].*ffn_mult"),
    ("deci", lambda c: c["block_configs"].__setitem__(1, 7), CheckpointFormatError, r"\[1\].*n_heads_in_group"),
    ("deci", block("ffn", replace_with_linear=True), UnsupportedArchitectureError, r"\[1\].*plain product"),
    (
        "deci kv heads by layer",
        lambda c: c.update(num_key_value_heads_per_layer=[1, 2]),
        CheckpointFormatError,
        "num_key_value_heads_per_layer must hold 3 whole numbers from 0",
    ),
    (
        "deci kv heads by layer",
        lambda c: c.update(num_key_value_heads_per_layer=[0, 0, 0]),
        CheckpointFormatError,
        "no layer of the model has attention",
    ),
]


@pytest.mark.parametrize(("name", "change", "error", "words"), CASES)
def test_what_a_configuration_must_say(
    name: str, change: Callable[[dict[str, Any]], object], error: type[ModelError], words: str, saved: Any
) -> None:
    path, _ = saved(name)
    with pytest.raises(error, match=words):
        load(changed(path, change))


def test_command_r_is_as_long_as_model_max_length_says(saved: Any) -> None:
    path, _ = saved("command-r")
    assert load(path).max_positions == 256
    assert load(changed(path, lambda config: config.update(model_max_length=1024))).max_positions == 1024


@pytest.mark.parametrize(("stated", "window"), [(None, 4096), (8, 8), (0, None)])
def test_files_of_starcoder2_have_a_window_unless_they_say_otherwise(stated: int | None, window: int | None) -> None:
    sizes = {"block_count": 2, "embedding_length": 64, "context_length": 16384, "feed_forward_length": 96}
    sizes |= {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_epsilon": 1e-5}
    if stated is not None:
        sizes["attention.sliding_window"] = stated
    table = WeightSource("token_embd.weight", (203, 64), Dense("F32"), np.zeros(203 * 64 * 4, np.uint8))
    fields = Fields(
        "starcoder2", {f"starcoder2.{key}": value for key, value in sizes.items()}, {table.name: table}, True
    )
    assert [layer.window for layer in FAMILY.configure(fields).layers] == [window, window]


@pytest.mark.parametrize("name", ["starcoder2", "apertus"])
def test_a_part_without_a_gate_is_not_taken_for_a_gate_and_more(name: str, saved: Any) -> None:
    """Half of the width that the tensor has would else make it a gate and an up product side by side."""
    path, _ = saved(name)
    with pytest.raises(CheckpointFormatError, match=r"\(96, 64\); the configuration says \(48, 64\)"):
        load(changed(path, lambda config: config.update(intermediate_size=48)))


def heads(value: Any, layers: int = 3, **keywords: Any) -> tuple[int, ...]:
    fields = Fields("llama", {"llama.attention.head_count": value}, {}, gguf=True)
    return fields.per_layer("num_attention_heads", "attention.head_count", layers, **keywords)


def test_a_number_a_layer_is_one_for_all_or_an_array() -> None:
    assert heads(4) == (4, 4, 4)
    assert heads(np.array([4, 2, 8], dtype=np.int32)) == (4, 2, 8)
    assert heads(np.array([4, 0, 8], dtype=np.uint32), low=0) == (4, 0, 8)


@pytest.mark.parametrize(
    "value",
    [
        np.array([4, 2], dtype=np.int32),
        np.array([4, 2, 8, 8], dtype=np.int32),
        np.array([4, 0, 8], dtype=np.int32),
        np.array([4, -1, 8], dtype=np.int32),
        np.array([4.0, 2.0, 8.0], dtype=np.float32),
        np.array([True, True, True]),
        np.array([4, 2, 2**40], dtype=np.int64),
        [4, 2, "8"],
        [],
    ],
    ids=str,
)
def test_other_arrays_of_numbers_a_layer_are_refused(value: Any) -> None:
    with pytest.raises(CheckpointFormatError, match=r"llama\.attention\.head_count must hold 3 whole numbers from 1"):
        heads(value)


def test_a_family_of_even_layers_refuses_an_array() -> None:
    fields = Fields("qwen3", {"qwen3.attention.head_count": np.array([4, 2])}, {}, gguf=True)
    with pytest.raises(CheckpointFormatError, match=r"qwen3\.attention\.head_count must be a whole number"):
        fields.integer("num_attention_heads", "attention.head_count")


@pytest.mark.parametrize("value", [None, "0.5", np.array([0.5]), np.array([0.5, np.nan, 0.5])], ids=str)
def test_parameters_of_activations_must_be_numbers_a_layer(value: Any) -> None:
    metadata = {} if value is None else {"xielu.beta": value}
    with pytest.raises(CheckpointFormatError, match=r"xielu\.beta must hold 3 numbers"):
        Fields("apertus", metadata, {}, gguf=True).file_numbers("xielu.beta", 3)
    assert Fields("apertus", {"xielu.beta": 0.5}, {}, gguf=True).file_numbers("xielu.beta", 2) == (0.5, 0.5)
