"""A generation request and its sampling parameters, with the ranges they must keep."""

from __future__ import annotations

import msgspec

from poot_batch.errors import ContextLengthError, InvalidTokenError, RequestError
from poot_batch.request.info import EngineInfo

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
# Below this, logits divided by the temperature leave the range of float32.
_LEAST_TEMPERATURE = 1e-5


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is drawn.

    temperature 0 (or less than 1e-5, where nothing else could be drawn) means greedy. top_k 0, top_p 1 and min_p 0 are
    off. `logit_bias` holds (token id, bias) pairs. `logprobs` None is off, 0 the chosen token's alone, k <= 20 also the
    k most likely alternatives; log-probabilities are those of the model, before temperature, bias and penalties.
    Without `seed` the engine picks one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < _LEAST_TEMPERATURE

    @property
    def penalised(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


class SpeculationParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request asks of the speculation policy: nothing yet, the field is the seam."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generate"):
    """One sequence to continue. `id` is unique among the client's open requests; `prompt` holds token ids.

    max_tokens None means the rest of the row's positions; 0, only with `prompt_logprobs`, means no token at all, so
    that the prompt may take all positions. `stop` strings end the text before them (after them with `include_stop`),
    and so do `stop_token_ids`; with any stop string the engine delivers text, else tokens alone, and `continues` says
    that this text goes on from the prompt's (a completion), so that its first space stays. `credit` is how many tokens
    the client is ready to take before it grants more; None leaves the row unbounded.

    `prompt_logprobs` k asks for the log-probability of every prompt token but the first, given those before it, with
    the k most likely alternatives. `fork_of` is the id of an open request with the same prompt: this one waits until
    that one's prompt has been read or it has ended, since most of what it needs is shared from then on.
    """

    id: int
    prompt: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    continues: bool = False
    ignore_eos: bool = False
    credit: int | None = None
    prompt_logprobs: int | None = None
    fork_of: int | None = None
    adapter: str | None = None
    cache_salt: str | None = None
    speculation: SpeculationParams | None = None


def most_tokens(request: GenerateRequest, info: EngineInfo, default: int | None) -> int:
    """How many tokens a request may get; `default` (EngineConfig.default_max_tokens) is for one that does not say."""
    if request.max_tokens is not None:
        return request.max_tokens
    left = info.max_seq - len(request.prompt)
    return left if default is None else min(left, max(default, request.min_tokens))


def validate(request: GenerateRequest, info: EngineInfo) -> None:
    """Refuse a request that this engine can never serve.

    Raises RequestError (with `param`), ContextLengthError or InvalidTokenError. The same rules hold for the HTTP
    server, the engine process and the in-process engine, which is why they live here.
    """
    _check_lengths(request, info)
    _check_sampling(request.sampling, info)
    _check_stops(request, info)
    if request.prompt_logprobs is not None:
        _in_range("prompt_logprobs", request.prompt_logprobs, 0, min(MAX_LOGPROBS, info.vocab_size))
    if request.adapter is not None:
        raise RequestError("this engine serves no adapters", param="model")


def _check_lengths(request: GenerateRequest, info: EngineInfo) -> None:
    count = len(request.prompt)
    if count == 0:
        raise RequestError("the prompt holds no token", param="prompt")
    scores_alone = request.max_tokens == 0 and request.prompt_logprobs is not None
    if count > info.max_seq or (count == info.max_seq and not scores_alone):
        left = "" if scores_alone else ", one of which must be left for the answer"
        raise ContextLengthError(
            f"the prompt has {count} tokens, but this server runs sequences of {info.max_seq} positions{left}",
            param="prompt",
        )
    # Not one by one: prompts are long.
    _in_vocabulary(min(request.prompt), "prompt", info)
    _in_vocabulary(max(request.prompt), "prompt", info)
    if request.max_tokens is not None:
        _in_range("max_tokens", request.max_tokens, 1 if request.prompt_logprobs is None else 0, 2**31 - 1)
        if count + request.max_tokens > info.max_seq:
            raise ContextLengthError(
                f"{count} prompt tokens and max_tokens {request.max_tokens} exceed the {info.max_seq} positions of a "
                "sequence; shorten the prompt or lower max_tokens",
                param="max_tokens",
            )
    most = info.max_seq - count if request.max_tokens is None else request.max_tokens
    _in_range("min_tokens", request.min_tokens, 0, most)
    if request.credit is not None:
        _in_range("credit", request.credit, 1, 2**31 - 1)


def _check_sampling(params: SamplingParams, info: EngineInfo) -> None:
    _in_range("temperature", params.temperature, 0.0, 2.0)
    _in_range("top_p", params.top_p, 0.0, 1.0)
    if params.top_p == 0.0:
        raise RequestError("top_p must be above 0", param="top_p")
    _in_range("top_k", params.top_k, 0, 2**31 - 1)
    _in_range("min_p", params.min_p, 0.0, 1.0)
    _in_range("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _in_range("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _in_range("repetition_penalty", params.repetition_penalty, 0.01, 10.0)
    if params.logprobs is not None:
        _in_range("logprobs", params.logprobs, 0, min(MAX_LOGPROBS, info.vocab_size))
    if params.seed is not None:
        _in_range("seed", params.seed, -(2**63), 2**64 - 1)
    if len(params.logit_bias) > MAX_LOGIT_BIAS:
        raise RequestError(
            f"logit_bias has {len(params.logit_bias)} entries; at most {MAX_LOGIT_BIAS} are taken", param="logit_bias"
        )
    for token, bias in params.logit_bias:
        _in_vocabulary(token, "logit_bias", info)
        _in_range("logit_bias", bias, -100.0, 100.0)


def _check_stops(request: GenerateRequest, info: EngineInfo) -> None:
    if len(request.stop) > MAX_STOP_STRINGS:
        raise RequestError(f"stop has {len(request.stop)} strings; at most {MAX_STOP_STRINGS} are taken", param="stop")
    for stop in request.stop:
        if not stop or len(stop) > MAX_STOP_CHARS:
            raise RequestError(f"each stop string must have 1 to {MAX_STOP_CHARS} characters", param="stop")
    if len(request.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise RequestError(f"stop_token_ids has more than {MAX_STOP_TOKEN_IDS} entries", param="stop_token_ids")
    for token in request.stop_token_ids:
        _in_vocabulary(token, "stop_token_ids", info)


def _in_vocabulary(token: int, name: str, info: EngineInfo) -> None:
    if not 0 <= token < info.vocab_size:
        raise InvalidTokenError(f"{name}: token id {token} is outside the vocabulary of {info.vocab_size}", param=name)


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # nor is NaN
        raise RequestError(f"{name} must be between {low} and {high}, not {value}", param=name)
