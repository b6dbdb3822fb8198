"""/v1/chat/completions: wire request to engine request."""

from __future__ import annotations

import re
from typing import Any

from poot_batch.request import EngineInfo
from poot_models.text import ChatTemplate, Tokenizer
from poot_serve.errors import FieldError, UnsupportedFieldError
from poot_serve.lower.messages import template_messages
from poot_serve.lower.prompt import prompt_tokens
from poot_serve.lower.sampling import Lowered, lower_generation
from poot_serve.protocol.chat import ChatRequest

MAX_TOP_LOGPROBS = 20
MAX_TEMPLATE_KWARGS = 16
MAX_KWARG_CHARS = 1024
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
# What the renderer itself gives a template: a request must not replace it.
RESERVED_KWARGS = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "raise_exception",
        "strftime_now", "bos_token", "eos_token", "unk_token", "pad_token", "namespace", "range", "dict", "lipsum",
        "cycler", "joiner", "self", "loop", "caller", "varargs", "kwargs", "source", "conversation",
    }
)  # fmt: skip


def lower_chat(
    wire: ChatRequest,
    *,
    request_id: int,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    template_problem: str | None,
    info: EngineInfo,
) -> Lowered:
    """Raises FieldError, UnsupportedFieldError, RequestError, TemplateRefusal, TemplateError or InvalidTextError."""
    logprobs = _logprobs(wire)
    if template is None:
        raise UnsupportedFieldError(
            f"this model has no chat template that can be used ({template_problem or 'it brings none'}); "
            "use /v1/completions, or start the server with --chat-template-file",
            param="messages",
        )
    messages = template_messages(wire.messages, knows_developer="developer" in template.source, guard=tokenizer.guard)
    text = template.render(messages, add_generation_prompt=True, **_template_kwargs(wire, tokenizer))
    capped = wire.max_completion_tokens is not None
    return lower_generation(
        wire,
        request_id=request_id,
        prompt=prompt_tokens(text, tokenizer, info, param="messages", add_special=False, parse_special=True),
        max_tokens=wire.max_completion_tokens if capped else wire.max_tokens,
        logprobs=logprobs,
        info=info,
        names={"prompt": "messages", "max_tokens": "max_completion_tokens" if capped else "max_tokens"},
    )


def _logprobs(wire: ChatRequest) -> int | None:
    if wire.top_logprobs is None:
        return 0 if wire.logprobs else None
    if not wire.logprobs:
        raise FieldError("top_logprobs is only taken with logprobs: true", param="top_logprobs")
    if not 0 <= wire.top_logprobs <= MAX_TOP_LOGPROBS:
        raise FieldError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
    return wire.top_logprobs


def _template_kwargs(wire: ChatRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    kwargs: dict[str, Any] = {}
    if wire.reasoning_effort is not None:
        if len(wire.reasoning_effort) > MAX_KWARG_CHARS:
            raise FieldError("reasoning_effort is too long", param="reasoning_effort")
        kwargs["reasoning_effort"] = tokenizer.guard(wire.reasoning_effort)
    asked = wire.chat_template_kwargs or {}
    if len(asked) > MAX_TEMPLATE_KWARGS:
        raise FieldError(
            f"chat_template_kwargs holds more than {MAX_TEMPLATE_KWARGS} values", param="chat_template_kwargs"
        )
    for name, value in asked.items():
        if _IDENTIFIER.fullmatch(name) is None or name in RESERVED_KWARGS:
            raise FieldError(
                f"chat_template_kwargs: {name[:64]!r} cannot be set by a request", param="chat_template_kwargs"
            )
        if isinstance(value, str) and len(value) > MAX_KWARG_CHARS:
            raise FieldError(f"chat_template_kwargs.{name}: too long", param=f"chat_template_kwargs.{name}")
        kwargs[name] = tokenizer.guard(value) if isinstance(value, str) else value
    return kwargs
