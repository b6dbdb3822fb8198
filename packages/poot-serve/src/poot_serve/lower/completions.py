"""/v1/completions: wire request to engine request."""

from __future__ import annotations

from poot_batch.request import EngineInfo
from poot_models.text import Tokenizer
from poot_serve.errors import FieldError, UnsupportedFieldError
from poot_serve.lower.prompt import prompt_tokens
from poot_serve.lower.sampling import Lowered, lower_generation
from poot_serve.protocol.completions import CompletionRequest

DEFAULT_MAX_TOKENS = 16


def lower_completion(wire: CompletionRequest, *, request_id: int, tokenizer: Tokenizer, info: EngineInfo) -> Lowered:
    """Raises FieldError, UnsupportedFieldError, RequestError or InvalidTextError."""
    prompt = _prompt(wire.prompt, tokenizer, info)
    max_tokens = wire.max_tokens
    if max_tokens is None:
        max_tokens = max(1, min(DEFAULT_MAX_TOKENS, info.max_seq - len(prompt)))
    return lower_generation(
        wire,
        request_id=request_id,
        prompt=prompt,
        max_tokens=max_tokens,
        logprobs=wire.logprobs,
        info=info,
        names={},
        continues=True,
    )


def _prompt(prompt: str | list[int | str | list[int]], tokenizer: Tokenizer, info: EngineInfo) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt_tokens(prompt, tokenizer, info, param="prompt")
    if all(isinstance(item, int) for item in prompt):
        return tuple(item for item in prompt if isinstance(item, int))
    if len(prompt) > 1:
        if any(isinstance(item, int) for item in prompt):
            raise FieldError("prompt: token ids cannot be mixed with texts or lists", param="prompt")
        raise UnsupportedFieldError(
            f"prompt holds {len(prompt)} prompts; this server takes one a request, send the others apart",
            param="prompt",
        )
    (only,) = prompt
    if isinstance(only, str):
        return prompt_tokens(only, tokenizer, info, param="prompt")
    return tuple(only if isinstance(only, list) else ())
