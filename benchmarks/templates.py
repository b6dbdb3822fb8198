"""Chat templates beside transformers' own rendering of them, over conversations of many kinds.

    python benchmarks/templates.py                  print a line a template: cases, and what they came to
    python benchmarks/templates.py --check          also print PASS or FAIL, and exit 1 on FAIL
    python benchmarks/templates.py --only TEXT      only templates whose name contains TEXT

A case is one conversation with or without tools, with or without the beginning of the assistant's turn; or with an
argument that the template reads; or one as a client sends it to the server. It passes when both texts are equal or
both sides refuse it, ours with the reason of a template that gives one itself. No case is left out.

transformers gets the very messages that poot's template gets, but for what poot prepares on purpose: a message without
content (transformers leaves the key out) has "" or, beside tool calls, what the template was found to want
(`Habits.no_content`); and what a client sends is put into the form that the template was found to take (`prepared`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from template_cases import CHATS, KWARGS, ODD_TOOLS, SENT, TOOLS
from transformers.utils import chat_template_utils

from poot_models.errors import TemplateRefusal, TemplateRenderError
from poot_models.text import ChatTemplate, Habits

TEMPLATES = Path(__file__).parent.parent / "tests" / "data" / "templates"
NOW = datetime(2025, 3, 14, 15, 9)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@dataclass
class Outcome:
    """Cases by what they came to; `wrong` describes those that differ."""

    equal: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.wrong and self.equal > 0

    def __iadd__(self, other: Outcome) -> Outcome:
        self.equal, self.refused = self.equal + other.equal, self.refused + other.refused
        self.wrong += other.wrong
        return self


class Stopped(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return NOW


@contextmanager
def stopped_clock() -> Iterator[None]:
    """transformers renders at NOW."""
    real = chat_template_utils.datetime
    chat_template_utils.datetime = Stopped
    try:
        yield
    finally:
        chat_template_utils.datetime = real


def reference(source: str, chat: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """What transformers makes of it; raises whatever it raises."""
    rendered, _ = chat_template_utils.render_jinja_template([chat], chat_template=source, **TOKENS, **options)
    return rendered[0]


def our_template(source: str) -> ChatTemplate:
    return ChatTemplate(source, now=lambda: NOW, **TOKENS)


def with_content(chat: list[dict[str, Any]], habits: Habits) -> list[dict[str, Any]]:
    """The messages with what poot puts where content is missing; other keys that are None are left out, as
    transformers' apply_chat_template does before it renders."""
    full = []
    for message in chat:
        kept = {key: value for key, value in message.items() if value is not None}
        kept.setdefault("content", habits.no_content if kept.get("tool_calls") else "")
        full.append(kept)
    return full


def compare(name: str, want: Any, ours: Any) -> Outcome:
    """`want` and `ours` are texts, or the exceptions that took their place."""
    if isinstance(want, Exception) and isinstance(ours, TemplateRefusal | TemplateRenderError):
        # jinja2's TemplateError itself, and no class of it, is what a template raises.
        stated = type(want).__name__ == "TemplateError"
        if isinstance(ours, TemplateRefusal) == stated and (not stated or str(want)[:2000] in str(ours)):
            return Outcome(refused=1)
    elif isinstance(want, str) and want == ours:
        return Outcome(equal=1)
    return Outcome(wrong=[f"{name}: transformers {_shown(want, ours)}, poot {_shown(ours, want)}"])


def _shown(result: Any, other: Any) -> str:
    if not isinstance(result, str) or not isinstance(other, str):
        return repr(result)[:200]
    same = next((at for at, (a, b) in enumerate(zip(result, other, strict=False)) if a != b), 0)
    return repr(result[max(0, same - 40) : same + 40])


def attempt(work: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return work(*arguments, **options)
    except Exception as error:  # the reference lets anything through
        return error


def check_chats(source: str) -> Outcome:
    """Conversations as a template reads them."""
    template, outcome = our_template(source), Outcome()
    cases: list[tuple[str, dict[str, Any]]] = [
        (name, {"tools": tools, "add_generation_prompt": prompt})
        for name, tools, prompt in product(CHATS, (None, TOOLS), (True, False))
    ]
    cases += [(name, {"tools": ODD_TOOLS, "add_generation_prompt": True}) for name in ("user", "turns", "rounds")]
    for argument in sorted(template.variables & KWARGS.keys()):
        for value, name in product(KWARGS[argument], ("turns", "reasoning and calls")):
            cases.append((name, {"tools": TOOLS, "add_generation_prompt": True, argument: value}))
    for name, options in cases:
        want = attempt(reference, source, with_content(CHATS[name], template.habits), options)
        ours = attempt(template.render, CHATS[name], **options)
        outcome += compare(f"{name} {_brief(options)}", want, ours)
    return outcome


def _brief(options: dict[str, Any]) -> str:
    return " ".join(f"{name}={'...' if isinstance(value, list) else value}" for name, value in options.items())


def prepared(chat: list[dict[str, Any]], habits: Habits) -> list[dict[str, Any]]:
    """What a client sent, in the form that the template takes, written here without the server's code."""
    made = []
    for sent in chat:
        message = dict(sent)
        if message["role"] == "developer" and not habits.developer:
            message["role"] = "system"
        if isinstance(message["content"], list) and message["role"] not in habits.part_roles:
            message["content"] = "\n".join(part["text"] for part in message["content"])
        if calls := message.get("tool_calls"):
            message["content"] = message["content"] or habits.no_content
            message["tool_calls"] = [_prepared_call(call, habits) for call in calls]
        if "thinking" in message:
            message["reasoning_content"] = message.pop("thinking")
        elif "reasoning" in message:
            message["reasoning_content"] = message["reasoning"]
        if "reasoning_content" in message:
            message["reasoning"] = message["reasoning_content"]
        made.append(message)
    return made


def _prepared_call(call: dict[str, Any], habits: Habits) -> dict[str, Any]:
    text = call["function"]["arguments"] or "{}"
    arguments = text if habits.text_arguments else json.loads(text)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def check_sent(source: str) -> Outcome:
    """Conversations as a client sends them, through the server's own reading of a request."""
    from poot_serve.lower import unbuilt
    from poot_serve.lower.conversation import rendered
    from poot_serve.lower.decode import decode_body
    from poot_serve.protocol.chat import ChatRequest

    template, outcome = our_template(source), Outcome()
    # No name of a control token is in these conversations, so there is nothing to guard.
    text = SimpleNamespace(chat_template=template, tokenizer=SimpleNamespace(guard=lambda text: text))
    for name, prompt in product(SENT, (True, False)):
        body = json.dumps({"messages": SENT[name], "add_generation_prompt": prompt}).encode()
        options = {"add_generation_prompt": prompt}
        want = attempt(reference, source, prepared(SENT[name], template.habits), options)
        wire = decode_body(body, ChatRequest, unbuilt.CHAT)
        ours = attempt(rendered, wire, wire.messages, text)
        outcome += compare(f"sent: {name} {_brief(options)}", want, ours)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    paths = [path for path in sorted(TEMPLATES.glob("*.jinja")) if arguments.only in path.stem]
    width = max((len(path.stem) for path in paths), default=0)
    passed, began = 0, time.perf_counter()
    with stopped_clock():
        for path in paths:
            source = path.read_text("utf-8")
            outcome = check_chats(source)
            outcome += check_sent(source)
            passed += outcome.passed
            verdict = f"  {'PASS' if outcome.passed else 'FAIL'}" if arguments.check else ""
            print(
                f"{path.stem:{width}}  {outcome.equal:4} equal  {outcome.refused:4} refused by both  "
                f"{len(outcome.wrong):3} different{verdict}"
            )
            for line in outcome.wrong[:5]:
                print(f"    {line}")
    print(f"{passed} of {len(paths)} templates, {time.perf_counter() - began:.1f} s")
    return int(arguments.check and (passed < len(paths) or not paths))


if __name__ == "__main__":
    raise SystemExit(main())
