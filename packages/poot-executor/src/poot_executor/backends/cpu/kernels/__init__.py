"""Kernels of the CPU backend. Importing the modules fills the table."""

import poot_executor.backends.cpu.kernels.attention
import poot_executor.backends.cpu.kernels.few_rows
import poot_executor.backends.cpu.kernels.linear
import poot_executor.backends.cpu.kernels.norm
import poot_executor.backends.cpu.kernels.packed
import poot_executor.backends.cpu.kernels.pointwise
import poot_executor.backends.cpu.kernels.rotary
import poot_executor.backends.cpu.kernels.rows
import poot_executor.backends.cpu.kernels.sampling  # noqa: F401
from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS

__all__ = ["CPU_KERNELS"]
