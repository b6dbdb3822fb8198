"""What transformers (5.24) takes where a config.json is silent, and which products it gives a bias: one entry an
architecture.

`tests/models/parity/families/test_family_reference.py` holds the table to transformers' own configurations. Sizes that
a checkpoint must state have no entry. GGUF files follow other rules: theirs stand in the families.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from poot_models.errors import UnsupportedArchitectureError
from poot_models.families.fields import Fields

_QKV = ("attn_q", "attn_k", "attn_v")
_ATTENTION = (*_QKV, "attn_output")
_FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
_ATTENTION_BIAS = {"attention_bias": _ATTENTION}
_LLAMA_BIASES = {**_ATTENTION_BIAS, "mlp_bias": _FEED_FORWARD}


@dataclass(frozen=True, slots=True)
class Reference:
    """`defaults` are fields of config.json, taken where they are absent, but not where they are null.

    `biases` are the products that have a bias where a field is true, `always` those that have one whatever is stated.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    always: tuple[str, ...] = ()

    def products_with_bias(self, fields: Fields) -> frozenset[str]:
        """Raises CheckpointFormatError for a field that is neither true nor false."""
        stated = (product for name, products in self.biases.items() if fields.flag(name) for product in products)
        return frozenset((*self.always, *stated))


_LLAMA = Reference(biases=_LLAMA_BIASES)
_MISTRAL = Reference({"num_key_value_heads": 8, "sliding_window": 4096})
_QWEN = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {"num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096}
_OLMO = Reference(biases=_ATTENTION_BIAS)

_REFERENCES: Mapping[str, Reference] = {
    "LlamaForCausalLM": _LLAMA,
    "DeciLMForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "MinistralForCausalLM": _MISTRAL,
    "Ministral3ForCausalLM": Reference({"num_key_value_heads": 8, "head_dim": 128}),
    "Qwen2ForCausalLM": Reference(_QWEN, always=_QKV),
    "Qwen3ForCausalLM": Reference({**_QWEN, "head_dim": 128}, _ATTENTION_BIAS),
    "Gemma2ForCausalLM": Reference(
        {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}, _ATTENTION_BIAS
    ),
    "Gemma3ForCausalLM": Reference(_GEMMA, _ATTENTION_BIAS),
    "Phi3ForCausalLM": Reference({"original_max_position_embeddings": 4096}),
    "SmolLM3ForCausalLM": Reference({"num_key_value_heads": 4}, _LLAMA_BIASES),
    "OlmoForCausalLM": _OLMO,
    "Olmo2ForCausalLM": _OLMO,
    "Olmo3ForCausalLM": Reference({"sliding_window": 4096}, _ATTENTION_BIAS),
    "GraniteForCausalLM": _LLAMA,
    "SeedOssForCausalLM": Reference(
        {"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
        {"attention_bias": _QKV, "attention_out_bias": ("attn_output",), "mlp_bias": _FEED_FORWARD},
    ),
    "Glm4ForCausalLM": Reference(
        {"num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5, "attention_bias": True},
        {"attention_bias": _QKV},
    ),
    "CohereForCausalLM": Reference({"use_qk_norm": False}, _ATTENTION_BIAS),
    "Cohere2ForCausalLM": Reference({"sliding_window": 4096}, _ATTENTION_BIAS),
    "Starcoder2ForCausalLM": Reference(
        {"num_key_value_heads": 2, "use_bias": True}, {"use_bias": (*_ATTENTION, "ffn_up", "ffn_down")}
    ),
    "ApertusForCausalLM": Reference(biases=_ATTENTION_BIAS),
}


def find_reference(architecture: str) -> Reference:
    """Raises UnsupportedArchitectureError for a name that no config.json has, as are those of GGUF files."""
    found = _REFERENCES.get(architecture)
    if found is None:
        raise UnsupportedArchitectureError(
            f"architecture {architecture[:80]!r} is not supported in config.json alone; {', '.join(_REFERENCES)} are"
        )
    return found
