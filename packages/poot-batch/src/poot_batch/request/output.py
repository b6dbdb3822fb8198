"""What the engine delivers for a request."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls", "error", "abort"]
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "tool_calls", "error", "abort")


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one emitted token and of the asked-for alternatives, most likely first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Times(msgspec.Struct, frozen=True, array_like=True):
    """Where a request's time went, in milliseconds: until it was given a row, from there to its first token, and from
    that to its end. What it never reached took no time."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One delivery of one request: the tokens that one step (or several) committed.

    `text` is None unless the request has stop strings; then it is the text that became final with these tokens, and
    the concatenation over all outputs is the whole text. `finish` is set on the last output, exactly once. With
    finish "error", `error_code` and `error_message` say why (`error_code` is that of an EngineError class).
    `prompt_tokens` and `cached_tokens` are set on the first output and on the last one, and so is `cache_miss`: why
    less of the prompt than its full blocks came from the prefix cache, for people. `prompt_logprobs` are those of the
    prompt's next tokens, in order: over all outputs one for every prompt token but the first. `end_logprob` is that of
    the end token, where one ended the text: the token is none of `tokens`, nor this one of `logprobs`. `times` is set
    on the last output, unless the engine process died or refused the request.
    """

    request_id: int
    tokens: tuple[int, ...] = ()
    text: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_miss: str | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    end_logprob: TokenLogprob | None = None
    times: Times | None = None
    error_code: str | None = None
    error_message: str | None = None
