"""What a family is, and the table that finds it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poot_models.blocks.config import DecoderConfig
from poot_models.blocks.decoder import LayerFunction
from poot_models.errors import UnsupportedArchitectureError
from poot_models.families.fields import Fields

# Architecture as a checkpoint names it -> module. GGUF names are lower case, config.json's are class names.
_MODULES: dict[str, str] = {
    "llama": "llama",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MinistralForCausalLM": "llama",
    "mistral3": "ministral3",
    "Ministral3ForCausalLM": "ministral3",
    "Mistral3ForConditionalGeneration": "ministral3",
    "qwen2": "qwen2",
    "Qwen2ForCausalLM": "qwen2",
    "qwen3": "qwen3",
    "Qwen3ForCausalLM": "qwen3",
    "gemma2": "gemma2",
    "Gemma2ForCausalLM": "gemma2",
    "gemma3": "gemma3",
    "Gemma3ForCausalLM": "gemma3",
    "phi3": "phi3",
    "Phi3ForCausalLM": "phi3",
    "smollm3": "smollm3",
    "SmolLM3ForCausalLM": "smollm3",
    "olmo": "olmo",
    "OlmoForCausalLM": "olmo",
    "olmo2": "olmo2",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "granite": "granite",
    "GraniteForCausalLM": "granite",
    "seed_oss": "seed_oss",
    "SeedOssForCausalLM": "seed_oss",
    "glm4": "glm4",
    "Glm4ForCausalLM": "glm4",
    "command-r": "cohere",
    "CohereForCausalLM": "cohere",
    "cohere2": "cohere2",
    "Cohere2ForCausalLM": "cohere2",
    "starcoder2": "starcoder2",
    "Starcoder2ForCausalLM": "starcoder2",
    "apertus": "apertus",
    "ApertusForCausalLM": "apertus",
    "deci": "deci",
    "DeciLMForCausalLM": "deci",
}

# Model types of the text part of a model for images -> architecture of that part alone.
_TEXT_PARTS: dict[str, str] = {
    "mistral": "MistralForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
}

# GGUF tensor name -> name in a transformers checkpoint, for what all these families share; {} is the layer.
DECODER_TENSORS: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class Family:
    """A decoder family: its configuration from a checkpoint's fields, its layer, its tensors' names."""

    name: str
    configure: Callable[[Fields], DecoderConfig]
    layer: LayerFunction
    tensors: Mapping[str, str]


def find_family(architecture: str) -> Family:
    """Raises UnsupportedArchitectureError naming those that are known."""
    module = _MODULES.get(architecture)
    if module is None:
        raise UnsupportedArchitectureError(
            f"architecture {architecture[:80]!r} is not supported; supported are {', '.join(known_architectures())}"
        )
    family: Family = importlib.import_module(f"poot_models.families.{module}").FAMILY
    return family


def text_architecture(model_type: object) -> str:
    """The architecture of a text part; without a type it is Mistral's, as in transformers."""
    known = _TEXT_PARTS.get(model_type) if isinstance(model_type, str) else None
    if model_type is not None and known is None:
        raise UnsupportedArchitectureError(
            f"a text part of type {model_type!r:.80} is not supported; supported are {', '.join(_TEXT_PARTS)}"
        )
    return known or "MistralForCausalLM"


def known_architectures() -> tuple[str, ...]:
    return tuple(_MODULES)
