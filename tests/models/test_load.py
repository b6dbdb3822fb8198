"""What `load` refuses, and what it says then. The models are llamas of one layer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from poot_executor.ops import RotarySpec
from poot_models import load
from poot_models.blocks import LongRotary
from poot_models.errors import CheckpointFormatError, ModelError, TensorMissingError, UnsupportedArchitectureError

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
LAYER = "model.layers.0."
NO_GATE = {f"{LAYER}mlp.{part}_proj": None for part in ("gate", "up")}
FUSED = f"{LAYER}self_attn.qkv_proj"
SHAPES = {
    "model.embed_tokens": (48, 32),
    "model.norm": (32,),
    "lm_head": (48, 32),
    f"{LAYER}input_layernorm": (32,),
    f"{LAYER}post_attention_layernorm": (32,),
    f"{LAYER}self_attn.q_proj": (32, 32),
    f"{LAYER}self_attn.k_proj": (16, 32),
    f"{LAYER}self_attn.v_proj": (16, 32),
    f"{LAYER}self_attn.o_proj": (32, 32),
    f"{LAYER}mlp.gate_proj": (64, 32),
    f"{LAYER}mlp.up_proj": (64, 32),
    f"{LAYER}mlp.down_proj": (32, 64),
}

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A directory with the configuration and the shapes, changed as asked; a shape of None leaves the tensor out."""

    def write(config: dict[str, Any] | None = None, shapes: dict[str, tuple[int, ...] | None] | None = None) -> Path:
        wanted = {**SHAPES, **(shapes or {})}
        tensors = {f"{name}.weight": torch.zeros(shape) for name, shape in wanted.items() if shape is not None}
        save_file(tensors, tmp_path / "model.safetensors")
        settings = {key: value for key, value in {**CONFIG, **(config or {})}.items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        return tmp_path

    return write


def test_a_sound_model_loads(make: Make) -> None:
    model = load(make(shapes={"extra": (3,)}))
    assert (model.vocab_size, model.hidden_size, model.max_positions) == (48, 32, 128)
    assert model.ignored == ("extra.weight",)
    assert [group.name for group in model.groups] == ["full"]


def test_a_window_makes_a_group_of_its_own(make: Make) -> None:
    (group,) = load(make({"architectures": ["MistralForCausalLM"], "sliding_window": 16})).groups
    assert group.name == "window(16)"
    # The window and a chunk of 8, in blocks of 4, and one block more for where they begin; never more than the row.
    assert group.blocks_per_row(1000, 4, 8) == 7
    assert group.blocks_per_row(12, 4, 8) == 3


def test_a_window_that_no_position_leaves_is_none(make: Make) -> None:
    (group,) = load(make({"architectures": ["MistralForCausalLM"], "sliding_window": 128})).groups
    assert (group.name, group.window) == ("full", None)


def test_the_length_of_rows_picks_the_frequencies_of_longrope(make: Make) -> None:
    factors = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = load(make({"rope_scaling": factors, "original_max_position_embeddings": 32})).config
    rotary = config.layers[0].rotary
    assert isinstance(rotary, LongRotary)
    assert rotary.at(32) == rotary.short
    assert rotary.at(33) == rotary.long
    # The ratio of the lengths is 4: sqrt(1 + ln 4 / ln 32).
    assert rotary.short.magnitude == rotary.long.magnitude == pytest.approx(1.18322, abs=1e-5)
    assert rotary.long.inverse_frequencies[0] == 0.5


def test_fused_tensors_are_views_of_their_file(make: Make) -> None:
    fused = {FUSED: (64, 32), f"{LAYER}mlp.gate_up_proj": (128, 32)}
    parts = {f"{LAYER}self_attn.{part}_proj": None for part in "qkv"}
    model = load(make({"architectures": ["Phi3ForCausalLM"]}, fused | parts | NO_GATE))
    assert model.ignored == ()
    shapes = {name: model.weights[f"blk.0.{name}.weight"].shape for name in ("attn_q", "attn_k", "attn_v", "ffn_gate")}
    assert shapes == {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "ffn_gate": (64, 32)}
    q, k = (model.weights[f"blk.0.attn_{name}.weight"].data for name in "qk")
    assert k.ctypes.data == q.ctypes.data + 32 * 32 * 4


def test_half_of_a_head_is_rotated_where_glm4_does_not_say(make: Make) -> None:
    norms = {f"{LAYER}post_{part}_layernorm": (32,) for part in ("self_attn", "mlp")}
    path = make(
        {"architectures": ["Glm4ForCausalLM"], "head_dim": 16, "attention_bias": False},
        norms | {f"{LAYER}mlp.gate_up_proj": (128, 32)} | NO_GATE,
    )
    rotary = load(path).config.layers[0].rotary
    assert isinstance(rotary, RotarySpec)
    assert rotary.inverse_frequencies == pytest.approx((1.0, 0.1, 0.01, 0.001))


def test_positions_end_where_queries_would_grow(make: Make) -> None:
    rules = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.1}
    path = make({"architectures": ["Ministral3ForCausalLM"], "head_dim": 16, "rope_parameters": rules})
    assert load(path).max_positions == 32


def test_an_untied_head_must_be_there(make: Make) -> None:
    with pytest.raises(TensorMissingError, match=r"output\.weight"):
        load(make(shapes={"lm_head": None}))
    assert load(make({"tie_word_embeddings": True}, {"lm_head": None})).config.tied


@pytest.mark.parametrize(
    ("config", "shapes", "error", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, {}, UnsupportedArchitectureError, "LlamaForCausalLM"),
        ({"architectures": None}, {}, CheckpointFormatError, "architectures"),
        ({"architectures": ["A", "B"]}, {}, CheckpointFormatError, "one architecture"),
        ({"hidden_size": 64}, {}, CheckpointFormatError, "the configuration says"),
        ({"hidden_size": -1}, {}, CheckpointFormatError, "hidden_size"),
        ({"hidden_size": 10**12}, {}, CheckpointFormatError, "hidden_size"),
        ({"hidden_size": "32"}, {}, CheckpointFormatError, "hidden_size"),
        ({"num_hidden_layers": 10**6}, {}, CheckpointFormatError, "num_hidden_layers"),
        ({"num_hidden_layers": 2}, {}, TensorMissingError, r"blk\.1\."),
        ({"num_key_value_heads": 3}, {}, CheckpointFormatError, "k_proj"),
        (
            {"num_attention_heads": 3, "head_dim": 16, "num_key_value_heads": 2},
            {
                f"{LAYER}self_attn.{p}_proj": s
                for p, s in {"q": (48, 32), "k": (32, 32), "v": (32, 32), "o": (32, 48)}.items()
            },
            CheckpointFormatError,
            "3 heads over 2 KV heads",
        ),
        ({"rms_norm_eps": 0}, {}, CheckpointFormatError, "rms_norm_eps"),
        ({"rms_norm_eps": None}, {}, CheckpointFormatError, "does not say rms_norm_eps"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 4}}, {}, UnsupportedArchitectureError, "ntk"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0}}, {}, CheckpointFormatError, "factor"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0.5}},
            {},
            CheckpointFormatError,
            "0 positions",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}, "rope_theta": 1}, {}, CheckpointFormatError, "above 1"),
        ({"rope_scaling": {"rope_type": "longrope"}}, {}, CheckpointFormatError, "list of 8 numbers"),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}},
            {},
            CheckpointFormatError,
            "long_factor must be a list of 8 numbers",
        ),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 7 + [0], "long_factor": [1.0] * 8}},
            {},
            CheckpointFormatError,
            "short_factor must hold numbers above 0",
        ),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 16, "layer_types": ["full"]},
            {},
            CheckpointFormatError,
            "layer_types",
        ),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 16, "layer_types": []},
            {},
            CheckpointFormatError,
            "list of 1 names",
        ),
        ({"architectures": ["Phi3ForCausalLM"]}, {FUSED: (63, 32)}, CheckpointFormatError, "64 rows"),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 16,
                "max_window_layers": "1",
            },
            {},
            CheckpointFormatError,
            "max_window_layers",
        ),
        ({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [2]}, {}, CheckpointFormatError, "0 or 1"),
        ({"rope_scaling": {"rope_type": "linear"}}, {}, CheckpointFormatError, "factor"),
        ({"rope_scaling": 3}, {}, CheckpointFormatError, "rope_scaling"),
        ({"hidden_act": "gelu"}, {}, CheckpointFormatError, "silu"),
        ({"head_dim": 15}, {}, CheckpointFormatError, "even"),
        ({"tie_word_embeddings": "yes"}, {}, CheckpointFormatError, "true or false"),
        ({}, {"model.norm": None}, TensorMissingError, r"output_norm\.weight"),
        ({}, {f"{LAYER}mlp.up_proj": (64, 16)}, CheckpointFormatError, r"\(64, 16\)"),
        ({}, {"model.embed_tokens": None}, CheckpointFormatError, "embedding table"),
    ],
    ids=str,
)
def test_refusals(make: Make, config: Any, shapes: Any, error: type[ModelError], words: str) -> None:
    with pytest.raises(error, match=words):
        load(make(config, shapes))
