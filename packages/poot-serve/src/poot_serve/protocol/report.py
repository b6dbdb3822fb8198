"""The extension object `poot` of a request and of its answer: what became of the request."""

from __future__ import annotations

import msgspec


class ReportOptions(msgspec.Struct, frozen=True):
    """`report`: give the answer a `poot` object."""

    report: bool | None = None


class EffectiveSampling(msgspec.Struct, frozen=True, kw_only=True):
    """The values that the answer was drawn with, those of the request or their defaults.

    Choice i of a prompt is drawn with `seed` + i. top_k 0 is off. `logit_bias` counts its entries.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: int
    seed: int
    min_tokens: int
    stop: list[str]
    stop_token_ids: list[int]
    include_stop_str_in_output: bool
    ignore_eos: bool


class ChoiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one choice took. `max_tokens` is the most it could get; the times, in milliseconds, are those of the engine:
    until it had a row, from there to its first token, and from that to its last. `cache_miss` says, for people, why no
    more of the prompt came from the prefix cache; null if all that could did.
    """

    index: int
    max_tokens: int
    prompt_tokens: int
    cached_tokens: int
    cache_miss: str | None
    completion_tokens: int
    queue_ms: float
    prefill_ms: float
    decode_ms: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`ignored_fields` are the paths of fields that this server does not know; at most 64 are named."""

    sampling: EffectiveSampling
    ignored_fields: list[str]
    choices: list[ChoiceReport]
