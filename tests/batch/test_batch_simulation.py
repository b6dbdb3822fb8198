"""Seeds of arrivals, cancels, slow readers and failures, against what each request must get by itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from poot_batch.errors import EngineFaultError
from poot_batch.request import GenerateRequest, SamplingParams

SEEDS = 150
MAX_SEQ = 64


def alone(request: GenerateRequest, model: SimpleNamespace) -> tuple[list[int], str, str]:
    """Tokens, text and finish of a request by the definition: token after token from the model's function."""
    length = len(request.prompt)
    stops = {*request.stop_token_ids, *(() if request.ignore_eos else model.ends)}
    tokens: list[int] = []
    text, unstoppable = "", 0
    for count in range(1, (request.max_tokens or MAX_SEQ - length) + 1):
        token = model.token_at(request.sampling.seed, length + count - 1)
        may_stop = count > request.min_tokens
        if token in stops and may_stop:
            return tokens, text, "stop"
        tokens.append(token)
        text += chr(97 + token % 26)
        if not may_stop:
            unstoppable = len(text)
            continue
        found = [stop for stop in request.stop if text[unstoppable:].endswith(stop)]
        if found:
            return tokens, text if request.include_stop else text[: -max(map(len, found))], "stop"
    return tokens, text, "length"


def random_request(name: int, random_: random.Random, model: SimpleNamespace) -> GenerateRequest:
    prompt = tuple(random_.randrange(model.vocabulary) for _ in range(random_.choice((1, 2, 5, 17, 40))))
    most = random_.choice((None, 1, 2, 3, 8, 20))
    letters = [chr(97 + random_.randrange(26)) for _ in range(6)]
    return GenerateRequest(
        id=name,
        prompt=prompt,
        sampling=SamplingParams(seed=random_.randrange(10**6), logprobs=random_.choice((None, None, 2))),
        max_tokens=most,
        min_tokens=random_.choice((0, 0, min(most or 9, 2))),
        stop=tuple(random_.choice(([], [letters[0]], [letters[1] + letters[2], letters[3]]))),
        stop_token_ids=tuple(random_.choice(([], [random_.randrange(model.vocabulary)]))),
        include_stop=random_.random() < 0.3,
        ignore_eos=random_.random() < 0.4,
        credit=random_.choice((None, None, 1, 3, 64)),
    )


class Simulation:
    """One seed: requests come, read, leave at random times while the engine steps."""

    def __init__(self, seed: int, make: Callable[..., Any], model: SimpleNamespace, fails: dict[str, set[int]]) -> None:
        self.random, self.model = random.Random(seed), model
        rows = self.random.choice((1, 2, 5))
        self.h = make(
            depth=1 + seed % 2,
            rows=rows,
            blocks=self.random.choice((16, 24, 80)),
            capacity=max(rows, self.random.choice((1, 7, 32))),
            max_seq=MAX_SEQ,
            fails=fails,
        )
        self.requests: dict[int, GenerateRequest] = {}
        self.granted: dict[int, int | None] = {}
        self.lost = False

    def run(self) -> None:
        coming = self.random.randrange(1, 14)
        while not self.lost and (coming or self.open):
            action = self.random.random()
            if coming and action < 0.25:
                coming -= 1
                self.submit()
            elif action < 0.28 and self.open:
                self.cancel(self.random.choice(self.open))
            elif action < 0.5 or (not self.h.engine.busy and self.open):
                self.read()
            else:
                self.step()
        # A step may be in flight although all its requests have been cancelled.
        self.h.run()

    @property
    def open(self) -> list[int]:
        return [name for name in self.requests if self.h.finish(name) is None]

    def submit(self) -> None:
        request = random_request(len(self.requests), self.random, self.model)
        self.requests[request.id], self.granted[request.id] = request, request.credit
        self.h.submit(request)

    def cancel(self, name: int) -> None:
        used = self.h.kv.used
        self.h.take(self.h.engine.cancel(name))
        assert self.h.finish(name) == "abort"
        assert self.h.kv.used <= used

    def read(self) -> None:
        """The reader of one row that may be paused takes something."""
        bounded = [name for name in self.open if self.granted[name] is not None]
        if bounded:
            name, tokens = self.random.choice(bounded), self.random.randrange(1, 9)
            self.granted[name] += tokens
            self.h.engine.grant(name, tokens)

    def step(self) -> None:
        try:
            self.h.step()
        except EngineFaultError as error:
            self.h.take(self.h.engine.abandon(error))
            self.lost = True
        for name, granted in self.granted.items():
            assert granted is None or len(self.h.tokens(name)) <= granted

    def check(self) -> None:
        self.h.assert_idle()
        for name, request in self.requests.items():
            tokens, text, finish = alone(request, self.model)
            given, outputs = list(self.h.tokens(name)), self.h.outputs[name]
            if outputs[-1].finish in ("stop", "length"):
                assert (given, outputs[-1].finish) == (tokens, finish)
                assert not request.stop or self.h.text(name) == text
            else:
                assert given == tokens[: len(given)]
                assert text.startswith(self.h.text(name))
            entries = [entry for output in outputs for entry in output.logprobs or ()]
            assert [entry.token for entry in entries] == (given if request.sampling.logprobs is not None else [])


@pytest.mark.parametrize("start", range(0, SEEDS, 50))
def test_without_failures_everybody_gets_what_they_get_alone(harness, fake_model, start: int) -> None:
    finishes = set()
    for seed in range(start, start + 50):
        simulation = Simulation(seed, harness, fake_model, {})
        simulation.run()
        simulation.check()
        finishes |= {outputs[-1].finish for outputs in simulation.h.outputs.values()}
    assert finishes == {"stop", "length", "abort"}


@pytest.mark.parametrize("start", range(1000, 1000 + SEEDS, 50))
def test_failures_end_only_what_they_must(harness, fake_model, start: int) -> None:
    lost = 0
    for seed in range(start, start + 50):
        chance = random.Random(-seed)
        moments = {"open": 6, "submit": 25, "collect": 25}
        fails = {moment: {chance.randrange(1, most) for _ in range(2)} for moment, most in moments.items()}
        simulation = Simulation(seed, harness, fake_model, fails)
        simulation.run()
        simulation.check()
        lost += simulation.lost
    assert 0 < lost < 50
