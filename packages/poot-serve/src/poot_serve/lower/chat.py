"""/v1/chat/completions: wire request to engine requests."""

from __future__ import annotations

from poot_batch.request import EngineInfo
from poot_models.text import TextModel
from poot_serve.errors import FieldError
from poot_serve.lower.conversation import rendered
from poot_serve.lower.generation import Lowered, Prompt, lower_generation
from poot_serve.lower.prompt import prompt_tokens
from poot_serve.protocol.chat import ChatRequest


def lower_chat(wire: ChatRequest, *, text: TextModel, info: EngineInfo) -> Lowered:
    """Raises FieldError, UnsupportedFieldError, RequestError, TemplateRefusal, TemplateError or InvalidTextError."""
    logprobs = _logprobs(wire)
    prompt = rendered(wire, wire.messages, text)
    tokens = prompt_tokens(prompt, text.tokenizer, info, param="messages", add_special=False, parse_special=True)
    capped = wire.max_completion_tokens is not None
    return lower_generation(
        wire,
        prompts=[Prompt(tokens)],
        max_tokens=wire.max_completion_tokens if capped else wire.max_tokens,
        logprobs=logprobs,
        info=info,
        names={"prompt": "messages", "max_tokens": "max_completion_tokens" if capped else "max_tokens"},
        continues=bool(wire.continue_final_message),
    )


def _logprobs(wire: ChatRequest) -> int | None:
    if wire.top_logprobs is None:
        return 0 if wire.logprobs else None
    if not wire.logprobs:
        raise FieldError("top_logprobs is only taken with logprobs: true", param="top_logprobs")
    return wire.top_logprobs
