"""The facts as data; `poot-models inspect --json` prints them under these names. Sizes are in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncodingUse:
    encoding: str
    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers that are alike. `kv_heads` of 0: no attention; `ff` of 0: no feed-forward part; `window` None: all."""

    layers: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    window: int | None
    rotary: str


@dataclass(frozen=True, slots=True)
class Group:
    """A KV group (`poot_models.blocks.KvGroup`); `elements` are those of keys and values of one token."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    elements: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the family makes of the configuration. `rotary` is the scaling rule that the checkpoint states."""

    vocabulary: int
    hidden: int
    positions: int
    tied: bool
    rotary: str
    layers: tuple[LayerKind, ...]
    groups: tuple[Group, ...]
    unused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextFacts:
    """`ends`: id -> text. `template`: usable, none, or why it is not usable. `problem`: why there is no tokenizer."""

    kind: str
    vocabulary: int
    ends: Mapping[int, str]
    template: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Tensors of one encoding that a backend holds in one way; `reason` where that is not the way they are stored."""

    encoding: str
    tensors: int
    held: str
    nbytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """`devices`: what it would open on this machine, or `closed`: why it does not. `refusal`: why no kernels run it."""

    backend: str
    devices: tuple[str, ...]
    closed: str | None
    refusal: str | None = None
    activation: str = ""
    weights: int = 0
    kv_token: int = 0
    placements: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """`refusal`: why no server starts with the model: its family refuses it, and then `stated`, what its metadata says,
    stands for `sizes`; or its tokenizer cannot be used. A chat template that cannot be used refuses chats alone."""

    model: str
    format: str
    architecture: str | None
    family: str | None
    refusal: str | None
    parameters: int
    nbytes: int
    encodings: tuple[EncodingUse, ...]
    stated: Mapping[str, str | int | float | bool]
    sizes: Sizes | None
    text: TextFacts
    backends: tuple[BackendFacts, ...]
