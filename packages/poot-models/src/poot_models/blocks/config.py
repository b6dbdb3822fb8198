"""A decoder's configuration, read once from its checkpoint and never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from poot_executor.ops import Gelu, RotarySpec, XIelu
from poot_executor.ops.pointwise import Activation


@dataclass(frozen=True, slots=True)
class LongRotary:
    """LongRoPE (arXiv 2402.13753): frequencies of their own for rows that may grow past `original` positions.

    A row's keys stay as they were written, so the frequencies cannot change while it grows: a program whose rows hold
    at most `original` positions takes the short ones, any other the long ones, for short rows too.
    """

    short: RotarySpec
    long: RotarySpec
    original: int

    def at(self, max_seq: int) -> RotarySpec:
        """The frequencies of programs whose rows hold `max_seq` positions."""
        return self.long if max_seq > self.original else self.short


Rotary = RotarySpec | LongRotary
# "rms" has a weight, "layer" a weight, "layer+bias" both, "layer bare" neither.
Norm = Literal["rms", "layer", "layer+bias", "layer bare"]


def no_rotation(head_dim: int) -> RotarySpec:
    """Frequencies of a layer that does not know positions: every angle is zero, so that turning changes nothing."""
    return RotarySpec((0.0,) * (head_dim // 2))


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer. `window` is the number of positions a query sees, itself included; None sees all.

    `kv_heads` of 0: it has no attention, and no keys and values; `ff` of 0: no feed-forward part. `between` is what
    stands between the two products of a feed-forward part without a gate.
    """

    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    rotary: Rotary
    window: int | None = None
    between: Gelu | XIelu | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A dense decoder. Scales of 1, soft-caps and clips of None do nothing.

    `activation` is that of the gate, None where no layer has one. `norm` is the kind of all norms, and `norm_offset` is
    added to the weights of those that are "rms". `qkv_clip` bounds queries, keys and values on both sides of zero.
    `residual_scale` multiplies what a part of a layer adds (`DecoderBuilder.residual`), `logit_scale` the logits.
    `tied`: the embedding table is also the matrix of the logits. `biases` names the products that have a bias in every
    layer ("attn_q"); None: those that have one in the checkpoint.
    """

    vocabulary: int
    hidden: int
    max_positions: int
    eps: float
    layers: tuple[LayerSpec, ...]
    activation: Activation | None
    rotary_style: Literal["half", "interleaved"]
    query_scale: float
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    tied: bool = False
    norm: Norm = "rms"
    qkv_clip: float | None = None
    biases: frozenset[str] | None = None
