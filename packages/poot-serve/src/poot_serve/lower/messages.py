"""Wire messages to the plain dictionaries that chat templates read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from poot_models.text import Habits
from poot_models.text.encoders import GUARD
from poot_serve.errors import BadJsonError, FieldError, UnsupportedFieldError
from poot_serve.limits.json_text import check_json_text
from poot_serve.protocol.chat import ContentPart, Message, ToolCall

Guard = Callable[[str], str]


def template_messages(messages: Sequence[Message], *, habits: Habits, guard: Guard) -> list[dict[str, Any]]:
    """One dictionary a message (of one or more), in order and in the forms that the template takes.

    A list of text parts stays one for a template that reads such lists; for others it becomes one string, joined by
    newlines. `developer` becomes `system` for a template that does not know the role, a call's arguments become an
    object unless the template wants their text, and a message of calls alone has no content. Every text of the client
    goes through `guard` (`Tokenizer.guard`), so that the name of a control token in it stays text. Raises FieldError
    or UnsupportedFieldError.
    """
    return [_message(message, f"messages[{index}]", habits, guard) for index, message in enumerate(messages)]


def _message(message: Message, at: str, habits: Habits, guard: Guard) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not habits.developer else message.role
    if message.content is None and message.role != "assistant":
        raise FieldError(f"{at}.content: a {message.role} message needs content", param=f"{at}.content")
    made: dict[str, Any] = {"role": role}
    calls = message.tool_calls if message.role == "assistant" else None
    if message.content or not calls:
        made["content"] = _content(message.content, f"{at}.content", role, habits, guard)
    if message.name is not None:
        made["name"] = guard(message.name)
    if message.role == "tool" and message.tool_call_id is not None:
        made["tool_call_id"] = guard(message.tool_call_id)
    if message.role != "assistant":
        return made
    names = (message.reasoning_content, message.thinking, message.reasoning)
    reasoning = next((text for text in names if text is not None), None)
    if reasoning is not None:
        made["reasoning"] = made["reasoning_content"] = guard(reasoning)
    if calls:
        made["tool_calls"] = [
            _tool_call(call, f"{at}.tool_calls[{index}]", habits, guard) for index, call in enumerate(calls)
        ]
    return made


def _content(
    content: str | list[ContentPart] | None, at: str, role: str, habits: Habits, guard: Guard
) -> str | list[dict[str, str]]:
    if content is None or isinstance(content, str):
        text = guard(content or "")
        return [_part(text)] if role in habits.only_parts else text
    texts = _texts(content, at)
    if role in habits.part_roles and texts:
        return [_part(text) for text in _guarded_parts(texts, guard)]
    return guard("\n".join(texts))


def _texts(content: list[ContentPart], at: str) -> list[str]:
    texts: list[str] = []
    for index, part in enumerate(content):
        if part.type != "text":
            raise UnsupportedFieldError(
                f"{at}[{index}].type: this server takes parts of type text alone", param=f"{at}[{index}].type"
            )
        if part.text is None:
            raise FieldError(f"{at}[{index}].text: a text part needs a text", param=f"{at}[{index}].text")
        texts.append(part.text)
    return texts


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _guarded_parts(texts: list[str], guard: Guard) -> list[str]:
    """Each text guarded, also against a control token that begins in one and ends in another."""
    parts = [guard(text) for text in texts]
    if "".join(parts) == guard("".join(texts)):
        return parts
    return [part + GUARD for part in parts[:-1]] + parts[-1:]


def _tool_call(call: ToolCall, at: str, habits: Habits, guard: Guard) -> dict[str, Any]:
    param = f"{at}.function.arguments"
    given = call.function.arguments or "{}"
    try:
        text = given.encode("utf-8")
        check_json_text(text)
        arguments = msgspec.json.decode(text)
    except (BadJsonError, msgspec.DecodeError):
        raise FieldError(f"{param}: not a JSON object in a string", param=param) from None
    if not isinstance(arguments, dict):
        raise FieldError(f"{param}: must be a JSON object in a string", param=param)
    function = {
        "name": guard(call.function.name),
        "arguments": guard(given) if habits.text_arguments else guarded(arguments, guard),
    }
    made: dict[str, Any] = {"type": call.type, "function": function}
    if call.id is not None:
        made["id"] = guard(call.id)
    return made


def guarded(value: Any, guard: Guard) -> Any:
    """`value` with every text in it guarded; its depth is bounded by check_json_text."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, list):
        return [guarded(item, guard) for item in value]
    if isinstance(value, dict):
        return {guard(key): guarded(item, guard) for key, item in value.items()}
    return value
