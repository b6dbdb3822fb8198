"""Kernels: who can run a node, in which weight form, with how much workspace; and the choice among them."""

from poot_executor.kernels.kernel import Kernel, KernelTable, Operand, Operands, Site, WeightForm
from poot_executor.kernels.select import Choice, select

__all__ = ["Choice", "Kernel", "KernelTable", "Operand", "Operands", "Site", "WeightForm", "select"]
