"""Log-probabilities of prompts beside transformers in float32 from the same weights, asked as evaluations ask.

    python benchmarks/score.py             print a line a way of asking
    python benchmarks/score.py --check     also print PASS or FAIL, and exit 1 on FAIL

In process `LLM.score` is asked about every prompt of tests/data/prompts.json and about all of them as one long text.
Over HTTP the requests are those that lm-evaluation-harness sends to a completions server: `echo` with `logprobs` 1,
prompts as token ids, several in a request, and one token to generate whose log-probability is dropped; and prompts as
text with max_tokens 0. Every log-probability must be within 0.05 of the reference's, and so must the likeliest token's
in each place, from which the harness tells whether a continuation is the greedy one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from live_server import LiveServer
from reference import load_prompts, packaged_gemma, packaged_smollm2, reference_model

from poot_batch import LLM
from poot_models.text import open_text

PROMPTS = Path(__file__).parent.parent / "tests" / "data" / "prompts.json"
MODELS = {"smollm2": packaged_smollm2, "gemma": packaged_gemma}
MARGIN = 0.05
LEAST_PROMPTS = 20
BATCH = 9  # prompts in a request with several


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of a prompt's tokens but the first, and of the likeliest token in each of their places."""

    chosen: list[float]
    best: list[float]


@dataclass(frozen=True, slots=True)
class Asked:
    """What one way of asking brought, by the prompts' names."""

    found: Mapping[str, Scores]
    faults: tuple[str, ...]
    seconds: float


def reference_scores(path: Path, prompts: Mapping[str, Sequence[int]]) -> dict[str, Scores]:
    model = reference_model(path)
    found: dict[str, Scores] = {}
    for name, tokens in prompts.items():
        with torch.inference_mode():
            logprobs = model(torch.tensor([tokens]), use_cache=False).logits[0, :-1].log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        found[name] = Scores(chosen.tolist(), logprobs.max(-1).values.tolist())
    return found


def in_process(path: Path, prompts: Mapping[str, list[int]], arguments: argparse.Namespace) -> Asked:
    with LLM(path, backend=arguments.backend, rows=BATCH, max_seq=arguments.max_seq, threads=arguments.threads) as llm:
        began = time.perf_counter()
        scores = llm.score(list(prompts.values()), top=1)
        seconds = time.perf_counter() - began
    named = dict(zip(prompts, scores, strict=True))
    faults = [f"{name}: other tokens" for name, found in named.items() if [e.token for e in found] != prompts[name][1:]]
    found = {
        name: Scores([e.logprob for e in entries], [e.top[0][1] for e in entries]) for name, entries in named.items()
    }
    return Asked(found, tuple(faults), seconds)


class Served:
    """Asks a server as the harness does."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=300)
        self._model = self._client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        self._faults: list[str] = []

    def token_ids(self, prompts: Mapping[str, list[int]]) -> Asked:
        """Several prompts in a request, each with one token to generate, whose entry is dropped."""
        names, began = list(prompts), time.perf_counter()
        found: dict[str, Scores] = {}
        for at in range(0, len(names), BATCH):
            part = names[at : at + BATCH]
            choices = self._ask([prompts[name] for name in part], max_tokens=1)
            found |= {name: self._scores(name, choice, 1) for name, choice in zip(part, choices, strict=True)}
        return self._asked(found, began)

    def text(self, texts: Mapping[str, str]) -> Asked:
        """A prompt a request, nothing to generate."""
        found: dict[str, Scores] = {}
        began = time.perf_counter()
        for name, text in texts.items():
            (choice,) = self._ask(text, max_tokens=0)
            if choice["text"] != text:
                self._faults.append(f"{name}: the echo is not the prompt")
            found[name] = self._scores(name, choice, 0)
        return self._asked(found, began)

    def _ask(self, prompt: Any, *, max_tokens: int) -> list[dict[str, Any]]:
        body = {
            "model": self._model, "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "logprobs": 1,
            "seed": 1234, "echo": True,
        }  # fmt: skip
        answer = self._client.post("/v1/completions", json=body)
        if answer.is_error:
            raise RuntimeError(f"{answer.status_code}: {answer.text}")
        choices: list[dict[str, Any]] = answer.json()["choices"]
        return sorted(choices, key=lambda choice: choice["index"])

    def _scores(self, name: str, choice: Mapping[str, Any], dropped: int) -> Scores:
        chosen, tops = choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
        if chosen[0] is not None or tops[0] is not None:
            self._faults.append(f"{name}: the first token has a log-probability")
        end = len(chosen) - dropped
        return Scores(chosen[1:end], [max(top.values()) for top in tops[1:end]])

    def _asked(self, found: Mapping[str, Scores], began: float) -> Asked:
        faults, self._faults = tuple(self._faults), []
        return Asked(found, faults, time.perf_counter() - began)


def judged(way: str, asked: Asked, expected: Mapping[str, Scores]) -> bool:
    """Print a way's line; whether it held."""
    faults, worst, worst_best, tokens = list(asked.faults), 0.0, 0.0, 0
    for name, found in asked.found.items():
        wanted = expected[name]
        if not len(found.chosen) == len(found.best) == len(wanted.chosen):
            faults.append(f"{name}: {len(found.chosen)} log-probabilities, {len(wanted.chosen)} wanted")
            continue
        tokens += len(wanted.chosen)
        worst = max([worst, *(abs(a - b) for a, b in zip(found.chosen, wanted.chosen, strict=True))])
        worst_best = max([worst_best, *(abs(a - b) for a, b in zip(found.best, wanted.best, strict=True))])
    if len(asked.found) < LEAST_PROMPTS:
        faults.append(f"only {len(asked.found)} prompts")
    if not max(worst, worst_best) <= MARGIN:
        faults.append(f"off by more than {MARGIN}")
    print(
        f"{way:22} {len(asked.found):3} prompts, {tokens:5} tokens: worst error {worst:.1e}, of the likeliest "
        f"{worst_best:.1e}; {tokens / asked.seconds:.0f} tokens/s" + "".join(f" FAIL: {fault}" for fault in faults)
    )
    return not faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless everything held")
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma, or the path of a checkpoint")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--max-seq", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--no-http", action="store_true", help="in process only")
    arguments = parser.parse_args()
    path = MODELS[arguments.model]() if arguments.model in MODELS else Path(arguments.model)

    model_text = open_text(path)
    given = json.loads(PROMPTS.read_text(encoding="utf-8"))
    plain = {name: prompt if isinstance(prompt, str) else prompt[-1]["content"] for name, prompt in given.items()}
    plain["all of them"] = "\n\n".join(plain.values())
    texts = {f"text {name}": text for name, text in plain.items()}
    prompts = load_prompts(PROMPTS, model_text)
    of_texts = {name: model_text.tokenizer.encode(text) for name, text in texts.items()}
    # Nothing is said of a prompt of one token.
    every = {name: tokens for name, tokens in (prompts | of_texts).items() if len(tokens) > 1}
    expected = reference_scores(path, every)

    passed = [judged("in process", in_process(path, every, arguments), expected)]
    if not arguments.no_http:
        flags = ["--backend", arguments.backend, "--max-seq", str(arguments.max_seq)]
        with LiveServer.of(path, *flags).ready() as server:
            served = Served(server.url)
            ids = {name: tokens for name, tokens in prompts.items() if name in every}
            named = {name: text for name, text in texts.items() if name in every}
            passed.append(judged("HTTP, token ids", served.token_ids(ids), expected))
            passed.append(judged("HTTP, text", served.text(named), expected))
    if not arguments.check:
        return 0
    print("PASS" if all(passed) else "FAIL")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
