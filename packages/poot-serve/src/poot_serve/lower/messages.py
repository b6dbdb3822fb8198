"""Wire messages to the plain dictionaries that chat templates read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from poot_serve.errors import BadJsonError, FieldError, UnsupportedFieldError
from poot_serve.limits.json_text import check_json_text
from poot_serve.protocol.chat import ContentPart, Message, ToolCall

Guard = Callable[[str], str]


def template_messages(messages: Sequence[Message], *, knows_developer: bool, guard: Guard) -> list[dict[str, Any]]:
    """One dictionary a message, in order.

    A list of text parts becomes one string, joined by newlines, so that a string and a list of one part give the same
    prompt. `developer` becomes `system` for a template that does not know the role. Every text of the client goes
    through `guard` (`Tokenizer.guard`), so that the name of a control token in it stays text. Raises FieldError or
    UnsupportedFieldError.
    """
    if not messages:
        raise FieldError("messages must hold at least one message", param="messages")
    return [_message(message, f"messages[{index}]", knows_developer, guard) for index, message in enumerate(messages)]


def _message(message: Message, at: str, knows_developer: bool, guard: Guard) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not knows_developer else message.role
    if message.content is None and message.role != "assistant":
        raise FieldError(f"{at}.content: a {message.role} message needs content", param=f"{at}.content")
    made: dict[str, Any] = {"role": role, "content": guard(_content(message.content, f"{at}.content"))}
    if message.name is not None:
        made["name"] = guard(message.name)
    if message.role == "tool" and message.tool_call_id is not None:
        made["tool_call_id"] = guard(message.tool_call_id)
    if message.role != "assistant":
        return made
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    if reasoning is not None:
        made["reasoning"] = made["reasoning_content"] = guard(reasoning)
    if message.tool_calls:
        made["tool_calls"] = [
            _tool_call(call, f"{at}.tool_calls[{index}]", guard) for index, call in enumerate(message.tool_calls)
        ]
    return made


def _content(content: str | list[ContentPart] | None, at: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for index, part in enumerate(content):
        if part.type != "text":
            raise UnsupportedFieldError(
                f"{at}[{index}].type: this server takes parts of type text alone", param=f"{at}[{index}].type"
            )
        if part.text is None:
            raise FieldError(f"{at}[{index}].text: a text part needs a text", param=f"{at}[{index}].text")
        texts.append(part.text)
    return "\n".join(texts)


def _tool_call(call: ToolCall, at: str, guard: Guard) -> dict[str, Any]:
    param = f"{at}.function.arguments"
    arguments: Any = {}
    if call.function.arguments:
        try:
            text = call.function.arguments.encode("utf-8")
            check_json_text(text)
            arguments = msgspec.json.decode(text)
        except (BadJsonError, msgspec.DecodeError):
            raise FieldError(f"{param}: not a JSON object in a string", param=param) from None
    if not isinstance(arguments, dict):
        raise FieldError(f"{param}: must be a JSON object in a string", param=param)
    function = {"name": guard(call.function.name), "arguments": _guarded(arguments, guard)}
    made: dict[str, Any] = {"type": call.type, "function": function}
    if call.id is not None:
        made["id"] = guard(call.id)
    return made


def _guarded(value: Any, guard: Guard) -> Any:
    """`value` with every text in it guarded; its depth is bounded by check_json_text."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, list):
        return [_guarded(item, guard) for item in value]
    if isinstance(value, dict):
        return {guard(key): _guarded(item, guard) for key, item in value.items()}
    return value
