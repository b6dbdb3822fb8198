"""Tiny random models of every family, saved by transformers and written as GGUF files in llama.cpp's manner."""

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
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

_SIZES = {
    "vocab_size": 203,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_GEMMA = {"num_hidden_layers": 6, "sliding_window": 8, "query_pre_attn_scalar": 16, "tie_word_embeddings": True}


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
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "qwen3 wide heads": ("qwen3", {"head_dim": 32, "num_key_value_heads": 1}),
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
}
# llama.cpp has one pattern of windows for Gemma 3, and knows Mistral as a llama without a window.
IN_GGUF = tuple(name for name in TINY if name not in ("mistral window", "gemma3 own layers and scale"))
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen3": "qwen3", "gemma3_text": "gemma3"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take `tiny` or `tiny_gguf` run for every name."""
    for argument, names in (("tiny", tuple(TINY)), ("tiny_gguf", IN_GGUF)):
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, names)


@functools.cache
def build(name: str) -> PreTrainedModel:
    """A model whose every weight matters: products of unit variance, norm weights off one."""
    kind, settings = TINY[name]
    torch.manual_seed(20)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(_SIZES | settings)), dtype=torch.float32)
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if parameter.endswith("norm.weight"):
                weight.uniform_(-0.5, 0.5).add_(0.0 if kind == "gemma3_text" else 1.0)
            else:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
    return model.eval()


def write_gguf(model: PreTrainedModel, path: Path, kind: gguf.GGMLQuantizationType) -> dict[str, torch.Tensor]:
    """Write `model` with its matrices as `kind`; the state that the file then holds, for a transformers model."""
    config, architecture = model.config, _ARCHITECTURES[model.config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, config, architecture)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    held: dict[str, torch.Tensor] = {}
    for parameter, weight in model.state_dict().items():
        if parameter == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.numpy()
        heads = _permuted_heads(parameter, config) if architecture == "llama" else 0
        if heads:
            values = _pairs_from_halves(values, heads)
        offset = np.float32(architecture == "gemma3" and parameter.endswith("norm.weight"))
        encoding = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quantize(values + offset, encoding)
        stem, _, suffix = parameter.rpartition(".")
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", data, raw_dtype=encoding)
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
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    if architecture == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(rope, config.head_dim))


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
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, PreTrainedModel]]:
    """(name, ggml type) -> (GGUF file, a transformers model of the weights that the file holds)."""

    def write(name: str, kind: str) -> tuple[Path, PreTrainedModel]:
        model, path = build(name), tmp_path_factory.mktemp("tiny") / "tiny.gguf"
        state = write_gguf(model, path, gguf.GGMLQuantizationType[kind])
        held = type(model).from_pretrained(None, config=model.config, state_dict=state, dtype=torch.float32)
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
        config["rope_theta"] = rules.pop("rope_theta")
        config["rope_scaling"] = rules if rules["rope_type"] != "default" else None
        (path / "config.json").write_text(json.dumps(config))

    return rewrite
