"""The jinja2 sandbox that chat templates run in.

A chat template comes with a model file and sees a client's text, so it runs in jinja2's immutable sandbox, with bounds
on its loops, its repetitions and its output. (That stops what a client may set off; a template written to use up memory
still can.) What templates may call is what Hugging Face's ``apply_chat_template`` offers them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["METER", "Meter", "RefusedByTemplate", "TooMuchWork", "compile_template"]

METER = "poot meter"  # a space: no template can name it
_MAX_REPEATED = 1 << 20
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|[0-9]{4})")


class RefusedByTemplate(Exception):
    """The template called ``raise_exception``."""


class TooMuchWork(Exception):
    """The template looped for too long or made too much."""


@dataclass(slots=True)
class Meter:
    """One rendering's deadline, on ``time.monotonic``'s clock; looked at every 256 turns of its loops."""

    deadline: float
    turns: int = 0

    def check(self) -> None:
        if time.monotonic() > self.deadline:
            raise TooMuchWork("it ran for too long")

    def count(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.turns += 1
            if not self.turns & 255:
                self.check()
            yield item


@pass_context
def _metered(context: Context, items: Any) -> Any:
    if isinstance(items, Undefined):
        return items
    meter: Meter = context[METER]
    return meter.count(items)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja2's own filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise RefusedByTemplate(str(message))


class _Namespace(Namespace):
    """jinja2's namespace without underscore names, which jinja2 itself would look for on an object that it calls."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self = args[0]
        Namespace.__init__(self)
        for name, value in dict(*args[1:], **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a template's namespace may not hold {name!r}; names begin with a letter")
        super().__setitem__(name, value)


class _Generation(Extension):
    """``{% generation %}`` ... ``{% endgeneration %}`` marks what the assistant said, for training; here it is text."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on the operators that make much out of little."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if (
                    isinstance(many, str | list | tuple)
                    and isinstance(times, int)
                    and len(many) * times > _MAX_REPEATED
                ):
                    raise TooMuchWork(f"it repeats a value to over {_MAX_REPEATED} items")
        elif operator == "**" and (abs(left) > 1 << 32 or abs(right) > 64):
            raise TooMuchWork("it raises a number to a large power")
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise TooMuchWork("it pads a value to a large width")
        return super().call_binop(context, operator, left, right)


def compile_template(source: str, now: Callable[[], datetime]) -> Callable[[dict[str, Any]], Iterator[str]]:
    """A function from a template's variables, METER among them, to the pieces of its text.

    Whatever jinja2 raises for a bad template comes through.
    """
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters[METER] = _metered
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    environment.globals["namespace"] = _Namespace
    tree = environment.parse(source)
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, METER, [], [], None, None, lineno=loop.lineno)
    template = environment.from_string(tree)
    return template.generate
