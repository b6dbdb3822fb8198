"""Wire types of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from poot_batch.request.params import MAX_LOGPROBS
from poot_serve.protocol.report import Report
from poot_serve.protocol.request import GenerationFields
from poot_serve.protocol.usage import Usage

TokenIds = Annotated[list[int], Meta(min_length=1)]


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    prompt: str | Annotated[list[int | str | TokenIds], Meta(min_length=1)]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Four parallel lists. `text_offset` counts characters from the start of the choice's text.

    The first token of an echoed prompt has no log-probability: null in both lists.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, and equally one chunk of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    poot: Report | UnsetType = UNSET
