"""A template's syntax tree, rewritten so that the ``Meter`` of a rendering sees what jinja2 does not hand over.

Loops, literals, ``~``, slices, comparisons and output pass through filters of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from types import MappingProxyType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import Context, Undefined, markup_join, str_join
from jinja2.visitor import NodeTransformer

from poot_models.text.template_meter import METER, TURN, Meter

__all__ = ["OURS", "meter_of", "metered", "read"]

# Names of our filters: with a space, so that no template can write them.
_EACH, _JOIN, _MADE, _READ, _WRITE, _WRITTEN = (
    f"poot {name}" for name in ("each", "join", "made", "read", "write", "written")
)


def meter_of(context: Context) -> Meter:
    meter: Meter = context.parent[METER]  # where the variables of a rendering are; looked up for every value
    return meter


@pass_context
def _each(context: Context, items: Any) -> Any:
    return items if isinstance(items, Undefined) else meter_of(context).count(items)


@pass_context
def _joined(context: Context, *parts: Any) -> str:
    meter, size = meter_of(context), 0
    for part in parts:
        size += len(part) if isinstance(part, str) else meter.size(part)
    meter.room(size)
    made: str = meter.made((markup_join if context.eval_ctx.autoescape else str_join)(parts))
    return made


@pass_context
def _made(context: Context, value: Any) -> Any:
    return meter_of(context).made(value)


@pass_context
def read(context: Context, value: Any) -> Any:
    meter_of(context).spend(TURN + (len(value) if isinstance(value, Sized) and not isinstance(value, Undefined) else 0))
    return value


@pass_context
def _write(context: Context, value: Any) -> Any:
    meter = meter_of(context)
    meter.write(len(value) if isinstance(value, str) else meter.size(value))
    return value


@pass_context
def _written(context: Context, characters: int) -> str:
    meter_of(context).write(characters)
    return ""


class _Metering(NodeTransformer):
    """Sends what a template makes, reads and writes through the filters above."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through(_EACH, node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        # jinja2 writes constants into its code, where filters of ours would keep it from seeing them as such.
        constants = [_constant_text(child) for child in node.nodes]
        self.generic_visit(node)
        node.nodes = [
            _through(_WRITE, child) if text is None else child
            for child, text in zip(node.nodes, constants, strict=True)
        ]
        if written := sum(map(len, filter(None, constants))):
            node.nodes.insert(0, _through(_WRITTEN, nodes.Const(written, lineno=node.lineno)))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through(_JOIN, *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return node if all(isinstance(item, nodes.Const) for item in node.items) else _through(_MADE, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        plain = node.ctx != "load" or all(isinstance(item, nodes.Const) for item in node.items)
        return node if plain else _through(_MADE, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _through(_MADE, node) if node.items else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        if not isinstance(node.arg, nodes.Slice) or node.ctx != "load" or _constant_text(node) is not None:
            self.generic_visit(node)
            return node
        self.generic_visit(node)
        return _through(_MADE, node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        before = node.expr
        for operand in node.ops:
            # Comparing with a constant takes no longer than the constant; looking into something takes its length.
            if not isinstance(operand.expr, nodes.Const | nodes.List | nodes.Tuple) and (
                operand.op in ("in", "notin") or not isinstance(before, nodes.Const)
            ):
                operand.expr = _through(_READ, operand.expr)
            before = operand.expr
        return node


def _constant_text(node: nodes.Expr) -> str | None:
    try:
        return str(node.as_const())
    except Exception:  # "impossible", or what evaluating it raises, as it then will for a conversation
        return None


def _through(name: str, value: nodes.Node, *more: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(more), [], None, None, lineno=value.lineno)


OURS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {_EACH: _each, _JOIN: _joined, _MADE: _made, _READ: read, _WRITE: _write, _WRITTEN: _written}
)


def metered(tree: nodes.Template) -> nodes.Template:
    """``tree``, changed in place; its environment must have the filters ``OURS``."""
    rewritten: nodes.Template = _Metering().visit(tree)
    return rewritten
