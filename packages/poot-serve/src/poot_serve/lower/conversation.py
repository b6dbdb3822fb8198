"""A conversation to the text that its template makes of it."""

from __future__ import annotations

import re
from typing import Any

from poot_models.text import TextModel, Tokenizer
from poot_serve.errors import FieldError, UnsupportedFieldError
from poot_serve.lower.messages import template_messages
from poot_serve.protocol.chat import Message, TemplateFields

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


def rendered(wire: TemplateFields, messages: list[Message], text: TextModel) -> str:
    """The prompt's text, in which client's text is guarded (see `Tokenizer.guard`).

    Raises FieldError, UnsupportedFieldError, TemplateRefusal or TemplateError.
    """
    template, tokenizer = text.chat_template, text.tokenizer
    if template is None:
        raise UnsupportedFieldError(
            f"this model has no chat template that can be used ({text.template_problem or 'it brings none'}); "
            "use /v1/completions, or start the server with --chat-template-file",
            param="messages",
        )
    continued = bool(wire.continue_final_message)
    if continued and wire.add_generation_prompt:
        raise FieldError(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    given = template_messages(messages, knows_developer="developer" in template.source, guard=tokenizer.guard)
    if continued:
        _check_continues(messages[-1], f"messages[{len(messages) - 1}]")
    return template.render(
        given,
        add_generation_prompt=wire.add_generation_prompt is not False,
        continue_final_message=continued,
        **_template_kwargs(wire, tokenizer),
    )


def _check_continues(last: Message, at: str) -> None:
    if last.role != "assistant":
        raise FieldError(
            f"continue_final_message goes on with an assistant's text, but {at} is a {last.role}'s", param=f"{at}.role"
        )
    if not last.content or last.tool_calls:
        raise FieldError(f"continue_final_message: {at} has no text to go on with", param=f"{at}.content")


def _template_kwargs(wire: TemplateFields, tokenizer: Tokenizer) -> dict[str, Any]:
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
