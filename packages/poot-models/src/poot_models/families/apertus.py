"""Apertus (arXiv 2509.14233): Llama's attention with queries and keys normed per head, and a feed-forward part without
a gate whose activation, xIELU, is learned layer by layer."""

from __future__ import annotations

import math
from dataclasses import replace

from poot_executor.ir import Value
from poot_executor.ops import XIelu
from poot_models.blocks import DecoderBuilder, DecoderConfig
from poot_models.encodings.vectors import numbers
from poot_models.errors import CheckpointFormatError, TensorMissingError
from poot_models.families import llama
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields

_THETA = 12000000.0


def configure(fields: Fields) -> DecoderConfig:
    if not (fields.gguf or fields.mapping("rope_parameters") or fields.mapping("rope_scaling")):
        # Where config.json is silent, transformers takes a rule of its own.
        raise CheckpointFormatError("config.json must state rope_parameters or rope_scaling")
    fields.choice("hidden_act", "", "xielu", ("xielu",))
    config = llama.configure(fields, gated=False, theta=_THETA)
    learned = [_learned(fields, name, len(config.layers)) for name in ("alpha_p", "alpha_n", "beta", "eps")]
    layers = tuple(
        replace(layer, between=XIelu(_softplus(above), beta + _softplus(below), beta, eps))
        for layer, above, below, beta, eps in zip(config.layers, *learned, strict=True)
    )
    return replace(config, layers=layers, rotary_style="half")


def _learned(fields: Fields, name: str, layers: int) -> tuple[float, ...]:
    """A parameter of each layer's activation: GGUF files keep them among their metadata, others as tensors."""
    if fields.gguf:
        return fields.file_numbers(f"xielu.{name}", layers)
    found: list[float] = []
    for index in range(layers):
        source = fields.tensors.get(f"blk.{index}.ffn_act.{name}")
        if source is None:
            raise TensorMissingError(f"the checkpoint has no tensor model.layers.{index}.mlp.act_fn.{name}")
        if math.prod(source.shape) != 1:
            raise CheckpointFormatError(f"tensor {source.name} is {source.shape}, not one number")
        found += numbers(source)
        if not math.isfinite(found[-1]):
            raise CheckpointFormatError(f"tensor {source.name} is {found[-1]}, not a finite number")
    return tuple(found)


def _softplus(x: float) -> float:
    """log(1 + exp(x)), for any x."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def layer(b: DecoderBuilder, index: int, h: Value) -> Value:
    name, hidden = f"blk.{index}.", b.config.hidden
    attended = b.attention(index, b.norm(h, f"{name}attn_norm"), qk_norm=True)
    h = b.add(h, b.linear(attended, (f"{name}attn_output", hidden)))
    x = b.ungated(index, b.norm(h, f"{name}ffn_norm"), f"{name}ffn_up")
    return b.add(h, b.linear(x, (f"{name}ffn_down", hidden)))


FAMILY = Family(
    "apertus",
    configure,
    layer,
    {
        **DECODER_TENSORS,
        "blk.{}.attn_norm": "model.layers.{}.attention_layernorm",
        "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
        "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
        "blk.{}.ffn_norm": "model.layers.{}.feedforward_layernorm",
        # Only its four parameters are there, and none is a weight of the graph.
        "blk.{}.ffn_act": "model.layers.{}.mlp.act_fn",
    },
)
