"""Triton kernels. Importing the modules fills the table."""

import poot_executor.backends.triton.kernels.activation
import poot_executor.backends.triton.kernels.attention
import poot_executor.backends.triton.kernels.gated
import poot_executor.backends.triton.kernels.linear
import poot_executor.backends.triton.kernels.norm
import poot_executor.backends.triton.kernels.one_row
import poot_executor.backends.triton.kernels.packed_linear
import poot_executor.backends.triton.kernels.pages
import poot_executor.backends.triton.kernels.parts
import poot_executor.backends.triton.kernels.plan
import poot_executor.backends.triton.kernels.pointwise
import poot_executor.backends.triton.kernels.prompt
import poot_executor.backends.triton.kernels.rotary
import poot_executor.backends.triton.kernels.rows
import poot_executor.backends.triton.kernels.sampling  # noqa: F401
from poot_executor.backends.triton.kernels.few_rows import FEW_ROWS_KERNELS
from poot_executor.backends.triton.kernels.kernel import TRITON_KERNELS

__all__ = ["FEW_ROWS_KERNELS", "TRITON_KERNELS"]
