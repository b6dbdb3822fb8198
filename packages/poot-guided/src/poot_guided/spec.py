"""Constraints as values, and the checks that need no automaton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from poot_guided.errors import ConstraintError
from poot_guided.limits import DEFAULT, Limits


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole output matches this regular expression."""

    pattern: str


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The output is JSON that this schema (json-schema.org, draft 2020-12) accepts: an object, or true."""

    schema: dict[str, Any] | bool


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The output is some JSON object."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The output is in the language of this GBNF grammar (llama.cpp's notation), from rule `root`."""

    gbnf: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The output is one of these strings."""

    options: tuple[str, ...]


Constraint: TypeAlias = Regex | JsonSchema | JsonObject | Grammar | Choice


def check(constraint: Constraint, limits: Limits = DEFAULT) -> None:
    """Raise ConstraintError for a constraint that is empty, false or beyond the limits."""
    match constraint:
        case Regex(pattern):
            _check_text("the regular expression", pattern, limits)
        case Grammar(gbnf):
            _check_text("the grammar", gbnf, limits)
        case Choice(options):
            if not options or "" in options:
                raise ConstraintError("a choice needs at least one option, and no empty one")
            if len(options) > limits.choices:
                raise ConstraintError(f"a choice of {len(options)} options; at most {limits.choices} are taken")
            _check_text("the choice", "".join(options), limits)
        case JsonSchema(schema):
            if schema is False:
                raise ConstraintError("the schema false accepts nothing")
            _check_schema(schema, limits)
        case JsonObject():
            return


def _check_text(what: str, text: str, limits: Limits) -> None:
    if not 0 < len(text) <= limits.text:
        raise ConstraintError(f"{what} must have 1 to {limits.text} characters, not {len(text)}")


def _check_schema(schema: object, limits: Limits) -> None:
    """Nodes and depth, without recursion: a client's schema may be nested thousands deep."""
    waiting, nodes = [(schema, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        nodes += 1
        if nodes > limits.nodes:
            raise ConstraintError(f"the schema has more than {limits.nodes} nodes")
        if depth > limits.depth:
            raise ConstraintError(f"the schema is nested more than {limits.depth} levels deep")
        if isinstance(node, dict):
            waiting += [(child, depth + 1) for child in node.values()]
        elif isinstance(node, list):
            waiting += [(child, depth + 1) for child in node]
        elif isinstance(node, str) and len(node) > limits.text:
            raise ConstraintError(f"a string of the schema has {len(node)} characters; at most {limits.text} are taken")
