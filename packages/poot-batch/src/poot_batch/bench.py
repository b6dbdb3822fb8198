"""`poot-batch bench`: how fast a model reads and writes here, and what its start cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from poot_batch.build import build_engine
from poot_batch.engine import Engine
from poot_batch.errors import EngineFaultError
from poot_batch.request import EngineConfig, GenerateRequest, SamplingParams

RUNS = 3
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds until every row had its first token, and from then until the last one."""

    prompt: float
    decode: float


def bench(config: EngineConfig, prompt_tokens: int, decode_tokens: int) -> Iterator[str]:
    """Lines of a table: the start's phases, then prompt and decode speed, the best of three runs each.

    Raises what `build_engine` raises, RequestError for numbers that the engine refuses, EngineFaultError.
    """
    engine, _ = build_engine(config, encodes=False)
    try:
        info = engine.info
        yield f"{info.architecture} on {info.backend} ({info.device}), {info.rows} rows of {info.max_seq} positions"
        yield ""
        yield "start    seconds"
        for phase, seconds in info.start_seconds.items():
            yield f"{phase:<8} {seconds:7.2f}"
        yield ""
        yield "measure                     tokens  seconds  tokens/s"
        yield _line("prompt, 1 row", prompt_tokens, min(_run(engine, 1, prompt_tokens, 1).prompt for _ in range(RUNS)))
        for rows in sorted({1, info.rows}):
            # The first token of a row comes with its prompt.
            seconds = min(_run(engine, rows, 4, decode_tokens + 1).decode for _ in range(RUNS))
            yield _line(f"decode, {rows} row{'s' if rows > 1 else ''}", rows * decode_tokens, seconds)
    finally:
        engine.close()


def _line(name: str, tokens: int, seconds: float) -> str:
    return f"{name:<26} {tokens:7} {seconds:8.3f} {tokens / max(seconds, 1e-9):9.1f}"


def _run(engine: Engine, rows: int, prompt_tokens: int, tokens: int) -> _Times:
    """`rows` requests at once, each `prompt_tokens` long and generating `tokens`."""
    size, waiting = engine.info.vocab_size, set(range(rows))
    began = time.perf_counter()
    for row in range(rows):
        prompt = tuple((7919 * (n + 1) + 104729 * row) % size for n in range(prompt_tokens))
        engine.submit(GenerateRequest(id=row, prompt=prompt, sampling=_GREEDY, max_tokens=tokens, ignore_eos=True))
    first = began
    while engine.busy:
        for output in engine.step():
            if output.finish == "error":
                raise EngineFaultError(output.error_message or "the engine failed")
            waiting.discard(output.request_id)
        if not waiting and first == began:
            first = time.perf_counter()
    return _Times(first - began, time.perf_counter() - first)
