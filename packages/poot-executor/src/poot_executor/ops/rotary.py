"""Rotary position embedding (arXiv 2104.09864), of queries, and of keys on their way into the KV pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import Example, Tolerance, dense_weight, floats, require
from poot_executor.ops.norm import rms_norm

if TYPE_CHECKING:
    import torch

    from poot_executor.encodings.types import WeightSource


@dataclass(frozen=True, slots=True)
class RotarySpec:
    """Inverse frequencies of the `dim` rotated dimensions, each already scaled as the model's long-context rule says.

    `magnitude` multiplies cosines and sines (1 unless a rule such as YaRN says otherwise).
    """

    inverse_frequencies: tuple[float, ...]
    magnitude: float = 1.0

    @property
    def dim(self) -> int:
        return 2 * len(self.inverse_frequencies)

    @staticmethod
    def plain(dim: int, theta: float, factor: float = 1.0) -> RotarySpec:
        """theta^(-2i/dim), divided by `factor` (linear position scaling)."""
        return RotarySpec(tuple(theta ** (-2 * i / dim) / factor for i in range(dim // 2)))

    def __str__(self) -> str:
        return f"RotarySpec(dim={self.dim}, slowest={self.inverse_frequencies[-1]:.3g})"


@dataclass(frozen=True, slots=True)
class RotaryTable(Op):
    """Cosines and sines of a step's positions: (T,) to float32 (T, dim), cosines first. Shared by all layers."""

    spec: RotarySpec

    tolerance: ClassVar = Tolerance(2e-4, 1e-5, 1.0)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (positions,) = inputs
        return (TensorType((positions.shape[0], self.spec.dim), DType.F32, positions.live),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        angles = torch.outer(inputs[0].float(), torch.tensor(self.spec.inverse_frequencies, dtype=torch.float32))
        return (torch.cat([angles.cos(), angles.sin()], dim=-1) * self.spec.magnitude,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        import torch

        return (
            Example(
                "positions to 4000",
                cls(RotarySpec.plain(16, 10000.0)),
                (TensorType((5,), DType.I32, "tokens"),),
                (Role.INPUT,),
                lambda _: (torch.tensor([0, 1, 77, 4000, 0], dtype=torch.int32),),
                {"tokens": 4},
            ),
        )


@dataclass(frozen=True, slots=True)
class RotaryKvWrite(Op):
    """Rotate queries and keys, and store keys and values: all that lies between the QKV product and attention.

    (q (T, H, D), k, v (T, G, D), table (T, dim), slots (T,), k_pool, v_pool (S, G, D) [, q_norm, k_norm (D,)]) to the
    rotated queries (T, H, D) and the pools' next versions. Where `eps` is given, each head of q and k is RmsNorm'ed
    before, with weights q_norm and k_norm and this `offset`; nothing is rounded in between. In place of a value that is
    not finite a backend may store the greatest number that is: to a later row, whose weight for it is zero, it is then
    as if it were not there. The row that it belongs to has keys that are not finite.

    The first `dim` columns of a head are rotated, the others stay. "half" pairs column i with i + dim/2
    (transformers), "interleaved" pairs 2i with 2i + 1 (GGUF files of the llama architecture).
    """

    style: Literal["half", "interleaved"]
    eps: float | None = None
    offset: float = 0.0

    writes: ClassVar = {1: 5, 2: 6}
    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        q, k, v, table, slots, k_pool, v_pool, *norms = inputs
        require(
            len(q.shape) == len(k.shape) == 3 and q.shape[2] == k.shape[2], self, "{} and {} differ in head size", q, k
        )
        require(
            k.shape[1:] == k_pool.shape[1:] and v.shape[1:] == v_pool.shape[1:], self, "{} does not fit {}", k, k_pool
        )
        tokens = {x.shape[0] for x in (q, k, v, table, slots)}
        require(len(tokens) == 1, self, "{}, {}, {}, {} and {} differ in tokens", q, k, v, table, slots)
        require(table.shape[1] <= q.shape[2] and table.shape[1] % 2 == 0, self, "table {} is too wide for {}", table, q)
        require(len(norms) == (0 if self.eps is None else 2), self, "{} norm weights given", len(norms))
        for norm in norms:
            require(norm.shape == q.shape[2:], self, "weight {} does not fit {}", norm, q)
        return (q, k_pool, v_pool)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, table, slots, k_pool, v_pool, *norms = inputs
        if self.eps is not None:
            q, k = (rms_norm(x, w, self.eps, self.offset) for x, w in zip((q, k), norms, strict=True))
        k_pool, v_pool = k_pool.clone(), v_pool.clone()
        k_pool[slots.long()] = self._rotated(k, table).to(k_pool.dtype)
        v_pool[slots.long()] = v.to(v_pool.dtype)
        return self._rotated(q, table), k_pool, v_pool

    def _rotated(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        import torch

        dim = table.shape[1]
        cos, sin = table[:, None, : dim // 2], table[:, None, dim // 2 :]
        rotated = x.clone()
        if self.style == "half":
            a, b = x[..., : dim // 2], x[..., dim // 2 : dim]
            rotated[..., :dim] = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        else:
            a, b = x[..., 0:dim:2], x[..., 1:dim:2]
            rotated[..., 0:dim:2] = a * cos - b * sin
            rotated[..., 1:dim:2] = b * cos + a * sin
        return rotated

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            _rotary_case(cls("half"), heads=(2, 2), width=16, dim=16),
            _rotary_case(cls("half"), heads=(3, 1), width=16, dim=8),
            _rotary_case(cls("interleaved"), heads=(2, 1), width=16, dim=16),
            _rotary_case(cls("interleaved"), heads=(1, 1), width=24, dim=8),
            _rotary_case(cls("half"), heads=(9, 3), width=64, dim=64),
            _rotary_case(cls("half"), heads=(4, 2), width=8, dim=8, tokens=1),
            _rotary_case(cls("half", 1e-6), heads=(6, 2), width=32, dim=32),
            _rotary_case(cls("half", 1e-6, 1.0), heads=(4, 1), width=40, dim=24),
            _rotary_case(cls("interleaved", 1e-5), heads=(5, 5), width=16, dim=16, tokens=1),
            _rotary_case(cls("interleaved", 1e-5), heads=(2, 1), width=24, dim=8, tokens=40),
        )


def _rotary_case(op: RotaryKvWrite, heads: tuple[int, int], width: int, dim: int, tokens: int = 4) -> Example:
    """`heads` are those of queries and of keys. All tokens but one are live, of a single one that one."""
    (queries, keys), slots = heads, 3 * tokens

    def make(generator: torch.Generator) -> tuple[torch.Tensor | WeightSource, ...]:
        import torch

        q, k, v = (floats(generator, tokens, count, width) for count in (queries, keys, keys))
        # The first slot of the pool and the last are among those taken.
        chosen = torch.cat([torch.tensor([slots - 1, 0]), 1 + torch.randperm(slots - 2, generator=generator)])
        pools = [floats(generator, slots, keys, width) for _ in range(2)]
        norms = [dense_weight(name, floats(generator, width)) for name in ("q_norm", "k_norm")]
        found = q, k, v, floats(generator, tokens, dim), chosen[:tokens].to(torch.int32), *pools
        return found if op.eps is None else (*found, *norms)

    new, pool = TensorType((tokens, keys, width), DType.ACT, "tokens"), TensorType((slots, keys, width), DType.ACT)
    q = TensorType((tokens, queries, width), DType.ACT, "tokens")
    table, slot = TensorType((tokens, dim), DType.F32, "tokens"), TensorType((tokens,), DType.I32, "tokens")
    norms = () if op.eps is None else (TensorType((width,), DType.F32),) * 2
    roles = (*(Role.INPUT,) * 5, Role.STATE, Role.STATE, *(Role.WEIGHT for _ in norms))
    live = {"tokens": max(1, tokens - 1)}
    name = f"{op} {queries}+{keys}x{width}/{dim}, {tokens} tokens"
    return Example(name, op, (q, new, new, table, slot, pool, pool, *norms), roles, make, live)
