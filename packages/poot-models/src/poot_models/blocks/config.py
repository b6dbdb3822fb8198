"""A decoder's configuration, read once from its checkpoint and never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from poot_executor.ops import RotarySpec
from poot_executor.ops.pointwise import Activation


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer. `window` is the number of positions a query sees, itself included; None sees all."""

    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    rotary: RotarySpec
    window: int | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A dense decoder. Scales of 1 and soft-caps of None do nothing; `norm_offset` is added to every norm weight.

    `tied`: the embedding table is also the matrix of the logits.
    """

    vocabulary: int
    hidden: int
    max_positions: int
    eps: float
    layers: tuple[LayerSpec, ...]
    activation: Activation
    rotary_style: Literal["half", "interleaved"]
    query_scale: float
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    tied: bool = False
