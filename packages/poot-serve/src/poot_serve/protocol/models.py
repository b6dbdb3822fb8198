"""Wire types of /v1/models and /health."""

from __future__ import annotations

from typing import Literal

import msgspec

from poot_batch.process.interface import EngineState


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """`max_model_len` is in tokens: prompt and answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "poot"
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What serves, as it was settled on."""

    status: EngineState
    model: str
    backend: str
    device: str
    rows: int
    max_seq: int
    version: str
