"""What `load` refuses, and what it says then. The models are llamas of one layer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from poot_models import load
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
    (group,) = load(make({"sliding_window": 16})).groups
    assert group.name == "window(16)"
    # The window and a chunk of 8, in blocks of 4, and one block more for where they begin; never more than the row.
    assert group.blocks_per_row(1000, 4, 8) == 7
    assert group.blocks_per_row(12, 4, 8) == 3


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
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, {}, UnsupportedArchitectureError, "yarn"),
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
