"""Sampling fields of the wire to SamplingParams and the engine's stop rules."""

from __future__ import annotations

import re
from dataclasses import dataclass

from poot_batch.errors import RequestError
from poot_batch.request import EngineInfo, GenerateRequest, SamplingParams, validate
from poot_serve.errors import FieldError
from poot_serve.protocol.request import GenerationFields

_TOKEN_ID = re.compile(r"[0-9]{1,9}")
MAX_LOGIT_BIAS = 1024
MAX_SALT_CHARS = 256
# How far the engine may run ahead of a client that reads slowly, in tokens.
STREAM_CREDIT = 64


@dataclass(frozen=True, slots=True)
class Lowered:
    """An engine request and what the answer must look like. `logprobs` is None, or how many alternatives to show."""

    request: GenerateRequest
    stream: bool
    include_usage: bool

    @property
    def logprobs(self) -> int | None:
        return self.request.sampling.logprobs


def lower_generation(
    fields: GenerationFields,
    *,
    request_id: int,
    prompt: tuple[int, ...],
    max_tokens: int | None,
    logprobs: int | None,
    info: EngineInfo,
    names: dict[str, str],
    continues: bool = False,
) -> Lowered:
    """The engine request for `prompt`, checked against what the engine can serve.

    `continues`: the answer's text goes on from the prompt's. `names` maps the engine's field names to the wire's where
    they differ. Raises FieldError or RequestError.
    """
    stream = bool(fields.stream)
    if fields.stream_options is not None and not stream:
        raise FieldError("stream_options is only taken with stream: true", param="stream_options")
    if fields.cache_salt is not None and not 0 < len(fields.cache_salt) <= MAX_SALT_CHARS:
        raise FieldError(f"cache_salt must have 1 to {MAX_SALT_CHARS} characters", param="cache_salt")
    request = GenerateRequest(
        id=request_id,
        prompt=prompt,
        sampling=_sampling(fields, logprobs),
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens or 0,
        stop=_stops(fields.stop),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        include_stop=bool(fields.include_stop_str_in_output),
        continues=continues,
        ignore_eos=bool(fields.ignore_eos),
        credit=STREAM_CREDIT if stream else None,
        cache_salt=fields.cache_salt,
    )
    try:
        validate(request, info)
    except RequestError as error:
        error.param = names.get(error.param or "", error.param)
        raise
    options = fields.stream_options
    return Lowered(request, stream, bool(options is not None and options.include_usage))


def _sampling(fields: GenerationFields, logprobs: int | None) -> SamplingParams:
    top_k = fields.top_k or 0
    return SamplingParams(
        temperature=_or(fields.temperature, 1.0),
        top_p=_or(fields.top_p, 1.0),
        top_k=0 if top_k == -1 else top_k,
        min_p=_or(fields.min_p, 0.0),
        presence_penalty=_or(fields.presence_penalty, 0.0),
        frequency_penalty=_or(fields.frequency_penalty, 0.0),
        repetition_penalty=_or(fields.repetition_penalty, 1.0),
        logit_bias=_logit_bias(fields.logit_bias),
        seed=fields.seed,
        logprobs=logprobs,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _logit_bias(bias: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    if not bias:
        return ()
    if len(bias) > MAX_LOGIT_BIAS:
        raise FieldError(f"logit_bias has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are taken", param="logit_bias")
    for token in bias:
        if _TOKEN_ID.fullmatch(token) is None:
            raise FieldError(f"logit_bias: {token[:32]!r} is not a token id", param="logit_bias")
    pairs = {int(token): value for token, value in bias.items()}
    if len(pairs) != len(bias):
        raise FieldError("logit_bias names a token twice", param="logit_bias")
    return tuple(pairs.items())
