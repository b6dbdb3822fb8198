"""The packaged model with a cold and a warm prefix cache: the same tokens, the same log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from poot_batch.build import build_engine
from poot_batch.engine import Engine
from poot_batch.request import EngineConfig, GenerateRequest, Output, SamplingParams

# Text whose greedy continuation repeats, so that penalties change it.
SYSTEM = "You list the days of the week. Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. " * 3
QUESTIONS = ("Again: Monday, Tuesday,", "Backwards: Sunday, Saturday,")
ANSWER = 10


@pytest.fixture(scope="module")
def built(smollm2_path: Path) -> Iterator[tuple[Engine, list[tuple[int, ...]]]]:
    engine, text = build_engine(EngineConfig(model=str(smollm2_path), backend="cpu", rows=1, max_seq=256, threads=1))
    yield engine, [tuple(text.tokenizer.encode(SYSTEM + question)) for question in QUESTIONS]
    engine.close()


def ran(engine: Engine, *requests: GenerateRequest) -> dict[int, list[Output]]:
    found: dict[int, list[Output]] = {request.id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.busy:
        for output in engine.step():
            found[output.request_id].append(output)
    assert engine.stats().kv_blocks_used == 0
    return found


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def chances_of(outputs: list[Output]) -> list[float]:
    return [entry.logprob for output in outputs for entry in output.logprobs or ()]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0, logprobs=2),
        SamplingParams(temperature=0.0, logprobs=2, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(temperature=0.8, top_k=40, seed=7, logprobs=2, frequency_penalty=0.7),
    ],
    ids=["greedy", "penalties", "drawn"],
)
def test_a_warm_cache_changes_nothing(built: tuple[Engine, list[tuple[int, ...]]], sampling: SamplingParams) -> None:
    engine, (prompt, _) = built
    block, salt = engine.info.kv_block_size, f"{sampling}"

    def ask(n: int, tokens: tuple[int, ...]) -> list[Output]:
        request = GenerateRequest(
            id=n, prompt=tokens, sampling=sampling, max_tokens=ANSWER, ignore_eos=True, cache_salt=salt
        )
        return ran(engine, request)[n]

    # Other tokens on the same row in between, so that nothing of the first is left in its history.
    cold, _, warm = ask(0, prompt), ask(1, tuple(range(1000, 1000 + len(prompt)))), ask(2, prompt)
    hits = (len(prompt) - 1) // block * block
    assert hits > 3 * block
    assert (cold[0].cached_tokens, cold[0].cache_miss) == (0, "not seen before")
    assert (warm[0].cached_tokens, warm[0].cache_miss) == (hits, None)
    assert (warm[-1].cached_tokens, warm[-1].prompt_tokens) == (hits, len(prompt))
    assert tokens_of(warm) == tokens_of(cold)
    assert chances_of(warm) == pytest.approx(chances_of(cold), abs=1e-3)


def test_another_question_shares_the_beginning(built: tuple[Engine, list[tuple[int, ...]]]) -> None:
    engine, prompts = built
    greedy = SamplingParams(temperature=0.0, logprobs=0)
    shared = next(n for n, (a, b) in enumerate(zip(*prompts, strict=False)) if a != b)

    def ask(n: int, salt: str) -> list[Output]:
        request = GenerateRequest(
            id=n, prompt=prompts[n % 2], sampling=greedy, max_tokens=ANSWER, ignore_eos=True, cache_salt=salt
        )
        return ran(engine, request)[n]

    ask(0, "shared")
    warm, cold = ask(1, "shared"), ask(3, "another salt")
    block = engine.info.kv_block_size
    assert warm[0].cached_tokens == shared // block * block
    assert cold[0].cached_tokens == 0
    assert tokens_of(warm) == tokens_of(cold)
    assert chances_of(warm) == pytest.approx(chances_of(cold), abs=1e-3)


def test_an_answer_is_found_again_in_the_next_turn(built: tuple[Engine, list[tuple[int, ...]]]) -> None:
    engine, (prompt, _) = built
    greedy = SamplingParams(temperature=0.0)

    def ask(n: int, prompt: tuple[int, ...], salt: str) -> list[Output]:
        request = GenerateRequest(id=n, prompt=prompt, sampling=greedy, max_tokens=24, ignore_eos=True, cache_salt=salt)
        return ran(engine, request)[n]

    turn = (*prompt, *tokens_of(ask(0, prompt, "turns")), *prompt[:5])
    warm, cold = ask(1, turn, "turns"), ask(2, turn, "alone")
    block = engine.info.kv_block_size
    # All that was run: the answer's last token was not.
    assert warm[0].cached_tokens == (len(prompt) + 23) // block * block > len(prompt)
    assert warm[0].cache_miss == f"first {(len(prompt) + 23) // block} of {(len(turn) - 1) // block} blocks only" or (
        warm[0].cached_tokens == (len(turn) - 1) // block * block
    )
    assert tokens_of(warm) == tokens_of(cold)


def test_forks_share_their_leaders_prompt(built: tuple[Engine, list[tuple[int, ...]]]) -> None:
    engine, (prompt, _) = built
    requests = [
        GenerateRequest(
            id=n,
            prompt=prompt,
            sampling=SamplingParams(temperature=0.0),
            max_tokens=8,
            cache_salt="forks",
            fork_of=0 if n else None,
        )
        for n in range(5)
    ]
    found = ran(engine, *requests)
    block = engine.info.kv_block_size
    hits = (len(prompt) - 1) // block * block
    assert [outputs[-1].cached_tokens for outputs in found.values()] == [0, *[hits] * 4]
    assert len({tuple(tokens_of(outputs)) for outputs in found.values()}) == 1


def test_prompts_that_come_together_read_once_what_they_share(smollm2_path: Path) -> None:
    config = EngineConfig(model=str(smollm2_path), backend="cpu", rows=3, max_seq=256, threads=1)
    engine, text = build_engine(config)
    prompts = [tuple(text.tokenizer.encode(SYSTEM + question)) for question in (*QUESTIONS, "Only the weekend:")]

    def ask(salt: str, *names: int) -> dict[int, list[Output]]:
        greedy = SamplingParams(temperature=0.0)
        requests = [
            GenerateRequest(id=n, prompt=prompts[n], sampling=greedy, max_tokens=ANSWER, cache_salt=salt) for n in names
        ]
        return ran(engine, *requests)

    together = ask("together", 0, 1, 2)
    shared = next(n for n, tokens in enumerate(zip(*prompts, strict=False)) if len({*tokens}) > 1)
    hits = shared // engine.info.kv_block_size * engine.info.kv_block_size
    # Two of them may begin with a block more that is alike.
    assert together[0][-1].cached_tokens == 0
    assert min(together[n][-1].cached_tokens for n in (1, 2)) == hits > 0
    for n in range(3):
        assert tokens_of(together[n]) == tokens_of(ask(f"alone {n}", n)[n])
    engine.close()
