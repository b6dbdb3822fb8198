"""The graph: typed values, nodes that apply ops to them, nothing else. No torch here."""

from poot_executor.ir.builder import GraphBuilder
from poot_executor.ir.graph import Graph, Node, Op, Value
from poot_executor.ir.show import show
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ir.verify import verify

__all__ = ["DType", "Graph", "GraphBuilder", "Node", "Op", "Role", "TensorType", "Value", "show", "verify"]
