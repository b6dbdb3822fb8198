"""Sampling fields of the wire to SamplingParams."""

from __future__ import annotations

import re
import secrets

from poot_batch.request import SamplingParams
from poot_serve.errors import FieldError
from poot_serve.protocol.request import GenerationFields

_TOKEN_ID = re.compile(r"[0-9]{1,9}")
_EXACT_BITS = 53


def sampling_params(fields: GenerationFields, logprobs: int | None) -> SamplingParams:
    """Raises FieldError for what the wire's types cannot rule out."""
    return SamplingParams(
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=max(0, fields.top_k or 0),
        min_p=0.0 if fields.min_p is None else fields.min_p,
        presence_penalty=0.0 if fields.presence_penalty is None else fields.presence_penalty,
        frequency_penalty=0.0 if fields.frequency_penalty is None else fields.frequency_penalty,
        repetition_penalty=1.0 if fields.repetition_penalty is None else fields.repetition_penalty,
        logit_bias=_logit_bias(fields.logit_bias),
        seed=_seed(fields),
        logprobs=logprobs,
    )


def wants_report(fields: GenerationFields) -> bool:
    return fields.poot is not None and bool(fields.poot.report)


def _seed(fields: GenerationFields) -> int | None:
    """One that a report can tell is drawn here, in the range where every JSON reader keeps integers exact."""
    if fields.seed is None and wants_report(fields):
        return secrets.randbits(_EXACT_BITS)
    return fields.seed


def _logit_bias(bias: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    if not bias:
        return ()
    for token in bias:
        if _TOKEN_ID.fullmatch(token) is None:
            raise FieldError(f"logit_bias: {token[:32]!r} is not a token id", param="logit_bias")
    pairs = {int(token): value for token, value in bias.items()}
    if len(pairs) != len(bias):
        raise FieldError("logit_bias names a token twice", param="logit_bias")
    return tuple(pairs.items())
