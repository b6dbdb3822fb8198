"""What a caller of `LLM` gives, checked."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from numbers import Integral
from typing import Any

from poot_batch.errors import RequestError

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


def prompt_list(given: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several as a list: a sequence of whole numbers is one. Raises RequestError for what is neither."""
    if isinstance(given, str | bytes | bytearray):
        return [given]
    try:
        if isinstance(given, Mapping | Set):
            raise TypeError(f"a {type(given).__name__} is no sequence")
        items: list[Any] = list(given)
    except TypeError as error:
        raise RequestError(f"prompts are text or token ids, one or several: {error}", param="prompt") from error
    if items and all(isinstance(item, Integral) for item in items):
        return [items]
    return items


def token_ids(prompt: Sequence[int]) -> tuple[int, ...]:
    """Raises RequestError for what is no sequence of whole numbers: bytes are text that was not decoded."""
    try:
        if isinstance(prompt, bytes | bytearray):
            raise TypeError(f"{type(prompt).__name__} must be decoded first")
        if any(isinstance(token, bool) for token in prompt):
            raise TypeError("a bool is no token id")
        return tuple(operator.index(token) for token in prompt)
    except TypeError as error:
        raise RequestError(f"a prompt is text or a sequence of token ids: {error}", param="prompt") from error


@contextmanager
def of_several(at: int, count: int) -> Iterator[None]:
    """A RequestError says which of several prompts it is about, counted from 0."""
    try:
        yield
    except RequestError as error:
        if count == 1:
            raise
        raise type(error)(f"prompt {at}: {error}", param=error.param) from error


def message_list(given: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages of a conversation, at least one. Raises RequestError for what is none."""
    try:
        items: list[Any] = [] if isinstance(given, str | Mapping) else list(given)
    except TypeError:
        items = []
    if not items:
        told = "a conversation is a list of messages, such as [{'role': 'user', 'content': 'Hello'}]"
        raise RequestError(told, param="messages")
    for at, message in enumerate(items):
        fault = _fault(message)
        if fault is not None:
            raise RequestError(f"message {at} {fault}", param="messages")
    return [dict(message) for message in items]


def _fault(message: Any) -> str | None:
    if not isinstance(message, Mapping):
        return f"must be a mapping with a role and a content, not {type(message).__name__}"
    if not isinstance(message.get("role"), str):
        return "has no role that is a text"
    content = message.get("content")
    if content is None:
        return None if message.get("tool_calls") else "has no content"
    return None if isinstance(content, str | list) else f"has a content that is no text, but {type(content).__name__}"


def guarded(value: Any, guard: Callable[[str], str]) -> Any:
    """`value` with every text in it guarded, so that the name of a control token stays text."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, Mapping):
        return {key: guarded(item, guard) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [guarded(item, guard) for item in value]
    return value
