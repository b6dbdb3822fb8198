"""Whether a request's answer depends on the company it has in the batch, on a real model.

    python benchmarks/batch_equal.py [--model FILE] [--backend ptx] [--others 64] [--tokens 48] [--check]

Two questions, a line of PASS or FAIL for each prompt or company:

* alone or among others: other entries run, so sums are taken in another order. Greedy tokens must be the same up to the
  first tie: where they part, both must be within 0.3 of each other by the log-probabilities of the request alone.
* a fixed entry: the same step, head and sample entries with other neighbours, which have other tokens or lengths, or
  are fewer, or with the request in another row. Logits and log-probabilities must be the same to the last bit.

For the second the request reads its prompt alone, waits for credit while its neighbours read theirs, and then all go
one token at a time.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from here import require_gpu

from poot_batch.build import build_engine
from poot_batch.engine import Engine
from poot_batch.request import EngineConfig, GenerateRequest, Output, SamplingParams, TokenLogprob
from poot_models.text import TextModel

PROMPTS = Path(__file__).parent.parent / "tests" / "data" / "prompts.json"
MARGIN = 0.3  # of log-probability: closer is a tie
ALONE_EVERY = 3  # which prompts are asked alone and among others
TOP = 20
GREEDY = SamplingParams(temperature=0.0, logprobs=TOP)
MINE = 1  # the id of the request that is compared

Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Company:
    """Neighbours of the compared request; whether it was there before them, and so has the first row."""

    name: str
    prompts: tuple[Prompt, ...]
    first: bool = True


@dataclass(frozen=True, slots=True)
class Taken:
    """One step's outcome for the compared request."""

    entry: TokenLogprob
    logits: npt.NDArray[np.float32]

    def same(self, other: Taken) -> bool:
        bits = np.array_equal(self.logits.view(np.int32), other.logits.view(np.int32))
        return bits and self.entry == other.entry


def drain(running: Engine) -> list[Output]:
    """Step until nothing is left to do. Raises RuntimeError when a request fails."""
    outputs = []
    while running.busy:
        outputs += running.step()
    failed = [output.error_message for output in outputs if output.finish == "error"]
    if failed:
        raise RuntimeError(f"a request failed: {failed[0]}")
    return outputs


def answers(running: Engine, prompts: Sequence[Prompt], tokens: int) -> list[list[TokenLogprob]]:
    """Greedy answers to prompts that are asked together."""
    found: list[list[TokenLogprob]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        running.submit(GenerateRequest(id=index, prompt=prompt, sampling=GREEDY, max_tokens=tokens, ignore_eos=True))
    for output in drain(running):
        found[output.request_id] += output.logprobs or ()
    return found


def parted(alone: Sequence[TokenLogprob], among: Sequence[TokenLogprob]) -> tuple[int, float] | None:
    """The first position where the tokens differ, and how much likelier the one was than the other, asked alone."""
    for position, (mine, other) in enumerate(zip(alone, among, strict=True)):
        if mine.token != other.token:
            return position, mine.logprob - dict(mine.top).get(other.token, float("-inf"))
    return None


def alone_or_among(running: Engine, text: TextModel, others: int, tokens: int) -> Iterator[bool]:
    known: dict[str, Any] = json.loads(PROMPTS.read_text(encoding="utf-8"))
    texts = {name: prompt for name, prompt in known.items() if isinstance(prompt, str)}
    prompts = {name: tuple(text.tokenizer.encode(prompt)) for name, prompt in list(texts.items())[::ALONE_EVERY]}
    dice = random.Random(1)
    crowd = noise(dice, [dice.randint(3, 300) for _ in range(others + 1 - len(prompts))], running.info.vocab_size)
    together = answers(running, [*prompts.values(), *crowd], tokens)
    for (name, prompt), among in zip(prompts.items(), together, strict=False):
        (alone,) = answers(running, [prompt], tokens)
        at = parted(alone, among)
        passed = len(alone) == tokens and (at is None or at[1] < MARGIN)
        told = f"all {tokens} tokens" if at is None else f"{at[0]} tokens, then {at[1]:.3f} apart"
        print(f"{'PASS' if passed else 'FAIL'} {name}: alone and among {others} others: {told} (margin {MARGIN})")
        yield passed


def noise(dice: random.Random, lengths: Sequence[int], vocabulary: int) -> tuple[Prompt, ...]:
    return tuple(tuple(dice.randrange(vocabulary) for _ in range(length)) for length in lengths)


def in_company(running: Engine, mine: Prompt, company: Company, steps: int) -> list[Taken]:
    """What `steps` steps bring the request: each runs it and all its neighbours for one token."""
    neighbours = [(MINE + 1 + index, prompt) for index, prompt in enumerate(company.prompts)]
    groups = [[(MINE, mine)], neighbours] if company.first else [neighbours, [(MINE, mine)]]
    for group in groups:
        for request_id, prompt in group:
            running.submit(GenerateRequest(id=request_id, prompt=prompt, sampling=GREEDY, max_tokens=steps + 2,
                                           ignore_eos=True, credit=1))  # fmt: skip
        drain(running)
    rows, found = 1 + len(neighbours), []
    for _ in range(steps):
        before = running.stats().steps
        for request_id in range(MINE, MINE + rows):
            running.grant(request_id, 1)
        outputs = drain(running)
        if running.stats().steps != before + 1 or len(outputs) != rows:
            raise RuntimeError(f"{len(outputs)} tokens for {rows} rows in {running.stats().steps - before} steps")
        (entry,) = next(output.logprobs or () for output in outputs if output.request_id == MINE)
        found.append(Taken(entry, logits(running, 0 if company.first else rows - 1)))
    for request_id in range(MINE, MINE + rows):
        running.cancel(request_id)
    drain(running)
    return found


def logits(running: Engine, place: int) -> npt.NDArray[np.float32]:
    """What the last step left for the row that came at `place` in it."""
    entries: Any = running._driver._prepared.entries  # type: ignore[attr-defined]
    found: npt.NDArray[np.float32] = entries.read_state("rows.logits", place + 1)[place]
    return found


def fixed_entry(running: Engine, rows: int, steps: int) -> Iterator[bool]:
    """The request and `rows` - 1 neighbours, or those that still make the same entries run, compared bit by bit."""
    vocabulary, longest, dice = running.info.vocab_size, running.info.max_seq - steps - 2, random.Random(2)
    (mine,) = noise(dice, [min(700, longest)], vocabulary)
    lengths = [dice.randint(1, min(300, longest)) for _ in range(rows - 1)]
    base = noise(dice, lengths, vocabulary)
    fewer = rows - 1 - max(1, rows // 16)
    companies = (
        Company("the same once more", base),
        Company("neighbours of other tokens", noise(dice, lengths, vocabulary)),
        Company("neighbours of other lengths", noise(dice, [dice.randint(1, longest) for _ in lengths], vocabulary)),
        Company(f"{fewer} neighbours of {rows - 1}", base[:fewer]),
        Company("another row of the batch", base, first=False),
    )
    first = in_company(running, mine, Company("first", base), steps)
    for company in companies:
        again = in_company(running, mine, company, steps)
        differ = [step for step, (one, other) in enumerate(zip(first, again, strict=True)) if not one.same(other)]
        apart = max(float(np.abs(one.logits - other.logits).max()) for one, other in zip(first, again, strict=True))
        told = f"differs first at step {differ[0]}, logits by up to {apart:.2e}" if differ else "bit-equal"
        print(f"{'FAIL' if differ else 'PASS'} {company.name}: {told} ({steps} steps of {rows} rows)")
        yield not differ


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="default: the packaged SmolLM2")
    parser.add_argument("--backend", default="ptx")
    parser.add_argument("--others", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48, help="new tokens a prompt, alone and among others")
    parser.add_argument("--rows", type=int, default=64, help="rows of the fixed entry")
    parser.add_argument("--steps", type=int, default=12, help="steps of the fixed entry")
    parser.add_argument("--max-seq", type=int, default=1024)
    parser.add_argument("--check", action="store_true", help="exit 1 unless everything held")
    arguments = parser.parse_args()
    require_gpu(arguments.backend)
    model = arguments.model
    if model is None:
        from reference import packaged_smollm2

        model = packaged_smollm2()
    rows = max(arguments.others + 1, arguments.rows)
    # Without the prefix cache: what it holds is not computed again, so that other entries read the rest of a prompt.
    config = EngineConfig(
        model=str(model), backend=arguments.backend, rows=rows, max_seq=arguments.max_seq, prefix_cache=False
    )
    running, text = build_engine(config)
    passed = [*alone_or_among(running, text, arguments.others, arguments.tokens),
              *fixed_entry(running, arguments.rows, arguments.steps)]  # fmt: skip
    running.close()
    print(f"{sum(passed)} of {len(passed)} lines PASS")
    return int(arguments.check and not all(passed))


if __name__ == "__main__":
    raise SystemExit(main())
