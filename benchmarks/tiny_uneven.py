"""A Llama whose layers are as uneven as DeciLM's: transformers has its parts, but no model of it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


class _Nothing(nn.Module):
    """In place of a part of a layer: adds zero. Attention gives a pair."""

    def __init__(self, pair: bool) -> None:
        super().__init__()
        self._pair = pair

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> Any:
        zero = torch.zeros_like(hidden_states)
        return (zero, None) if self._pair else zero


class _Product(nn.Module):
    """In place of attention: a product, under the name that DeciLM's checkpoints give it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_attn = nn.Linear(width, width, bias=False)

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> Any:
        return self.linear_attn(hidden_states), None


def make_uneven(model: LlamaForCausalLM) -> None:
    """Give a Llama the layers that its configuration states, as DeciLM's does, by block_configs or KV heads a layer."""
    config = model.config
    blocks = getattr(config, "block_configs", None)
    if blocks is not None:
        config.num_hidden_layers = len(blocks)
    layers = []
    for index in range(config.num_hidden_layers):
        own = copy.deepcopy(config)
        if blocks is None:
            own.num_key_value_heads = config.num_key_value_heads_per_layer[index]
            layers.append(LlamaDecoderLayer(own, index))
            continue
        attention, ffn = blocks[index]["attention"], blocks[index]["ffn"]
        own.num_key_value_heads = config.num_attention_heads // (attention["n_heads_in_group"] or 1)
        # Of 64 columns: two thirds of the factor times them, up to a multiple of 256.
        own.intermediate_size = {None: 1, 1.0: 256, 7.0: 512}[ffn["ffn_mult"]]
        layer = LlamaDecoderLayer(own, index)
        if attention["no_op"]:
            layer.input_layernorm, layer.self_attn = nn.Identity(), _Nothing(True)
        if attention["replace_with_linear"]:
            layer.self_attn = _Product(config.hidden_size)
        if ffn["no_op"]:
            layer.post_attention_layernorm, layer.mlp = nn.Identity(), _Nothing(False)
        layers.append(layer)
    model.model.layers = nn.ModuleList(layers)
