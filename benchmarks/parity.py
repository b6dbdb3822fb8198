"""Greedy answers of poot beside transformers in float32 from the same weights.

    python benchmarks/parity.py                          print a line a prompt
    python benchmarks/parity.py --check --model gemma    also print PASS or FAIL, and exit 1 on FAIL

All prompts of tests/data/prompts.json run together through the engine. The reference is then fed each prompt with
poot's answer: as long as its own two best logits are 0.05 apart ("compared") it must choose the same tokens, and past
that poot's tokens must stay within 0.05 of its best. Some prompts run again, alone and streamed, to the same answer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from here import require_gpu
from reencode import ENCODINGS, reencode
from reference import MARGIN, forced_logits, judge, load_prompts, packaged_gemma, packaged_smollm2, reference_model

from poot_batch import LLM, SamplingParams
from poot_batch.llm import Completion

PROMPTS = Path(__file__).parent.parent / "tests" / "data" / "prompts.json"
MODELS = {"smollm2": packaged_smollm2, "gemma": packaged_gemma}
AGAIN_EVERY = 4  # which prompts also run alone and streamed
TIE = 1e-3  # two logits so close may swap when the batch's size changes the order of additions


class Answers:
    """What one model answered: in a batch, and for some prompts alone and streamed."""

    def __init__(self, path: Path, arguments: argparse.Namespace) -> None:
        options = {"max_tokens": arguments.tokens, "ignore_eos": True}
        greedy, with_logprobs = SamplingParams(temperature=0), SamplingParams(temperature=0, logprobs=0)
        with LLM(path, backend=arguments.backend, rows=arguments.rows, max_seq=1024, threads=arguments.threads) as llm:
            self.prompts = load_prompts(PROMPTS, llm.text)
            began = time.perf_counter()
            found = llm.generate(list(self.prompts.values()), with_logprobs, **options)
            self.seconds = time.perf_counter() - began
            self.batched = dict(zip(self.prompts, found, strict=True))
            self.alone: dict[str, Completion] = {}
            self.streamed: dict[str, tuple[str, tuple[int, ...]]] = {}
            for name in list(self.prompts)[::AGAIN_EVERY]:
                (self.alone[name],) = llm.generate([self.prompts[name]], greedy, **options)
                deltas = list(llm.stream(self.prompts[name], greedy, **options))
                text = "".join(delta.text for delta in deltas)
                self.streamed[name] = text, tuple(token for delta in deltas for token in delta.tokens)


def check_model(name: str, path: Path, arguments: argparse.Namespace) -> bool:
    """Run one model and print its table; whether everything held."""
    answers = Answers(path, arguments)
    model = reference_model(path)
    passed, compared, positions, worst = True, 0, 0, 0.0
    # In lower precision the size of the batch moves logits as much as the precision does.
    tie = arguments.margin if arguments.margin > MARGIN else TIE
    for label, prompt in answers.prompts.items():
        batched = answers.batched[label]
        logits = forced_logits(model, prompt, batched.tokens)
        verdict = judge(logits, batched.tokens, arguments.margin)
        error = logprob_error(logits, batched)
        faults = [] if verdict.passed and verdict.positions == arguments.tokens else ["reference"]
        if label in answers.alone:
            alone = answers.alone[label]
            if not same_but_for_ties(batched.tokens, alone.tokens, logits, tie):
                faults.append("alone differs from batched")
            if answers.streamed[label] != (alone.text, alone.tokens):
                faults.append("streamed differs from whole")
        passed, worst = passed and not faults, max(worst, error)
        compared, positions = compared + verdict.compared, positions + verdict.positions
        again = ", also alone and streamed" if label in answers.alone else ""
        print(
            f"{name:8} {label:17} {len(prompt):4} tokens: {verdict}, log-probability error {error:.1e}{again}"
            + "".join(f" FAIL: {fault}" for fault in faults)
        )
    print(
        f"{name}: {len(answers.prompts)} prompts, {positions} positions, of which {compared} before a prompt's first "
        f"tie below {arguments.margin}; worst log-probability error {worst:.1e}; "
        f"{positions / answers.seconds:.0f} tokens/s"
    )
    return passed


def logprob_error(logits: torch.Tensor, completion: Completion) -> float:
    """Largest difference between poot's log-probabilities of its tokens and the reference's."""
    expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
    found = torch.tensor([entry.logprob for entry in completion.logprobs])
    return float((found - expected).abs().max())


def same_but_for_ties(first: Sequence[int], second: Sequence[int], logits: torch.Tensor, tie: float) -> bool:
    """Equal tokens; from a position on where the reference calls both a tie, anything goes."""
    for position, (mine, other) in enumerate(zip(first, second, strict=True)):
        if mine != other:
            return abs(float(logits[position, mine] - logits[position, other])) < tie
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless everything held")
    parser.add_argument("--model", default="all", help="smollm2, gemma, all, or the path of a checkpoint")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens a prompt")
    parser.add_argument("--rows", type=int, default=9)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--margin", type=float, default=MARGIN, help="logits closer than this are a tie")
    parser.add_argument("--reencode", choices=ENCODINGS, default=None, help="the model's matrices, so encoded anew")
    arguments = parser.parse_args()
    require_gpu(arguments.backend)
    names = list(MODELS) if arguments.model == "all" else [arguments.model]
    models = {name: MODELS[name]() if name in MODELS else Path(name) for name in names}
    passed = []
    for name, path in models.items():
        with TemporaryDirectory() as folder:
            read = path
            if arguments.reencode:
                read = Path(folder) / f"{path.stem}-{arguments.reencode}.gguf"
                reencode(path, arguments.reencode, read)
            passed.append(check_model(name if name in MODELS else path.stem, read, arguments))
    if not arguments.check:
        return 0
    print("PASS" if all(passed) else "FAIL")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
