"""A conversation to the text that its template makes of it."""

from __future__ import annotations

from typing import Any

from poot_models.text import ChatTemplate, TextModel, Tokenizer
from poot_serve.errors import FieldError, UnsupportedFieldError
from poot_serve.lower.messages import guarded, template_messages
from poot_serve.protocol.chat import Message, TemplateFields

# Of one argument: levels of lists and objects, values and keys, and characters of its texts.
MAX_KWARG_DEPTH = 8
MAX_KWARG_VALUES = 1024
MAX_KWARG_CHARS = 16_384
MAX_REASON_CHARS = 500
_SHOWN_NAMES = 24


def rendered(wire: TemplateFields, messages: list[Message], text: TextModel) -> str:
    """The prompt's text, in which client's text is guarded (see `Tokenizer.guard`).

    Raises FieldError, UnsupportedFieldError, TemplateRefusal or TemplateError.
    """
    template, tokenizer = text.chat_template, text.tokenizer
    if template is None:
        raise UnsupportedFieldError(f"{no_template(text)}; or use /v1/completions", param="messages")
    continued = bool(wire.continue_final_message)
    if continued and wire.add_generation_prompt:
        raise FieldError(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    given = template_messages(messages, habits=template.habits, guard=tokenizer.guard)
    if continued:
        _check_continues(messages[-1], f"messages[{len(messages) - 1}]")
    return template.render(
        given,
        add_generation_prompt=wire.add_generation_prompt is not False,
        continue_final_message=continued,
        **_template_kwargs(wire, template, tokenizer),
    )


def no_template(text: TextModel) -> str:
    """Why chats cannot be served, on one line, and what to do about it."""
    reason = text.template_problem or "it brings none"
    shown = "".join(char if char.isprintable() else " " for char in reason[:MAX_REASON_CHARS])
    return f"this model has no chat template that can be used ({shown}); start the server with --chat-template-file"


def _check_continues(last: Message, at: str) -> None:
    if last.role != "assistant":
        raise FieldError(
            f"continue_final_message goes on with an assistant's text, but {at} is a {last.role}'s", param=f"{at}.role"
        )
    if not last.content or last.tool_calls:
        raise FieldError(f"continue_final_message: {at} has no text to go on with", param=f"{at}.content")


def _template_kwargs(wire: TemplateFields, template: ChatTemplate, tokenizer: Tokenizer) -> dict[str, Any]:
    kwargs: dict[str, Any] = {}
    if wire.reasoning_effort is not None:
        kwargs["reasoning_effort"] = tokenizer.guard(wire.reasoning_effort)
    for name, value in (wire.chat_template_kwargs or {}).items():
        if name not in template.variables:
            raise FieldError(
                f"chat_template_kwargs: {name[:64]!r} cannot be set by a request; {_taken(template)}",
                param="chat_template_kwargs",
            )
        _check_size(name, value)
        kwargs[name] = guarded(value, tokenizer.guard)
    return kwargs


def _taken(template: ChatTemplate) -> str:
    names = sorted(template.variables)
    if not names:
        return "this model's template takes no arguments"
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"this model's template takes {', '.join(names[:_SHOWN_NAMES])}{more}"


def _check_size(name: str, value: Any) -> None:
    """Raises FieldError for an argument that a template should not have to work through."""
    param, values, characters = f"chat_template_kwargs.{name}", 0, 0
    level: list[Any] = [value]
    for _ in range(MAX_KWARG_DEPTH + 1):
        values += len(level)
        characters += sum(len(item) for item in level if isinstance(item, str))
        if values > MAX_KWARG_VALUES or characters > MAX_KWARG_CHARS:
            raise FieldError(
                f"{param}: holds more than {MAX_KWARG_VALUES} values or {MAX_KWARG_CHARS} characters", param=param
            )
        inner = [item for item in level if isinstance(item, list | dict)]
        level = [part for item in inner for part in item]
        level += [part for item in inner if isinstance(item, dict) for part in item.values()]
        if not level:
            return
    raise FieldError(f"{param}: nests deeper than {MAX_KWARG_DEPTH} levels", param=param)
