"""Chat templates: a conversation to the text that a model was trained on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from poot_models.errors import TemplateError, TemplateRefusal, TemplateRenderError

__all__ = ["ChatTemplate"]

Message = Mapping[str, Any]

_MAX_SOURCE = 1 << 20
_MAX_OUTPUT = 8 << 20
_SECONDS = 5.0
_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "self"})
_REASONING = ("reasoning_content", "thinking", "reasoning")
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_ASKS_FOR_NONE = re.compile(r"""(?<!_)content['"\]]* +is +(?:not +)?none""", re.IGNORECASE)


class ChatTemplate:
    """A compiled jinja2 chat template. Renders as Hugging Face's ``apply_chat_template`` does; safe across threads.

    ``tool_use``: another template, for conversations with tools. ``special_tokens``: more named tokens, such as
    ``pad_token``. ``now``: the clock of ``strftime_now``. A rendering ends after ``max_seconds`` in loops or
    ``max_characters`` of text.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        tool_use: str | None = None,
        now: Callable[[], datetime] = datetime.now,
        max_seconds: float = _SECONDS,
        max_characters: int = _MAX_OUTPUT,
    ) -> None:
        """Raises ``TemplateError`` if a template does not compile."""
        self.source = source
        self._tokens = dict(special_tokens or {})
        self._tokens |= {
            name: text for name, text in (("bos_token", bos_token), ("eos_token", eos_token)) if text is not None
        }
        # Tool calls come with no content. Some templates ask for that; most search the content of every message.
        self._absent = None if _ASKS_FOR_NONE.search(source + (tool_use or "")) else ""
        self._max_seconds = max_seconds
        self._max_characters = max_characters
        self._plain = _compiled(source, now)
        self._tool_use = self._plain if tool_use is None else _compiled(tool_use, now)

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """The text of a conversation.

        ``add_generation_prompt``: end with the beginning of the assistant's turn. ``continue_final_message``: end
        inside the last message instead, right after its content. Keys of a message that are None are left out, except
        that every message has a ``content`` ("" where the template does not ask for none), and reasoning given as
        ``reasoning`` or ``thinking`` is also ``reasoning_content``.

        Raises ``TemplateRefusal`` if the template refuses the conversation, ``TemplateRenderError`` if it fails on it,
        takes too long or writes too much.
        """
        if reserved := sorted(_OURS.intersection(template_kwargs) | self._tokens.keys() & template_kwargs.keys()):
            raise TemplateRenderError(f"a template argument may not be named {reserved[0]!r}; leave it out")
        chat = [_prepared(message, self._absent) for message in messages]
        final = _tagged(chat) if continue_final_message else ""
        variables = {
            **self._tokens,
            **template_kwargs,
            "messages": chat,
            "tools": list(tools) if tools is not None else None,
            "documents": list(documents) if documents is not None else None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        text = self._run(self._tool_use if tools else self._plain, variables)
        return _untagged(text, final) if continue_final_message else text

    def _run(self, template: Callable[[dict[str, Any]], Any], variables: dict[str, Any]) -> str:
        from poot_models.text.template_environment import METER, Meter, RefusedByTemplate

        meter = Meter(time.monotonic() + self._max_seconds)
        parts: list[str] = []
        size = 0
        try:
            for part in template({**variables, METER: meter}):
                size += len(part)
                if size > self._max_characters:
                    break
                meter.check()
                parts.append(part)
        except RefusedByTemplate as refusal:
            raise TemplateRefusal(f"the model's chat template refuses this conversation: {refusal}") from None
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise TemplateRenderError(f"the chat template cannot render this conversation: {reason}") from error
        if size > self._max_characters:
            raise TemplateRenderError(f"the rendered conversation is over {self._max_characters} characters")
        return "".join(parts)


def _compiled(source: str, now: Callable[[], datetime]) -> Callable[[dict[str, Any]], Any]:
    from poot_models.text.template_environment import compile_template

    if len(source) > _MAX_SOURCE:
        raise TemplateError(f"the chat template has {len(source)} characters; the most is {_MAX_SOURCE}")
    try:
        return compile_template(source, now)
    except Exception as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__
        raise TemplateError(f"the chat template does not compile: {reason}{where}") from error


def _prepared(message: Message, absent: str | None) -> dict[str, Any]:
    chat = {name: value for name, value in message.items() if value is not None}
    chat.setdefault("content", absent)
    reasoning = next((chat[name] for name in _REASONING if name in chat), None)
    if reasoning is not None:
        chat = {"thinking": reasoning, **chat, "reasoning_content": reasoning}
    return chat


def _tagged(chat: list[dict[str, Any]]) -> str:
    """Marks the end of the last message's content and returns that content."""
    content = chat[-1].get("content") if chat else None
    if not isinstance(content, str):
        raise TemplateRenderError("there is no text in the last message to continue; give its content as a string")
    chat[-1]["content"] = content + _TAG
    return content


def _untagged(text: str, content: str) -> str:
    at = text.rfind(_TAG.strip())
    if at < 0 or content.strip() not in text:
        raise TemplateRenderError("the chat template leaves out the last message, so it cannot be continued")
    # A template that trims the content has trimmed the tag's space, so the content's own last spaces go too.
    return text[:at] if text.startswith(_TAG, at) else text[:at].rstrip()
