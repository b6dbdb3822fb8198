"""The jinja2 sandbox that chat templates run in.

A chat template comes with a model file and sees a client's text, so it runs in jinja2's immutable sandbox, and the
``Meter`` of the rendering sees everything that it does: operators, calls and filters here, the rest in
``template_metering``. What templates may call is what Hugging Face's ``apply_chat_template`` offers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import meta, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from poot_models.errors import TemplateError
from poot_models.text.template_bounds import FILTERS, METHODS, check_binop, check_words, joinable
from poot_models.text.template_format import BoundedEscapeFormatter, BoundedFormatter, tojson
from poot_models.text.template_meter import TURN, Counted, TooMuchWork
from poot_models.text.template_metering import OURS, meter_of, metered, read
from poot_models.text.template_names import outer_names

__all__ = ["Compiled", "RefusedByTemplate", "compile_template"]

# Tests whose work grows with what they are given.
_WIDE_TESTS = (
    *("in", "lower", "upper", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge"),
    *("<", "lt", "lessthan", "<=", "le"),
)
_MAX_TIME_FORMAT = 1024
# Words and signs of jinja, and the texts between, and levels of an expression. The most of a published template known
# are 2,461 (Kimi-K3) and 26 (DeepSeek-V3.2). Compiling takes up to 3 s and 60 MB of a template written to take long;
# its time grows with the square of both and more.
_MAX_WORDS = 8 << 10
_MAX_DEPTH = 40
_SCOPES = ("_loop_vars", "_block_vars")  # what jinja2's code passes along with every call in a loop or block


class RefusedByTemplate(Exception):
    """The template called ``raise_exception``."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """``generate``: a template's variables, the ``Meter`` under METER among them, to the pieces of its text.

    ``reads``: the variables that it looks for. ``constants``: the strings in its code.
    """

    generate: Callable[[dict[str, Any]], Iterator[str]]
    reads: frozenset[str]
    constants: frozenset[str]


def _raise_exception(message: object) -> NoReturn:
    raise RefusedByTemplate(str(message))


class _Dict:
    """``dict`` for templates, which could change a dictionary through the class itself.

    Keys are taken one by one: numbers may be chosen so that all of them are looked for in one place.
    """

    @pass_context
    def __call__(self, context: Context, /, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        if not args or isinstance(args[0], Mapping):
            return dict(*args, **kwargs)
        return {**_dict_of(context, *args), **kwargs}

    @pass_context
    def fromkeys(self, context: Context, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return _dict_of(context, ((key, value) for key in keys))


def _dict_of(context: Context, pairs: Iterable[Any]) -> dict[Any, Any]:
    made = {}
    for key, value in meter_of(context).count(pairs):
        made[key] = value
    return made


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

    def __repr__(self) -> str:
        # It may hold itself, or others that hold others: nothing bounds how long its values would be.
        return "<Namespace>"


class _Generation(Extension):
    """``{% generation %}`` ... ``{% endgeneration %}`` marks what the assistant said, for training; here it is text."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, which looks at operators, calls, filters and tests before and after they run."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = tojson
        self.filters = {name: _bounded(name, inner) for name, inner in self.filters.items()}
        self.filters |= OURS
        for name in _WIDE_TESTS:
            inner: Any = self.tests[name]
            self.tests[name] = _metered_test(inner)

        def strftime_now(form: str) -> str:
            if len(form) > _MAX_TIME_FORMAT:
                raise TooMuchWork(f"it formats the time by over {_MAX_TIME_FORMAT} characters")
            return now().strftime(form)

        lipsum: Any = self.globals["lipsum"]

        def bounded_lipsum(*args: Any, **kwargs: Any) -> Any:
            check_words(*args, **kwargs)
            return lipsum(*args, **kwargs)

        self.globals |= {
            "dict": _Dict(),
            "lipsum": bounded_lipsum,
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
        }

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = meter_of(context)
        check_binop(meter, operator, left, right)
        return meter.made(self.binop_table[operator](left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        meter = meter_of(context)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str | bytes | int):
            meter.spend(TURN + (0 if isinstance(owner, int) else len(owner)))
            if (bound := METHODS.get(obj.__name__)) is not None:
                bound(meter, owner, *args, **{name: kwargs[name] for name in kwargs if name not in _SCOPES})
            elif obj.__name__ == "join" and args and not isinstance(owner, int):
                args = (joinable(meter, args[0], len(owner)), *args[1:])
        elif isinstance(obj, LoopContext) and args:  # the loop goes into what lies below an item
            args = (meter.count(args[0]), *args[1:])
        else:
            meter.spend(TURN)
        return meter.made(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__
        by_map = value.__name__ == "format_map"

        def formatted(*args: Any, **kwargs: Any) -> str:
            if by_map and (kwargs or len(args) != 1):
                raise TypeError("format_map() takes one mapping")
            escape = getattr(text, "escape", None)  # of text that is marked as safe
            formatter = BoundedEscapeFormatter(self, escape=escape) if escape else BoundedFormatter(self)
            made = formatter.vformat(text, (), args[0]) if by_map else formatter.vformat(text, args, kwargs)
            return type(text)(made)

        return formatted


def _bounded(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    """A filter between its bound, if it has one, and the measuring of what it made."""
    bound = FILTERS.get(name)
    passed = getattr(getattr(inner, "jinja_pass_arg", None), "name", None)

    # As pass_context it is also never run while a template compiles, where nothing would bound it.
    @pass_context
    def filtered(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = meter_of(context)
        depth = value.depth if isinstance(value, Counted) else 0
        meter.spend(TURN + (len(value) if isinstance(value, str) else 0))
        if bound is not None:
            value = bound(meter, value, *args, **kwargs)
        if passed is None:
            return meter.made(inner(value, *args, **kwargs), depth)
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}[passed]
        return meter.made(inner(first, value, *args, **kwargs), depth)

    return filtered


def _metered_test(inner: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def tested(context: Context, value: Any, *args: Any) -> Any:
        for operand in (value, *args):
            read(context, operand)
        return inner(value, *args)

    return tested


def _check_depth(tree: nodes.Template) -> None:
    """``TemplateError`` for an expression that nests too deeply for jinja2, which at each level tries anew to compute
    what is below while it compiles."""
    level: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while level:
        node, depth = level.pop()
        if depth > _MAX_DEPTH:
            raise TemplateError(
                f"the chat template has an expression of over {_MAX_DEPTH} levels in line {node.lineno}, nested too "
                "deeply: give parts of it names with set"
            )
        below = depth + 1 if isinstance(node, nodes.Expr | nodes.Helper) else 0
        level += [(child, below) for child in node.iter_child_nodes()]


def compile_template(source: str, now: Callable[[], datetime]) -> Compiled:
    """Raises ``TemplateError`` for a template of too many words; whatever jinja2 raises for a bad one comes through."""
    environment = _Environment(now)
    for count, word in enumerate(environment.lexer.tokenize(source), 1):
        if count > _MAX_WORDS:
            raise TemplateError(
                f"the chat template has over {_MAX_WORDS} words and signs of jinja by line {word.lineno}; "
                "the most is that many: shorten it"
            )
    tree = environment.parse(source)
    _check_depth(tree)
    constants = frozenset(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    reads = outer_names(tree) & meta.find_undeclared_variables(tree)  # which also folds constants together
    template = environment.from_string(metered(tree))
    return Compiled(template.generate, reads, constants)
