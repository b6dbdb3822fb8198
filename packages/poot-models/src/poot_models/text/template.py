"""Chat templates: a conversation to the text that a model was trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from poot_models.errors import TemplateError, TemplateRefusal, TemplateRenderError
from poot_models.text.template_habits import Habits, find_habits

if TYPE_CHECKING:
    from poot_models.text.template_environment import Compiled

__all__ = ["ChatTemplate"]

Message = Mapping[str, Any]

_MAX_SOURCE = 1 << 18
_MAX_OUTPUT = 8 << 20
_SECONDS = 5.0
_MAX_REASON = 2000
_HABIT_WORK = 1 << 19  # what a small conversation may take, in a meter's units; published templates take a 20th
_OURS = frozenset({
    *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "self"),
    *(f"{name}_token" for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")),
})  # fmt: skip
_REASONING = ("reasoning_content", "thinking", "reasoning")
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """A compiled jinja2 chat template. Renders as Hugging Face's ``apply_chat_template`` does; safe across threads.

    ``tool_use``: another template, for conversations with tools. ``special_tokens``: more named tokens, such as
    ``pad_token``. ``now``: the clock of ``strftime_now``. A rendering ends after ``max_seconds``, or
    ``max_characters`` of text; ``template_meter`` bounds what it makes on the way.

    ``habits``: the forms of messages that the template for conversations without tools takes. ``variables``: the names
    that the templates look for and that ``render`` does not set itself, so that a caller may.
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
        """Raises ``TemplateError`` if a template does not compile, or is so large that it would take seconds to."""
        self.source = source
        self._tokens = dict(special_tokens or {})
        self._tokens |= {
            name: text for name, text in (("bos_token", bos_token), ("eos_token", eos_token)) if text is not None
        }
        self._max_seconds = max_seconds
        self._max_characters = max_characters
        self._plain = _compiled(source, now)
        self.habits = self._tool_habits = self._habits(self._plain)
        self._tool_use = self._plain
        if tool_use is not None:
            self._tool_use = _compiled(tool_use, now)
            self._tool_habits = self._habits(self._tool_use)
        self.variables = (self._plain.reads | self._tool_use.reads) - _OURS - self._tokens.keys()

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
        inside the last message instead, right after its content or the text of its last part. Keys of a message that
        are None are left out, except that every message has a ``content`` ("", or ``habits.no_content`` beside tool
        calls), and reasoning given as ``reasoning`` or ``thinking`` is also ``reasoning_content``.

        Raises ``TemplateRefusal`` if the template refuses the conversation, ``TemplateRenderError`` if it fails on it,
        takes too long or writes too much.
        """
        if reserved := sorted(_OURS.intersection(template_kwargs) | self._tokens.keys() & template_kwargs.keys()):
            raise TemplateRenderError(f"a template argument may not be named {reserved[0]!r}; leave it out")
        template, habits = (self._tool_use, self._tool_habits) if tools else (self._plain, self.habits)
        chat = [_prepared(message, habits.no_content) for message in messages]
        final = _tagged(chat) if continue_final_message else ""
        variables = {
            **self._tokens,
            **template_kwargs,
            "messages": chat,
            "tools": list(tools) if tools is not None else None,
            "documents": list(documents) if documents is not None else None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        text = self._run(template, variables)
        return _untagged(text, final) if continue_final_message else text

    def _habits(self, template: Compiled) -> Habits:
        def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
            variables = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
            return self._run(template, {**self._tokens, **variables}, _HABIT_WORK)

        return find_habits(render, template.constants)

    def _run(self, template: Compiled, variables: dict[str, Any], work: int | None = None) -> str:
        from poot_models.text.template_environment import RefusedByTemplate
        from poot_models.text.template_meter import MAX_WORK, METER, Meter

        meter = Meter(time.monotonic() + self._max_seconds, work or MAX_WORK)
        parts: list[str] = []
        size = 0
        try:
            for part in template.generate({**variables, METER: meter}):
                size += len(part)
                if size > self._max_characters:
                    break
                parts.append(part)
        except RefusedByTemplate as refusal:
            reason = str(refusal)[:_MAX_REASON]
            raise TemplateRefusal(f"the model's chat template refuses this conversation: {reason}") from None
        except Exception as error:
            reason = (str(error) or type(error).__name__)[:_MAX_REASON]
            raise TemplateRenderError(f"the chat template cannot render this conversation: {reason}") from error
        if size > self._max_characters:
            raise TemplateRenderError(f"the rendered conversation is over {self._max_characters} characters")
        return "".join(parts)


def _compiled(source: str, now: Callable[[], datetime]) -> Compiled:
    from poot_models.text.template_environment import compile_template

    if len(source) > _MAX_SOURCE:
        raise TemplateError(f"the chat template has {len(source)} characters; the most is {_MAX_SOURCE}")
    try:
        return compile_template(source, now)
    except TemplateError:
        raise
    except Exception as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__
        raise TemplateError(f"the chat template does not compile: {reason}{where}") from error


def _prepared(message: Message, no_content: str | None) -> dict[str, Any]:
    chat = {name: value for name, value in message.items() if value is not None}
    chat.setdefault("content", no_content if chat.get("tool_calls") else "")
    reasoning = next((chat[name] for name in _REASONING if name in chat), None)
    if reasoning is not None:
        chat = {"thinking": reasoning, **chat, "reasoning_content": reasoning}
    return chat


def _tagged(chat: list[dict[str, Any]]) -> str:
    """Marks the end of the last message's text, as transformers does, and returns that text."""
    content = chat[-1].get("content") if chat else None
    if isinstance(content, str):
        chat[-1]["content"] = content + _TAG
        return content
    parts = list(content) if isinstance(content, list) else []
    for index, part in reversed(list(enumerate(parts))):
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            text: str = part["text"]
            parts[index] = {**part, "text": text + _TAG}
            chat[-1]["content"] = parts
            return text
    raise TemplateRenderError("there is no text in the last message to continue; give its content as a string")


def _untagged(text: str, content: str) -> str:
    at = text.rfind(_TAG.strip())
    if at < 0 or content.strip() not in text:
        raise TemplateRenderError("the chat template leaves out the last message, so it cannot be continued")
    # A template that trims the content has trimmed the tag's space, so the content's own last spaces go too.
    return text[:at] if text.startswith(_TAG, at) else text[:at].rstrip()
