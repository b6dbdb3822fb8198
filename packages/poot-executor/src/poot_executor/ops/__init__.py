"""The ops: each a frozen dataclass with its shape rule, its definition in plain torch, examples and tolerance."""

from poot_executor.ops.attention import AttentionPlan, PagedAttention
from poot_executor.ops.base import Example, Tolerance
from poot_executor.ops.catalogue import all_ops
from poot_executor.ops.deferred import NormedGatedLinear, NormedLinear, ResidualLinear
from poot_executor.ops.gather import GatherRows, KeepLast, LastRows, SlotMap
from poot_executor.ops.linear import Embed, GatedLinear, Linear
from poot_executor.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from poot_executor.ops.pointwise import Add, Clamp, GatedActivation, Gelu, Mul, Scale, SoftCap, XIelu
from poot_executor.ops.residual import LinearAddRmsNorm
from poot_executor.ops.rotary import RotaryKvWrite, RotarySpec, RotaryTable
from poot_executor.ops.rows import CommitTokens, OpenRow, RowLayout, UnpackStep, WriteHistory
from poot_executor.ops.sampling import AdjustLogits, Draw, Greedy, TopLogProbs
from poot_executor.ops.views import Into, Reshape, Split

__all__ = [
    "Add",
    "AddRmsNorm",
    "AdjustLogits",
    "AttentionPlan",
    "Clamp",
    "CommitTokens",
    "Draw",
    "Embed",
    "Example",
    "GatedActivation",
    "GatedLinear",
    "GatherRows",
    "Gelu",
    "Greedy",
    "Into",
    "KeepLast",
    "LastRows",
    "LayerNorm",
    "Linear",
    "LinearAddRmsNorm",
    "Mul",
    "NormedGatedLinear",
    "NormedLinear",
    "OpenRow",
    "PagedAttention",
    "Reshape",
    "ResidualLinear",
    "RmsNorm",
    "RotaryKvWrite",
    "RotarySpec",
    "RotaryTable",
    "RowLayout",
    "Scale",
    "SlotMap",
    "SoftCap",
    "Split",
    "Tolerance",
    "TopLogProbs",
    "UnpackStep",
    "WriteHistory",
    "XIelu",
    "all_ops",
]
