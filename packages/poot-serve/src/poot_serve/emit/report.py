"""What an answer says of itself when its request asks for a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from poot_batch.request import EngineInfo, GenerateRequest, most_tokens
from poot_serve.emit.transcript import Transcript
from poot_serve.protocol.report import ChoiceReport, EffectiveSampling, Report

_DIGITS = 3


def report_of(
    requests: Sequence[GenerateRequest],
    transcripts: Iterable[Transcript],
    ignored: Sequence[str],
    info: EngineInfo,
    default_max_tokens: int | None,
) -> Report:
    """The report on requests that have ended, one for each choice, with their transcripts."""
    return Report(
        sampling=_sampling(requests[0]),
        ignored_fields=list(ignored),
        choices=[
            _choice(index, told, most_tokens(request, info, default_max_tokens))
            for index, (request, told) in enumerate(zip(requests, transcripts, strict=True))
        ],
    )


def _sampling(request: GenerateRequest) -> EffectiveSampling:
    params = request.sampling
    assert params.seed is not None
    return EffectiveSampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=len(params.logit_bias),
        seed=params.seed,
        min_tokens=request.min_tokens,
        stop=list(request.stop),
        stop_token_ids=list(request.stop_token_ids),
        include_stop_str_in_output=request.include_stop,
        ignore_eos=request.ignore_eos,
    )


def _choice(index: int, told: Transcript, most: int) -> ChoiceReport:
    return ChoiceReport(
        index=index,
        max_tokens=most,
        prompt_tokens=told.prompt_tokens,
        cached_tokens=told.cached_tokens,
        cache_miss=told.cache_miss,
        completion_tokens=told.completion_tokens,
        queue_ms=round(told.times.queue_ms, _DIGITS),
        prefill_ms=round(told.times.prefill_ms, _DIGITS),
        decode_ms=round(told.times.decode_ms, _DIGITS),
    )
