"""In which of the forms that a message may have a template takes it, found by rendering small conversations.

Chat templates share no contract: one prints an argument object, the next adds its text to a string; one looks for parts
of a content, the next prints whatever the content is. What a template does with an example says more than its source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from poot_models.errors import TemplateError, TemplateRefusal

__all__ = ["Habits", "find_habits"]

Chat = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None

_FIRST, _SECOND, _NAME, _KEY, _VALUE = "poot-alpha", "poot-beta", "poot_call", "poot_key", "poot-value"
_USER = {"role": "user", "content": "poot-question"}
_ARGUMENTS = {_KEY: _VALUE}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": _NAME,
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": _KEY}}},
    },
}


@dataclass(frozen=True, slots=True)
class Habits:
    """How a template takes messages.

    ``part_roles``: the roles whose content may be a list of text parts, which then read as their texts in a row.
    ``only_parts``: those of them whose content is lost when it is a string. ``developer``: it knows that role.
    ``text_arguments``: a call's arguments must be JSON text, not the object. ``no_content``: what a message with calls
    has for the content that it lacks.
    """

    part_roles: frozenset[str] = frozenset()
    only_parts: frozenset[str] = frozenset()
    developer: bool = False
    text_arguments: bool = False
    no_content: str | None = ""


def find_habits(render: Callable[[Chat, Tools], str], constants: frozenset[str]) -> Habits:
    """``render``: messages as they are and tools to text, or a ``TemplateError`` or ``TemplateRefusal``.

    ``constants``: the strings in the template's code.
    """
    tools: Tools = None

    def shown(chat: Sequence[dict[str, Any]]) -> str | None:
        try:
            return render([dict(message) for message in chat], tools)
        except (TemplateError, TemplateRefusal):
            return None

    if shown([_USER]) is None:  # one of those for conversations with tools alone
        tools = [_TOOL]
        if shown([_USER]) is None:
            return Habits()
    text_arguments, no_content = _call_forms(shown)
    call = _call(json.dumps(_ARGUMENTS) if text_arguments else _ARGUMENTS, no_content)
    developer = "developer" in constants and _FIRST in (shown([{"role": "developer", "content": _FIRST}, _USER]) or "")
    places = {
        "system": ([], [_USER]),
        "user": ([], []),
        "assistant": ([_USER], [_USER]),
        "tool": ([_USER, call], []),
    }
    if developer:
        places["developer"] = places["system"]
    taken, only = set(), set()
    for role, (before, after) in places.items():
        fixed = {"role": role, "tool_call_id": call["tool_calls"][0]["id"]} if role == "tool" else {"role": role}
        parts = [{"type": "text", "text": text} for text in (_FIRST, _SECOND)]
        listed = shown([*before, {**fixed, "content": parts}, *after])
        plain = shown([*before, {**fixed, "content": _FIRST + _SECOND}, *after])
        if listed is not None and _FIRST + _SECOND in listed:
            if listed == plain:
                taken.add(role)
            elif plain is None or _FIRST not in plain:
                taken.add(role)
                only.add(role)
    return Habits(frozenset(taken), frozenset(only), developer, text_arguments, no_content)


def _call(arguments: Any, content: str | None) -> dict[str, Any]:
    function = {"name": _NAME, "arguments": arguments}
    # Nine letters and digits: some templates take no other identifiers.
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "pootcall1", "type": "function", "function": function}],
    }


def _call_forms(shown: Callable[[Sequence[dict[str, Any]]], str | None]) -> tuple[bool, str | None]:
    """Whether arguments must be text, and the content of a message that has calls alone."""
    for text_arguments in (False, True):
        arguments = json.dumps(_ARGUMENTS) if text_arguments else _ARGUMENTS
        found = {}
        for content in ("", None):
            text = shown([_USER, _call(arguments, content)])
            # Python's own text of an object is none that a model was trained on.
            if text is not None and _NAME in text and _VALUE in text and str(_ARGUMENTS) not in text:
                found[content] = text
        if not found:
            continue
        if None in found and found.get("") != found[None] and not _prints_none(found[None], found.get("", "")):
            return text_arguments, None
        return text_arguments, "" if "" in found else None
    return False, ""


def _prints_none(text: str, other: str) -> bool:
    return any(text.count(word) > other.count(word) for word in ("None", "null"))
