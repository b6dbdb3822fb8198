"""Tiny random models of every family, by transformers: what poot's logits are held against, in tests and benchmarks."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tiny_uneven import make_uneven
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedModel,
)

SIZES = {
    "vocab_size": 203,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_GEMMA = {"num_hidden_layers": 6, "sliding_window": 8, "query_pre_attn_scalar": 16, "tie_word_embeddings": True}


_GEMMA2 = {
    **_GEMMA,
    "num_hidden_layers": 4,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 5.0,
}
_SMOL = {"num_hidden_layers": 5, "rope_theta": 2e6}
_MINISTRAL3 = {**_YARN, "rope_theta": 1e6, "beta_fast": 8.0, "mscale": 1.0, "mscale_all_dim": 1.0}
_OLMO3 = {"num_hidden_layers": 4, "sliding_window": 8}
_OLMO3_YARN = {**_YARN, "rope_theta": 500.0, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.3}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.4,
    "logits_scaling": 2.0,
}


def _longrope(columns: int, original: int) -> dict[str, Any]:
    short, long = ([first + 0.25 * index for index in range(columns // 2)] for first in (1.0, 2.0))
    factors = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    return {"rope_scaling": factors, "original_max_position_embeddings": original}


def _linear(factor: float) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": factor}


def _block(group: int | None, factor: float | None, *, product: bool = False) -> dict[str, Any]:
    """A layer of block_configs: query heads a KV head, feed-forward factor; `product` in place of attention."""
    attention = {"n_heads_in_group": group, "no_op": group is None and not product, "replace_with_linear": product}
    return {"attention": attention, "ffn": {"ffn_mult": factor, "no_op": factor is None, "replace_with_linear": False}}


_PUZZLE = [
    _block(None, 1.0),
    _block(2, 7.0),
    _block(None, 1.0, product=True),
    _block(None, None),
    _block(4, 1.0),
    _block(1, None),
]
# name -> (transformers' model type, settings beside SIZES)
TINY: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama untied, llama3 rope": ("llama", {"rope_theta": 500.0, "rope_scaling": _LLAMA3}),
    "llama wide heads, linear rope": (
        "llama",
        {"head_dim": 32, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None, "rope_theta": 1e6}),
    "mistral window": ("mistral", {"sliding_window": 8}),
    "llama yarn rope": ("llama", {"rope_theta": 500.0, "rope_scaling": _YARN}),
    "llama dynamic rope": ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
    "ministral": (
        "ministral",
        {"num_hidden_layers": 3, "sliding_window": 8, "layer_types": ["full_attention", *["sliding_attention"] * 2]},
    ),
    "ministral3": ("ministral3", {"rope_parameters": {**_MINISTRAL3, "llama_4_scaling_beta": 0.0}}),
    "ministral3 of 96 positions": (
        "ministral3",
        {"rope_parameters": {**_MINISTRAL3, "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 96}},
    ),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "qwen2 yarn rope": ("qwen2", {"rope_theta": 1e4, "rope_scaling": {**_YARN, "beta_fast": 8.0, "beta_slow": 2.0}}),
    "qwen2 window": (
        "qwen2",
        {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "qwen3 wide heads": ("qwen3", {"head_dim": 32, "num_key_value_heads": 1}),
    "gemma2": ("gemma2", _GEMMA2),
    "gemma2 own scale": ("gemma2", {**_GEMMA2, "query_pre_attn_scalar": 24, "attn_logit_softcapping": None}),
    "gemma3": ("gemma3_text", _GEMMA),
    "gemma3 linear rope": ("gemma3_text", {**_GEMMA, "rope_scaling": _linear(8.0)}),
    "gemma3 own layers and scale": (
        "gemma3_text",
        {
            **_GEMMA,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 5.0,
        },
    ),
    "phi3": ("phi3", {}),
    "phi3 window": ("phi3", {"sliding_window": 8, "tie_word_embeddings": True}),
    "phi3 window over all positions": ("phi3", {"sliding_window": 256}),
    "phi3 partial rotary, short longrope": ("phi3", {"partial_rotary_factor": 0.75, **_longrope(12, 100)}),
    "phi3 long longrope": ("phi3", _longrope(16, 24)),
    "smollm3": ("smollm3", _SMOL),
    "smollm3 own layers, untied": (
        "smollm3",
        {**_SMOL, "tie_word_embeddings": False, "no_rope_layers": [0, 1, 1, 0, 1]},
    ),
    "smollm3 window": ("smollm3", {**_SMOL, "use_sliding_window": True, "sliding_window": 8}),
    "olmo2": ("olmo2", {"rope_theta": 500000.0}),
    "olmo2 one kv head": ("olmo2", {"num_key_value_heads": 1, "attention_bias": True}),
    "olmo3": ("olmo3", _OLMO3),
    "olmo3 yarn rope": (
        "olmo3",
        {**_OLMO3, "rope_parameters": {"full_attention": _OLMO3_YARN, "sliding_attention": {"rope_theta": 500.0}}},
    ),
    "granite": ("granite", {**_GRANITE, "tie_word_embeddings": True}),
    "granite biases": ("granite", {**_GRANITE, "attention_bias": True, "mlp_bias": True}),
    "seed_oss": ("seed_oss", {"head_dim": 32}),
    "seed_oss all biases": ("seed_oss", {"attention_out_bias": True, "mlp_bias": True}),
    "glm4": ("glm4", {}),
    "glm4 wide heads, no biases": ("glm4", {"head_dim": 32, "attention_bias": False, "partial_rotary_factor": 0.25}),
    "command-r": ("cohere", {"logit_scale": 0.25}),
    "command-r normed heads, biases": ("cohere", {"logit_scale": 0.5, "use_qk_norm": True, "attention_bias": True}),
    "command-r untied, one kv head": (
        "cohere",
        {"logit_scale": 0.5, "tie_word_embeddings": False, "num_key_value_heads": 1},
    ),
    "cohere2": ("cohere2", {"num_hidden_layers": 5, "sliding_window": 8, "logit_scale": 0.25}),
    "cohere2 own layers, biases": (
        "cohere2",
        {
            "num_hidden_layers": 3,
            "sliding_window": 8,
            "logit_scale": 0.5,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "attention_bias": True,
        },
    ),
    "starcoder2": ("starcoder2", {"rope_theta": 1e5}),
    "starcoder2 no biases": ("starcoder2", {"use_bias": False}),
    "starcoder2 window": ("starcoder2", {"num_hidden_layers": 3, "sliding_window": 8}),
    "starcoder2 erf, untied": ("starcoder2", {"hidden_act": "gelu", "tie_word_embeddings": False}),
    "apertus": ("apertus", {"num_hidden_layers": 3, "rope_theta": 500.0, "rope_scaling": _LLAMA3}),
    "apertus biases, tied": (
        "apertus",
        {"attention_bias": True, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e4}},
    ),
    "olmo": ("olmo", {"num_key_value_heads": 4}),
    "olmo clipped, tied": ("olmo", {"clip_qkv": 0.75, "tie_word_embeddings": True}),
    "deci": ("deci", {"block_configs": _PUZZLE, "rope_theta": 500.0, "rope_scaling": _LLAMA3}),
    "deci kv heads by layer": (
        "deci",
        {"num_hidden_layers": 3, "num_key_value_heads_per_layer": [1, 4, 2], "rope_scaling": _linear(4.0)},
    ),
}
# One of each architecture that transformers has, with the settings whose absence would show.
ONE_EACH = (
    "llama biases",
    "mistral window",
    "ministral",
    "ministral3",
    "qwen2 window",
    "qwen3 wide heads",
    "gemma2",
    "gemma3",
    "phi3 partial rotary, short longrope",
    "smollm3 window",
    "olmo clipped, tied",
    "olmo2 one kv head",
    "olmo3 yarn rope",
    "granite biases",
    "seed_oss all biases",
    "glm4 wide heads, no biases",
    "command-r normed heads, biases",
    "cohere2 own layers, biases",
    "starcoder2 window",
    "apertus",
)
# What llama.cpp's files cannot say: patterns of windows other than its own, Mistral with a window, Qwen2 or StarCoder 2
# with one, an untied Command R, biases of Cohere 2, an activation.
NOT_IN_GGUF = (
    "mistral window",
    "ministral",
    "qwen2 window",
    "gemma2 own scale",
    "gemma3 own layers and scale",
    "smollm3 own layers, untied",
    "smollm3 window",
    "command-r untied, one kv head",
    "cohere2 own layers, biases",
    "starcoder2 window",
    "starcoder2 erf, untied",
)
IN_GGUF = tuple(name for name in TINY if name not in NOT_IN_GGUF)
# transformers picks the frequencies by each prompt's length; here rows that may be long always have the long ones.
ALWAYS_LONG = ("phi3 long longrope",)
# Families whose norms' weights are stored as their distance from one.
NORMS_FROM_ZERO = ("gemma2", "gemma3_text")


@functools.cache
def build(name: str) -> PreTrainedModel:
    """A model whose every weight matters: products of unit variance, norm weights off one."""
    kind, settings = TINY[name]
    torch.manual_seed(20)
    config = AutoConfig.for_model("llama" if kind == "deci" else kind, **copy.deepcopy(SIZES | settings))
    # Of transformers' ways to attend only this one caps scores.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    if kind == "deci":
        make_uneven(model)
    with torch.no_grad():
        _randomise(model, from_zero=kind in NORMS_FROM_ZERO)
    return model.eval()


def _randomise(model: nn.Module, *, from_zero: bool = False) -> None:
    for parameter, weight in model.named_parameters():
        if parameter.endswith("norm.weight"):
            weight.uniform_(-0.5, 0.5).add_(0.0 if from_zero else 1.0)
        else:
            weight.normal_(0.0, weight.shape[-1] ** -0.5)
    for parameter, value in model.named_buffers():
        if parameter.endswith("act_fn.beta"):
            value.uniform_(0.25, 0.75)
        if parameter.endswith("act_fn.eps"):
            value.uniform_(-0.01, -0.001)


def save(model: PreTrainedModel, path: Path, **keywords: Any) -> None:
    """As a safetensors directory; `keywords` are those of save_pretrained."""
    model.save_pretrained(path, **keywords)
    config = json.loads((path / "config.json").read_text())
    stated = [name for name in ("block_configs", "num_key_value_heads_per_layer") if name in config]
    if stated:
        config |= {"architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "num_key_value_heads": None}
        if "block_configs" in stated:
            config["intermediate_size"] = None
        (path / "config.json").write_text(json.dumps(config))


def holding(model: PreTrainedModel, state: Mapping[str, torch.Tensor]) -> PreTrainedModel:
    """A copy of `model` with these weights; what a tied head has is not among them."""
    held = copy.deepcopy(model)
    missing, unknown = held.load_state_dict(state, strict=False)
    if unknown or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"weights {unknown} too many, {missing} too few")
    return held.eval()


def with_images(name: str, tied: bool) -> PreTrainedModel:
    """A Mistral 3 with the Mistral of that name as its text part; `tied` is its head."""
    text = {**build(name).config.to_dict(), "tie_word_embeddings": tied}
    vision = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14}
    config = Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    model = Mistral3ForConditionalGeneration(config)
    with torch.no_grad():
        _randomise(model)
    return model.eval()
