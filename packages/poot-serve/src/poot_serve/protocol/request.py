"""Fields that chats and completions share on the wire. Names beyond OpenAI's are those of vLLM."""

from __future__ import annotations

import msgspec

from poot_serve.protocol.report import ReportOptions


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """Every field may be null, which means its default. Unknown fields are accepted, unless the server is strict."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    poot: ReportOptions | None = None
