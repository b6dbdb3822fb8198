"""/v1/completions: wire request to engine requests."""

from __future__ import annotations

from poot_batch.request import EngineInfo
from poot_models.text import Tokenizer
from poot_serve.errors import FieldError
from poot_serve.lower.generation import Lowered, Prompt, lower_generation
from poot_serve.lower.prompt import prompt_tokens
from poot_serve.protocol.completions import CompletionRequest

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 128


def lower_completion(wire: CompletionRequest, *, tokenizer: Tokenizer, info: EngineInfo) -> Lowered:
    """Raises FieldError, UnsupportedFieldError, RequestError or InvalidTextError."""
    return lower_generation(
        wire,
        prompts=_prompts(wire, tokenizer, info),
        max_tokens=wire.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        logprobs=wire.logprobs,
        info=info,
        names={},
        continues=True,
    )


def _prompts(wire: CompletionRequest, tokenizer: Tokenizer, info: EngineInfo) -> list[Prompt]:
    given = wire.prompt
    if isinstance(given, str):
        return [_prompt(given, "prompt", bool(wire.echo), tokenizer, info)]
    ids = [item for item in given if isinstance(item, int)]
    if len(ids) == len(given):
        return [_prompt(ids, "prompt", bool(wire.echo), tokenizer, info)]
    if ids:
        raise FieldError("prompt: token ids cannot be mixed with texts or lists", param="prompt")
    if len(given) > MAX_PROMPTS:
        raise FieldError(f"prompt holds {len(given)} prompts; at most {MAX_PROMPTS} are taken", param="prompt")
    several = len(given) > 1
    return [
        _prompt(item, f"prompt[{index}]" if several else "prompt", bool(wire.echo), tokenizer, info)
        for index, item in enumerate(given)
        if not isinstance(item, int)
    ]


def _prompt(given: str | list[int], param: str, echo: bool, tokenizer: Tokenizer, info: EngineInfo) -> Prompt:
    if isinstance(given, str):
        return Prompt(prompt_tokens(given, tokenizer, info, param=param), given if echo else None)
    # Text of ids that the checks to come refuse is never shown.
    return Prompt(tuple(given), tokenizer.decode(given) if echo else None)
