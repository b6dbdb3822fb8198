"""What chats and completions have in common once their prompts are tokens: the engine requests of all choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from poot_batch.errors import RequestError
from poot_batch.request import EngineInfo, GenerateRequest, validate
from poot_serve.errors import FieldError, UnsupportedFieldError
from poot_serve.lower.sampling import sampling_params, wants_report
from poot_serve.protocol.request import GenerationFields

MAX_CHOICES = 1024
# Of all choices together: what one request may put on the wire to the engine, and what its answer may take to build.
MAX_PROMPT_TOKENS = 1 << 22
MAX_LOGPROBS = 1 << 22
# How far the engine may run ahead of a client that reads slowly, in tokens a choice.
STREAM_CREDIT = 64
_SEEDS = 1 << 64


class Prompt(msgspec.Struct, frozen=True):
    """`echo` is the text that goes before the answer, None if none does."""

    tokens: tuple[int, ...]
    echo: str | None = None


class Lowered(msgspec.Struct, frozen=True):
    """The engine requests of an answer's choices, and what the answer must look like.

    Choice `index` is of prompt `index // n`. A request's `id`, and the one it is a fork of, are indices of choices:
    the engine's ids come with the submission. `echoes` has the text before the answer for each prompt, or is empty.
    `prompts_only`: echoed prompts are all there is to answer, so the engine has nothing to do. With a `report`,
    `ignored` names the fields that nobody read.
    """

    requests: tuple[GenerateRequest, ...]
    n: int
    stream: bool
    include_usage: bool
    echoes: tuple[str, ...] = ()
    prompts_only: bool = False
    report: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def logprobs(self) -> bool:
        return self.requests[0].sampling.logprobs is not None


def lower_generation(
    fields: GenerationFields,
    *,
    prompts: Sequence[Prompt],
    max_tokens: int | None,
    default_max_tokens: int | None = None,
    logprobs: int | None,
    info: EngineInfo,
    names: Mapping[str, str],
    continues: bool = False,
) -> Lowered:
    """The engine requests for `prompts` (one or more), checked against what the engine can serve.

    `default_max_tokens` yields to what the positions leave. `continues`: the answer's text goes on from the prompt's.
    `names` maps the engine's field names to the wire's where they differ. Raises FieldError or RequestError.
    """
    stream, n = bool(fields.stream), _n(fields)
    if fields.stream_options is not None and not stream:
        raise FieldError("stream_options is only taken with stream: true", param="stream_options")
    if len(prompts) * n > MAX_CHOICES:
        raise FieldError(
            f"{len(prompts)} prompts with n {n} are more than {MAX_CHOICES} choices; send fewer at once", param="n"
        )
    echoes = tuple([prompt.echo for prompt in prompts if prompt.echo is not None])
    prompts_only = bool(echoes) and max_tokens == 0 and logprobs is None
    sampling = sampling_params(fields, logprobs)
    stop, stop_ids = _stops(fields.stop), tuple(fields.stop_token_ids or ())
    requests: list[GenerateRequest] = []
    for index, prompt in enumerate(prompts):
        most = max_tokens
        if most is None and default_max_tokens is not None:
            most = max(1, min(default_max_tokens, info.max_seq - len(prompt.tokens)))
        first = GenerateRequest(
            id=index * n,
            prompt=prompt.tokens,
            sampling=sampling,
            max_tokens=most,
            min_tokens=fields.min_tokens or 0,
            stop=stop,
            stop_token_ids=stop_ids,
            include_stop=bool(fields.include_stop_str_in_output),
            continues=continues,
            ignore_eos=bool(fields.ignore_eos),
            credit=STREAM_CREDIT if stream else None,
            prompt_logprobs=0 if prompts_only else logprobs if echoes else None,
            cache_salt=fields.cache_salt,
        )
        where = {**names, "prompt": f"prompt[{index}]"} if len(prompts) > 1 else names
        _check(first, info, where)
        requests.append(first)
        for choice in range(1, n):
            requests.append(_fork(first, choice))
    _check_size(requests, info)
    options = fields.stream_options
    include_usage = bool(options is not None and options.include_usage)
    return Lowered(tuple(requests), n, stream, include_usage, echoes, prompts_only, wants_report(fields))


def _n(fields: GenerationFields) -> int:
    n = 1 if fields.n is None else fields.n
    best_of = n if fields.best_of is None else fields.best_of
    if best_of < n:
        raise FieldError(f"best_of must be no less than n, {n}, not {best_of}", param="best_of")
    if best_of > n:
        raise UnsupportedFieldError(
            "best_of is not supported by this server: it gives every choice that it makes; ask for them with n",
            param="best_of",
        )
    return n


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _fork(first: GenerateRequest, choice: int) -> GenerateRequest:
    """Another choice for the same prompt: its draws are its own, also where the client fixed the seed."""
    sampling = first.sampling
    if sampling.seed is not None:
        seed = sampling.seed + choice
        sampling = replace(sampling, seed=seed if seed < _SEEDS else seed - _SEEDS)
    return replace(first, id=first.id + choice, sampling=sampling, fork_of=first.id)


def _check(request: GenerateRequest, info: EngineInfo, names: Mapping[str, str]) -> None:
    try:
        validate(request, info)
    except RequestError as error:
        error.param = names.get(error.param or "", error.param)
        raise


def _check_size(requests: Sequence[GenerateRequest], info: EngineInfo) -> None:
    """What many choices multiply must stay in bounds. Raises FieldError."""
    tokens = 0
    for request in requests:
        tokens += len(request.prompt)
    if tokens > MAX_PROMPT_TOKENS:
        raise FieldError(
            f"the prompts of all choices have {tokens} tokens; at most {MAX_PROMPT_TOKENS} are taken, so lower n or "
            "send fewer prompts",
            param="n",
        )
    top, echoed = requests[0].sampling.logprobs, requests[0].prompt_logprobs is not None
    if top is None or (len(requests) == 1 and not echoed):
        return
    shown = 0
    for request in requests:
        count = len(request.prompt)
        shown += info.max_seq - count if request.max_tokens is None else request.max_tokens
        shown += count if echoed else 0
    if shown * (1 + top) > MAX_LOGPROBS:
        raise FieldError(
            f"the choices could hold {shown * (1 + top)} log-probabilities; at most {MAX_LOGPROBS} are given, so lower "
            "max_tokens, n or the number of alternatives",
            param="logprobs",
        )
