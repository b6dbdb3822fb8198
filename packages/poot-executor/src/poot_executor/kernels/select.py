"""Choosing kernels, once, when an entry is prepared."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.errors import KernelUnavailableError
from poot_executor.ir.graph import Graph, Node, Op
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Kernel, KernelTable, Site


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel of one node, with the refusals of those that were preferred to it."""

    site: Site
    kernel: Kernel
    refusals: tuple[str, ...]


def site_of(graph: Graph, node: Node, activation: DType) -> Site:
    values = [graph.values[i] for i in node.inputs]
    return Site(
        node.op,
        tuple(value.type.resolve(activation) for value in values),
        tuple(graph.values[i].type.resolve(activation) for i in node.outputs),
        tuple(value.name if value.encoding is not None else None for value in values),
        tuple(value.encoding for value in values),
        activation,
    )


def runs_all(graph: Graph, ops: tuple[type[Op], ...], table: KernelTable, activation: DType) -> bool:
    """Whether every node of these ops has a kernel that accepts it."""
    return all(
        any(kernel.accepts(site_of(graph, node, activation)) is None for kernel in table.of(type(node.op)))
        for node in graph.nodes
        if isinstance(node.op, ops)
    )


def select(graph: Graph, table: KernelTable, activation: DType) -> tuple[Choice | None, ...]:
    """The first kernel that accepts each node; None for nodes that are only views.

    Raises KernelUnavailableError with every refusal.
    """
    choices: list[Choice | None] = []
    for node in graph.nodes:
        if node.op.views:
            choices.append(None)
            continue
        site = site_of(graph, node, activation)
        refusals: list[str] = []
        for kernel in table.of(type(node.op)):
            refusal = kernel.accepts(site)
            if refusal is None:
                choices.append(Choice(site, kernel, tuple(refusals)))
                break
            refusals.append(f"{kernel.name}: {refusal}")
        else:
            reasons = "; ".join(refusals) or "it has no kernel for this op"
            types = ", ".join(str(type_) for type_ in site.inputs)
            raise KernelUnavailableError(f"{table.backend} cannot run {node.op} on {types}: {reasons}")
    return tuple(choices)
