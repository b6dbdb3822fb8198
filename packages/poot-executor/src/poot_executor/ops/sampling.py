"""Choosing tokens: adjusted logits, greedy choice, seeded draws, log-probabilities.

Random numbers are Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) keyed by the
row's seed and counted by the token's position, so a draw depends on neither the step nor the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import EXACT, Example, Tolerance, floats, require
from poot_executor.ops.rows import RowLayout

if TYPE_CHECKING:
    import torch

_MASK = 0xFFFFFFFF


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10: four 32-bit words from a key and a counter of 32-bit words."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _MASK, (a >> 32) ^ c3 ^ k1, a & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def uniform(seed_low: int, seed_high: int, position: int) -> float:
    """A number in [0, 1) with 24 random bits, of the key (seed_low, seed_high) and the counter (position, 0, 0, 0)."""
    return (philox((seed_low & _MASK, seed_high & _MASK), (position & _MASK, 0, 0, 0))[0] >> 8) * 2.0**-24


@dataclass(frozen=True, slots=True)
class AdjustLogits(Op):
    """Sparse bias, penalties and the ban on ending early.

    (logits (N, V), rows (N,), ints, floats, bias_ids, bias_values, history) to (N, V) float32. The bias is added
    first; then repetition divides positive and multiplies negative logits of tokens seen in the row (prompt and
    output, arXiv 1909.05858), frequency and presence subtract by the count of each token in the output. Rows shorter
    than MIN_LENGTH get minus infinity at the `ends`.
    """

    ends: tuple[int, ...] = ()

    tolerance: ClassVar = Tolerance()

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        logits, rows = inputs[:2]
        require(logits.shape[0] >= rows.shape[0], self, "{} does not fit {}", rows, logits)
        return (TensorType((rows.shape[0], logits.shape[1]), DType.F32, rows.live),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        logits, rows, ints, reals, bias_ids, bias_values, history = inputs
        result = logits[: len(rows)].float().clone()
        for n, row in enumerate(rows.tolist()):
            count, length, prompt = (
                int(ints[row, c]) for c in (RowLayout.BIAS_COUNT, RowLayout.LENGTH, RowLayout.PROMPT)
            )
            result[n].index_add_(0, bias_ids[row, :count].long(), bias_values[row, :count])
            past = history[row, :length].long()
            seen, output = torch.zeros(logits.shape[1]), torch.zeros(logits.shape[1])
            seen.index_add_(0, past, torch.ones(len(past)))
            output.index_add_(0, past[prompt:], torch.ones(len(past[prompt:])))
            repetition = reals[row, RowLayout.REPETITION]
            factor = torch.where(result[n] > 0, 1 / repetition, repetition)
            result[n] = torch.where(seen > 0, result[n] * factor, result[n])
            result[n] -= reals[row, RowLayout.FREQUENCY] * output + reals[row, RowLayout.PRESENCE] * (output > 0)
            if length < int(ints[row, RowLayout.MIN_LENGTH]):
                result[n, list(self.ends)] = float("-inf")
        return (result,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (_row_example("bias and penalties", cls((3, 5)), extra=("bias_ids", "bias_values", "history")),)


def _per_row(op: Op, logits: TensorType, rows: TensorType) -> tuple[TensorType, TensorType]:
    """Tokens and flags of the rows."""
    require(len(logits.shape) == 2 and logits.shape[0] >= rows.shape[0], op, "{} does not fit {}", rows, logits)
    return rows, rows


@dataclass(frozen=True, slots=True)
class Greedy(Op):
    """The most likely token, lowest id first among equals: logits (N, V), rows (N,) to (tokens, flags), both (N,).

    A flag is 1, and the token 0, where the row's logits are not usable: NaN anywhere, or a greatest one that is not
    finite.
    """

    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        logits, rows = inputs
        return _per_row(self, logits, rows)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        logits = inputs[0][: len(inputs[1])].float()
        best, tokens = logits.max(-1)
        usable = torch.isfinite(best)
        return torch.where(usable, tokens, 0).to(torch.int32), (~usable).to(torch.int32)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        import torch

        def make(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
            logits = floats(generator, 5, 300)
            logits[1, 17] = float("nan")
            logits[2, 200] = float("inf")
            logits[3] = float("-inf")
            logits[3, 9] = 0.0
            return logits, torch.arange(5, dtype=torch.int32)

        types = (TensorType((5, 300), DType.F32, "rows"), TensorType((5,), DType.I32, "rows"))
        return (Example("not finite", cls(), types, (Role.INPUT, Role.INPUT), make, {"rows": 4}),)


@dataclass(frozen=True, slots=True)
class Draw(Op):
    """A seeded draw from each row's distribution: (logits (N, V), rows, ints, floats) to (tokens, flags), both (N,).

    temperature 0 is greedy. Otherwise p = softmax(logits / temperature), kept to the top_k greatest (ties with the
    last one stay), then to the smallest set of at least top_p of their mass, then to those of at least min_p times the
    greatest; the token is the first in id order whose running sum exceeds u times the kept mass, u from Philox(seed,
    LENGTH). Flags as in Greedy.
    """

    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        logits, rows, _, _ = inputs
        return _per_row(self, logits, rows)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        logits, rows, ints, reals = inputs
        tokens, flags = Greedy().reference(logits, rows)
        for n, row in enumerate(rows.tolist()):
            temperature = float(reals[row, RowLayout.TEMPERATURE])
            if temperature == 0 or flags[n]:
                continue
            p = (logits[n].double() / temperature).softmax(-1)
            p = torch.where(p >= kept_threshold(p, ints[row], reals[row]), p, 0.0)
            low, high, length = (int(ints[row, c]) for c in (RowLayout.SEED_LOW, RowLayout.SEED_HIGH, RowLayout.LENGTH))
            running = p.cumsum(-1)
            tokens[n] = int((running > uniform(low, high, length) * running[-1]).to(torch.uint8).argmax())
        return tokens, flags

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (_row_example("temperatures and cuts", cls(), extra=()),)


def kept_threshold(p: torch.Tensor, ints: torch.Tensor, reals: torch.Tensor) -> torch.Tensor:
    """The least probability that survives a row's top_k, top_p and min_p (a scalar tensor)."""
    ordered = p.sort(descending=True).values
    top_k, top_p = int(ints[RowLayout.TOP_K]), float(reals[RowLayout.TOP_P])
    if 0 < top_k < len(ordered):
        ordered = ordered[ordered >= ordered[top_k - 1]]
    threshold = ordered[-1]
    if top_p < 1:
        mass = ordered.cumsum(-1)
        reached = int((mass < top_p * mass[-1]).sum())
        threshold = ordered[min(reached, len(ordered) - 1)]
    return threshold.maximum(ordered[0] * float(reals[RowLayout.MIN_P]))


@dataclass(frozen=True, slots=True)
class TopLogProbs(Op):
    """Log-probabilities of the unadjusted logits: (logits (N, V), tokens (N,)) to (chosen (N,), ids, values (N, k)).

    k is at least 1; the k most likely tokens come in falling order, lowest id first among equals.
    """

    k: int

    tolerance: ClassVar = Tolerance(1e-4, 1e-5)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        logits, tokens = inputs
        require(1 <= self.k <= logits.shape[1], self, "k must lie in 1..{}", logits.shape[1])
        shape = (tokens.shape[0], self.k)
        return (
            TensorType(tokens.shape, DType.F32, tokens.live),
            TensorType(shape, DType.I32, tokens.live),
            TensorType(shape, DType.F32, tokens.live),
        )

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        logits, tokens = inputs[0][: len(inputs[1])].float(), inputs[1]
        logprobs = logits.log_softmax(-1)
        order = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, : self.k]
        chosen = logprobs.gather(1, tokens.long()[:, None])[:, 0]
        return chosen, order.to(torch.int32), logprobs.gather(1, order)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        import torch

        def make(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
            logits = floats(generator, 4, 300)
            logits[1] = (logits[1] * 2).round()  # many are equal
            return logits, torch.tensor([0, 299, 12, 0], dtype=torch.int32)

        types = (TensorType((4, 300), DType.F32, "rows"), TensorType((4,), DType.I32, "rows"))
        return (Example("five of 300", cls(5), types, (Role.INPUT, Role.INPUT), make, {"rows": 3}),)


def _row_example(name: str, op: Op, *, extra: tuple[str, ...]) -> Example:
    """Six rows with every kind of sampling parameter; row 5 is not live."""
    import torch

    rows, vocabulary, bias, positions = 6, 200, 4, 12

    def make(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        ints = torch.zeros(rows, RowLayout.INTS, dtype=torch.int32)
        ints[:, RowLayout.LENGTH] = torch.tensor([12, 6, 4, 9, 1, 3])
        ints[:, RowLayout.PROMPT] = torch.tensor([4, 2, 4, 1, 1, 3])
        ints[:, RowLayout.SEED_LOW] = torch.arange(rows, dtype=torch.int32) * 77 - 100
        ints[:, RowLayout.SEED_HIGH] = 5
        ints[:, RowLayout.TOP_K] = torch.tensor([0, 3, 0, 20, 1, 0])
        ints[:, RowLayout.MIN_LENGTH] = torch.tensor([0, 9, 0, 9, 0, 0])
        ints[:, RowLayout.BIAS_COUNT] = torch.tensor([0, 4, 1, 2, 0, 0])
        reals = torch.zeros(rows, RowLayout.FLOATS)
        reals[:, RowLayout.TEMPERATURE] = torch.tensor([0.0, 1.0, 0.7, 1.5, 1.0, 1.0])
        reals[:, RowLayout.TOP_P] = torch.tensor([1.0, 0.9, 0.5, 0.95, 1.0, 1.0])
        reals[:, RowLayout.MIN_P] = torch.tensor([0.0, 0.0, 0.05, 0.0, 0.0, 0.0])
        reals[:, RowLayout.PRESENCE] = torch.tensor([0.5, 0.0, 0.3, 0.0, 0.0, 0.0])
        reals[:, RowLayout.FREQUENCY] = torch.tensor([0.0, 0.7, -0.3, 0.0, 0.0, 0.0])
        reals[:, RowLayout.REPETITION] = torch.tensor([1.0, 1.3, 0.8, 1.1, 1.0, 1.0])
        parts = {
            "bias_ids": torch.randint(0, vocabulary, (rows, bias), generator=generator, dtype=torch.int32),
            "bias_values": floats(generator, rows, bias, scale=5.0),
            "history": torch.randint(0, 40, (rows, positions), generator=generator, dtype=torch.int32),
        }
        scores = floats(generator, rows, vocabulary, scale=3.0)
        return scores, torch.tensor([3, 1, 0, 4, 2, 0], dtype=torch.int32), ints, reals, *(parts[e] for e in extra)

    shapes = {
        "bias_ids": TensorType((rows, bias), DType.I32),
        "bias_values": TensorType((rows, bias), DType.F32),
        "history": TensorType((rows, positions), DType.I32),
    }
    types = (
        TensorType((rows, vocabulary), DType.F32, "rows"),
        TensorType((rows,), DType.I32, "rows"),
        TensorType((rows, RowLayout.INTS), DType.I32),
        TensorType((rows, RowLayout.FLOATS), DType.F32),
        *(shapes[e] for e in extra),
    )
    roles = (Role.INPUT, Role.INPUT, *(Role.STATE for _ in types[2:]))
    return Example(name, op, types, roles, make, {"rows": 5})
