"""Conversations for chat templates: as templates read them (CHATS), and as clients of the server send them (SENT)."""

from __future__ import annotations

from typing import Any

Chat = list[dict[str, Any]]

ARGUMENTS = {"q": "ü <b>", "n": 2, "deep": {"on": True, "off": None, "list": [1, 2.5, "x"]}}
ARGUMENTS_TEXT = '{"q": "ü <b>", "n": 2, "deep": {"on": true, "off": null, "list": [1, 2.5, "x"]}}'
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "  Hello <b>\U0001f999</b> {{ 7 * 7 }}\n"}
ANSWER = {"role": "assistant", "content": "It is  4.\n"}
AGAIN = {"role": "user", "content": "Why?"}
THOUGHT = "Two and\n\ntwo.\n"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The tool {name} \u00e9 <x>.",
            "parameters": {
                "type": "object",
                "properties": {
                    "q": {"type": "string", "description": "what", "enum": ["a", "b"]},
                    "n": {"type": "integer", "description": "how many", "default": 3},
                    "deep": {"type": "object", "description": "a map", "additionalProperties": {"type": "boolean"}},
                },
                "required": ["q"],
            },
        },
    }
    for name in ("find", "add")
]
# Schemas that some templates do not expect.
ODD_TOOLS = [
    {"type": "function", "function": {"name": "now", "description": "The time."}},
    {"type": "function", "function": {"name": "none", "parameters": {"type": "object", "properties": {}}}},
    {
        "type": "function",
        "function": {
            "name": "odd",
            "description": 'Of "many"\nlines.',
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    "list": {"type": "array", "items": {"type": "number"}},
                    "maybe": {"type": ["string", "null"], "default": None},
                    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}], "description": "one of two"},
                    "point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
                    "points": {"type": "array", "items": {"type": "object", "properties": {"x": {"enum": [1, 2]}}}},
                },
                "additionalProperties": False,
            },
            "return": {"type": "string", "description": "what it is"},
        },
    },
]
# Arguments that some of the templates know, with values that some of them tell apart.
KWARGS: dict[str, list[Any]] = {
    "enable_thinking": [True, False],
    "thinking": [True, False],
    "thinking_mode": ["enabled", "disabled"],
    "thinking_effort": ["low"],
    "thinking_budget": [512],
    "reasoning_effort": ["low", "high", "no_think"],
    "model_identity": ["You are someone else."],
    "builtin_tools": [["python", "browser"]],
    "custom_tools": [TOOLS],
    "date_string": ["1 Jan 2000"],
    "clear_thinking": [False],
    "preserve_thinking": [True],
    "preserved_thinking": [True],
    "keep_past_thinking": [True],
    "drop_thinking": [False],
    "add_vision_id": [True],
    "controls": [{"length": "long"}],
}


def _call(name: str, number: int, arguments: Any) -> dict[str, Any]:
    # Nine letters and digits: Mistral's templates take no other identifier.
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(number: int, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "content": content, **more}


def _parts(*texts: str) -> Chat:
    return [{"type": "text", "text": text} for text in texts]


def _calls(content: Any, arguments: Any, more: Any = None, **fields: Any) -> dict[str, Any]:
    calls = [_call("find", 1, arguments), *([_call("add", 2, more)] if more is not None else [])]
    return {"role": "assistant", "content": content, "tool_calls": calls, **fields}


def _chats(arguments: Any, none: Any) -> dict[str, Chat]:
    """`arguments`: of a call, in the form under test. `none`: arguments of a call that has none."""
    one = _calls("", arguments)
    two = _calls("I look.", arguments, none)
    return {
        "user": [USER],
        "system": [SYSTEM, USER],
        "turns": [SYSTEM, USER, ANSWER, AGAIN],
        "developer": [{"role": "developer", "content": "Be brief."}, USER],
        "developer later": [USER, ANSWER, {"role": "developer", "content": "Be long."}, AGAIN],
        "two systems": [SYSTEM, SYSTEM, USER],
        "system later": [USER, ANSWER, SYSTEM, AGAIN],
        "users in a row": [USER, AGAIN],
        "ends with an answer": [USER, ANSWER],
        "only an answer": [ANSWER],
        "empty texts": [{"role": "system", "content": ""}, {"role": "user", "content": ""}],
        "unknown role": [USER, {"role": "critic", "content": "no"}],
        "names": [{**USER, "name": "ann"}, {**ANSWER, "name": "bot"}, {**AGAIN, "name": "ann"}],
        "call": [USER, one, _result(1, "nothing")],
        "call ends": [USER, one],
        "call without content": [SYSTEM, USER, _calls(None, arguments), _result(1, "nothing")],
        "call with text": [USER, _calls("I look.", arguments), _result(1, '{"found": []}'), ANSWER, AGAIN],
        "calls in one turn": [USER, two, _result(1, "first"), _result(2, "second")],
        "calls and an answer": [SYSTEM, USER, two, _result(1, "first"), _result(2, "second"), ANSWER, AGAIN],
        "results swapped": [USER, two, _result(2, "second"), _result(1, "first")],
        "rounds": [USER, one, _result(1, "a"), _calls("", none), _result(1, "b"), ANSWER, AGAIN, one, _result(1, "c")],
        "named results": [USER, two, _result(1, "first", name="find"), _result(2, "second", name="add")],
        "result in parts": [USER, one, _result(1, _parts("a", "b"))],
        "parts": [{"role": "user", "content": _parts(" one", "two ")}],
        "parts of all": [
            {"role": "system", "content": _parts("Be brief.", "Be kind.")},
            {"role": "user", "content": _parts("Hello")},
            {"role": "assistant", "content": _parts("It is", " 4.")},
            {"role": "user", "content": _parts("Why", "?\n")},
        ],
        "reasoning_content": [USER, {**ANSWER, "reasoning_content": THOUGHT}, AGAIN],
        "thinking": [USER, {**ANSWER, "thinking": THOUGHT}, AGAIN],
        "reasoning": [USER, {**ANSWER, "reasoning": THOUGHT}, AGAIN],
        "inline reasoning": [USER, {**ANSWER, "content": f"<think>\n{THOUGHT}</think>\n\nIt is 4."}, AGAIN],
        "reasoning ends": [USER, {**ANSWER, "reasoning_content": THOUGHT}],
        "reasoning and calls": [
            USER,
            _calls("", arguments, reasoning_content=THOUGHT),
            _result(1, "nothing"),
            _calls("I add.", none, reasoning_content="And on."),
            _result(1, "more"),
        ],
    }


CHATS: dict[str, Chat] = {
    **_chats(ARGUMENTS, {}),
    **{f"{name}, arguments as text": chat for name, chat in _chats(ARGUMENTS_TEXT, "{}").items() if "call" in name},
    "nothing": [],
    "an image": [{"role": "user", "content": [{"type": "image"}, *_parts("What is it?")]}],
    "other arguments": [USER, _calls("", [1, "x"]), _result(1, "nothing")],
}
# What OpenAI's interface allows: arguments are JSON in a string, and there are five roles.
SENT: dict[str, Chat] = {
    name: chat for name, chat in _chats(ARGUMENTS_TEXT, "{}").items() if name not in {"unknown role"}
} | {"call with empty arguments": [USER, _calls("", ""), _result(1, "nothing")]}
