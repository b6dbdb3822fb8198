"""Tiny random models of every family, saved by transformers and written as GGUF files in llama.cpp's manner."""

import copy
import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedModel,
)

_SIZES = {
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


# name -> (transformers' model type, settings beside _SIZES)
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
}
# What llama.cpp does not know: patterns of windows other than its own, Mistral with a window, Qwen2 with one.
_NOT_IN_GGUF = (
    "mistral window",
    "ministral",
    "qwen2 window",
    "gemma2 own scale",
    "gemma3 own layers and scale",
    "smollm3 own layers, untied",
    "smollm3 window",
)
IN_GGUF = tuple(name for name in TINY if name not in _NOT_IN_GGUF)
# transformers picks the frequencies by each prompt's length; here rows that may be long always have the long ones.
ALWAYS_LONG = ("phi3 long longrope",)
_ARCHITECTURES = {
    "mistral": "llama",
    "ministral3": "mistral3",
    "gemma3_text": "gemma3",
    "olmo3": "olmo2",
}
# Those that llama.cpp's converter reorders query and key rows for, and those whose norms it adds one to.
_INTERLEAVED = ("llama", "mistral3", "smollm3", "granite")
_NORMS_FROM_ZERO = ("gemma2", "gemma3_text")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take `tiny`, `tiny_gguf` or `tiny_short` (whose prompts may be short) run for every name."""
    short = tuple(name for name in TINY if name not in ALWAYS_LONG)
    for argument, names in (("tiny", tuple(TINY)), ("tiny_gguf", IN_GGUF), ("tiny_short", short)):
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, names)


@functools.cache
def build(name: str) -> PreTrainedModel:
    """A model whose every weight matters: products of unit variance, norm weights off one."""
    kind, settings = TINY[name]
    torch.manual_seed(20)
    config = AutoConfig.for_model(kind, **copy.deepcopy(_SIZES | settings))
    # Of transformers' ways to attend only this one caps scores.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if parameter.endswith("norm.weight"):
                weight.uniform_(-0.5, 0.5).add_(0.0 if kind in _NORMS_FROM_ZERO else 1.0)
            else:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
    return model.eval()


def write_gguf(model: PreTrainedModel, path: Path, kind: gguf.GGMLQuantizationType) -> dict[str, torch.Tensor]:
    """Write `model` with its matrices as `kind`; the state that the file then holds, for a transformers model."""
    config, kind_of = model.config, model.config.model_type
    architecture = _ARCHITECTURES.get(kind_of, kind_of)
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, config, architecture)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    held: dict[str, torch.Tensor] = {}
    for parameter, weight in model.state_dict().items():
        if parameter == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.numpy()
        heads = _permuted_heads(parameter, config) if architecture in _INTERLEAVED else 0
        if heads:
            values = _pairs_from_halves(values, heads)
        offset = np.float32(kind_of in _NORMS_FROM_ZERO and parameter.endswith("norm.weight"))
        encoding = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quantize(values + offset, encoding)
        stem, _, suffix = parameter.rpartition(".")
        name = names.get_name(stem)
        assert name is not None, parameter
        writer.add_tensor(f"{name}.{suffix}", data, raw_dtype=encoding)
        # Quantisation goes row by row, so it commutes with the permutation: hold it in transformers' order.
        rounded = gguf.dequantize(gguf.quantize(weight.numpy() + offset, encoding), encoding) - offset
        held[parameter] = torch.from_numpy(np.array(rounded, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def _write_metadata(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    if architecture not in ("phi3", "granite"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if architecture in _INTERLEAVED:
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
    _write_of_architecture(writer, config, architecture)
    _write_rope_scaling(writer, config, rope, architecture)


def _write_of_architecture(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    """What only some architectures have."""
    if architecture in ("gemma2", "gemma3"):
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


def _permuted_heads(parameter: str, config: Any) -> int:
    if "q_proj" in parameter:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if "k_proj" in parameter else 0


def _pairs_from_halves(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, PreTrainedModel]]:
    """(name, keywords of save_pretrained) -> (directory, model)."""

    def save(name: str, **keywords: Any) -> tuple[Path, PreTrainedModel]:
        model, path = build(name), tmp_path_factory.mktemp("tiny")
        model.save_pretrained(path, **keywords)
        return path, model

    return save


@pytest.fixture(scope="session")
def with_images(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], tuple[Path, PreTrainedModel]]:
    """(name of a Mistral, whether its head is tied) -> (directory, model) of a Mistral 3 with that as its text part."""

    def save(name: str, tied: bool) -> tuple[Path, PreTrainedModel]:
        text = {**build(name).config.to_dict(), "tie_word_embeddings": tied}
        vision = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        vision |= {"num_attention_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14}
        config = Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)
        model, path = Mistral3ForConditionalGeneration(config), tmp_path_factory.mktemp("tiny")
        with torch.no_grad():
            for parameter, weight in model.named_parameters():
                if not parameter.endswith("norm.weight"):
                    weight.normal_(0.0, weight.shape[-1] ** -0.5)
        model.save_pretrained(path)
        return path, model.eval()

    return save


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, PreTrainedModel]]:
    """(name, ggml type) -> (GGUF file, a transformers model of the weights that the file holds)."""

    def write(name: str, kind: str) -> tuple[Path, PreTrainedModel]:
        model, path = build(name), tmp_path_factory.mktemp("tiny") / "tiny.gguf"
        state = write_gguf(model, path, gguf.GGMLQuantizationType[kind])
        keywords: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
        held = type(model).from_pretrained(None, config=model.config, state_dict=state, **keywords)
        return path, held.eval()

    return write


@pytest.fixture(scope="session")
def old_config() -> Callable[[Path], None]:
    """Rewrite a directory's config.json as transformers 4 wrote it: rope_theta and rope_scaling at its top."""

    def rewrite(path: Path) -> None:
        config = json.loads((path / "config.json").read_text())
        rules = config.pop("rope_parameters")
        if "full_attention" in rules:
            config["rope_local_base_freq"] = rules["sliding_attention"]["rope_theta"]
            config["sliding_window_pattern"] = config.pop("_sliding_window_pattern", 6)
            rules = rules["full_attention"]
            del config["layer_types"]
        if config["model_type"] in ("qwen2", "gemma2"):
            del config["layer_types"]
        config["rope_theta"] = rules.pop("rope_theta")
        if "partial_rotary_factor" in rules:
            config["partial_rotary_factor"] = rules.pop("partial_rotary_factor")
        config["rope_scaling"] = rules if rules["rope_type"] != "default" else None
        (path / "config.json").write_text(json.dumps(config))

    return rewrite
