"""The tiny models as GGUF files: names, row order and metadata as llama.cpp's converter writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from tiny_models import NORMS_FROM_ZERO
from transformers import PreTrainedModel

# transformers' model type -> architecture, where the names differ.
_ARCHITECTURES = {
    "mistral": "llama",
    "ministral3": "mistral3",
    "gemma3_text": "gemma3",
    "olmo3": "olmo2",
    "cohere": "command-r",
}
# Those that llama.cpp's converter reorders query and key rows for, so that rotary pairs are neighbours.
_INTERLEAVED = ("llama", "mistral3", "smollm3", "granite", "olmo", "deci")
# Those whose files do not state the size of a head, and those that state the size of the vocabulary.
_NO_HEAD_SIZE = ("phi3", "granite", "command-r", "starcoder2", "apertus", "olmo")
_VOCABULARY = ("llama", "mistral3", "smollm3", "granite", "cohere2", "apertus", "deci")
_XIELU = ("alpha_p", "alpha_n", "beta", "eps")


def architecture_of(model: PreTrainedModel) -> str:
    """What a GGUF file of the model calls itself."""
    config, kind = model.config, model.config.model_type
    if hasattr(config, "block_configs") or hasattr(config, "num_key_value_heads_per_layer"):
        return "deci"
    return _ARCHITECTURES.get(kind, kind)


def write_gguf(
    model: PreTrainedModel, path: Path, kind: gguf.GGMLQuantizationType, architecture: str | None = None
) -> dict[str, torch.Tensor]:
    """Write `model` with its matrices as `kind`; the state that the file then holds, for a transformers model.

    `architecture` is the file's, if not the one that the model's type has.
    """
    config, kind_of = model.config, model.config.model_type
    architecture = architecture or architecture_of(model)
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, model, architecture)
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[architecture], config.num_hidden_layers)
    held: dict[str, torch.Tensor] = {}
    for parameter, weight in model.state_dict().items():
        if parameter == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = parameter.rpartition(".")
        if suffix in _XIELU:  # it stands in the metadata
            held[parameter] = weight
            continue
        values = weight.numpy()
        if architecture in _INTERLEAVED and stem.endswith(("q_proj", "k_proj")):
            values = _pairs_from_halves(values, len(values) // config.head_dim)
        name = names.get_name(stem)
        assert name is not None, parameter
        offset = np.float32(kind_of in NORMS_FROM_ZERO and parameter.endswith("norm.weight"))
        plain = values.ndim < 2 or name.endswith("_norm")
        encoding = gguf.GGMLQuantizationType.F32 if plain else kind
        data = gguf.quantize(values + offset, encoding)
        writer.add_tensor(f"{name}.{suffix}", data, raw_dtype=encoding)
        # Quantisation goes row by row, so it commutes with the permutation: hold it in transformers' order.
        rounded = gguf.dequantize(gguf.quantize(weight.numpy() + offset, encoding), encoding) - offset
        held[parameter] = torch.from_numpy(np.array(rounded, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def _write_metadata(writer: gguf.GGUFWriter, model: PreTrainedModel, architecture: str) -> None:
    config = model.config
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    _write_widths(writer, model)
    _write_eps(writer, config)
    writer.add_rope_freq_base(rope["rope_theta"])
    if architecture not in _NO_HEAD_SIZE:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if architecture in _VOCABULARY:
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
    _write_of_architecture(writer, config, architecture)
    _write_of_cohere_and_apertus(writer, model, architecture)
    _write_rope_scaling(writer, config, rope, architecture)


def _write_widths(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    """Heads, KV heads and feed-forward width: one number each, or one a layer where they differ."""
    config = model.config
    if hasattr(config, "block_configs"):
        size = config.head_dim
        parts = [(layer.self_attn, layer.mlp) for layer in model.model.layers]
        products = [hasattr(attention, "linear_attn") for attention, _ in parts]
        queries, keys = (
            [getattr(attention, name).out_features // size if hasattr(attention, name) else 0 for attention, _ in parts]
            for name in ("q_proj", "k_proj")
        )
        whole = config.num_attention_heads
        writer.add_head_count([whole if product else own for product, own in zip(products, queries, strict=True)])
        writer.add_head_count_kv(keys)
        writer.add_feed_forward_length([mlp.up_proj.out_features if hasattr(mlp, "up_proj") else 0 for _, mlp in parts])
        return
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads_per_layer", config.num_key_value_heads))
    writer.add_feed_forward_length(config.intermediate_size)


def _write_eps(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.model_type in ("cohere", "cohere2"):
        writer.add_layer_norm_eps(config.layer_norm_eps)
    elif config.model_type == "starcoder2":
        writer.add_layer_norm_eps(config.norm_epsilon)
    elif config.model_type == "olmo":
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _write_of_architecture(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    """What only some architectures have."""
    if architecture in ("gemma2", "gemma3", "cohere2"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)
    if architecture in ("phi3", "glm4"):
        writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))
    if architecture == "olmo2" and hasattr(config, "sliding_window"):
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if architecture == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(config.rope_parameters["mscale_all_dim"])
        writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])
    if architecture == "olmo" and config.clip_qkv is not None:
        writer.add_clamp_kqv(config.clip_qkv)


def _write_of_cohere_and_apertus(writer: gguf.GGUFWriter, model: PreTrainedModel, architecture: str) -> None:
    if architecture in ("command-r", "cohere2"):
        writer.add_logit_scale(model.config.logit_scale)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if architecture == "apertus":
        state, count = model.state_dict(), model.config.num_hidden_layers
        for name in _XIELU:
            values = [state[f"model.layers.{index}.mlp.act_fn.{name}"].item() for index in range(count)]
            getattr(writer, f"add_xielu_{name}")(values)


def _write_rope_scaling(writer: gguf.GGUFWriter, config: Any, rope: Mapping[str, Any], architecture: str) -> None:
    original = rope.get("original_max_position_embeddings", 0)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(rope, config.head_dim))
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(original)
        if rope.get("beta_fast"):
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        if rope.get("beta_slow"):
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if architecture == "olmo2":
            writer.add_rope_scaling_attn_factors(rope["attention_factor"])
    if architecture == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if rope["rope_type"] == "longrope":
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], dtype=np.float32))


def _llama3_divisors(rope: Mapping[str, float], dim: int) -> npt.NDArray[np.float32]:
    """What llama.cpp's converter divides frequencies by, from the wavelengths that Llama 3.1 names."""
    original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    divisors = []
    for index in range(dim // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * index / dim)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    assert len(set(divisors)) > 3, "the test wants all three ranges"
    return np.array(divisors, dtype=np.float32)


def _pairs_from_halves(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
