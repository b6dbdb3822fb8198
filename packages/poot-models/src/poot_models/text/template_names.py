"""Which variables a chat template takes from outside, so that a caller may set them."""

from __future__ import annotations

from collections.abc import Iterable

from jinja2 import nodes

__all__ = ["outer_names"]

_OF_MACROS = frozenset({"caller", "varargs", "kwargs"})


def outer_names(tree: nodes.Template) -> frozenset[str]:
    """The names that are read where the template may not have set them yet.

    jinja2's own ``find_undeclared_variables`` also gives those that both branches of an ``if`` set before they are
    read, which no caller reaches. Globals such as ``range`` are among the names.
    """
    found: set[str] = set()
    _read_all(tree.body, set(), found)
    return frozenset(found)


def _read_all(those: Iterable[nodes.Node], known: set[str], found: set[str]) -> bool:
    """Follow ``those`` in turn: ``known`` gains the names that they set, ``found`` those read that are not in it.

    Returns whether the template goes on after them.
    """
    for node in those:
        _read(node, known, found)
        if _ends(node):
            return False
    return True


def _read(node: nodes.Node, known: set[str], found: set[str]) -> None:
    match node:
        case nodes.Name(ctx="load") | nodes.NSRef():
            if node.name not in known:
                found.add(node.name)
        case nodes.Name():
            known.add(node.name)
        case nodes.Assign():
            _read_all((node.node, node.target), known, found)
        case nodes.If():
            _read_branches(node, known, found)
        case nodes.Import() | nodes.FromImport():
            _read(node.template, known, found)
            names = [node.target] if isinstance(node, nodes.Import) else node.names
            known.update(name if isinstance(name, str) else name[1] for name in names)
        case nodes.AssignBlock() | nodes.For() | nodes.Macro() | nodes.CallBlock() | nodes.With():
            _read_scope(node, known, found)
        case nodes.FilterBlock() | nodes.Block() | nodes.Scope():
            _read_all(node.iter_child_nodes(), set(known), found)
        case _:
            _read_all(node.iter_child_nodes(), known, found)


def _read_scope(node: nodes.Node, known: set[str], found: set[str]) -> None:
    """What is set inside is not known outside."""
    inner = set(known)
    match node:
        case nodes.AssignBlock():
            _read_all(node.body, inner, found)
            _read_all((node.target, *([node.filter] if node.filter else ())), known, found)
        case nodes.For():
            _read(node.iter, known, found)
            _read_all((node.target, *([node.test] if node.test else ())), inner, found)
            _read_all(node.body, inner | {"loop"}, found)
            _read_all(node.else_, set(known), found)
        case nodes.Macro() | nodes.CallBlock():
            if isinstance(node, nodes.CallBlock):
                _read(node.call, known, found)
            else:
                known.add(node.name)
                inner.add(node.name)  # it may call itself
            inner |= _OF_MACROS
            _read_all((*node.args, *node.defaults), inner, found)
            _read_all(node.body, inner, found)
        case nodes.With():
            _read_all(node.values, known, found)
            _read_all((*node.targets, *node.body), inner, found)


def _read_branches(node: nodes.If, known: set[str], found: set[str]) -> None:
    """Afterwards the names are known that every branch sets which goes on."""
    after: list[set[str]] = []
    for branch in (node, *node.elif_):
        _read(branch.test, known, found)
        inner = set(known)
        if _read_all(branch.body, inner, found):
            after.append(inner)
    inner = set(known)
    if _read_all(node.else_, inner, found):
        after.append(inner)
    if after:
        known.update(set.intersection(*after))


def _ends(node: nodes.Node) -> bool:
    """Whether nothing after it runs: it leaves the loop, or refuses the conversation."""
    if isinstance(node, nodes.Break | nodes.Continue):
        return True
    return isinstance(node, nodes.Output) and any(
        isinstance(part, nodes.Call) and isinstance(part.node, nodes.Name) and part.node.name == "raise_exception"
        for part in node.nodes
    )
