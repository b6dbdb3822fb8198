"""The in-process engine that serve.py compares the server with, in a process of its own, which leaves nothing on the
device.

Standard input: EngineConfig as a line of JSON, answered with EngineInfo; then, a line each, the requests of every
client (lists of stream_load.Ask), answered with Told. It ends with its standard input.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import deque
from collections.abc import Sequence

import msgspec
from here import require_gpu
from stream_load import Ask, Told

from poot_batch.build import build_engine
from poot_batch.engine import Engine
from poot_batch.request import EngineConfig, GenerateRequest, SamplingParams

GREEDY = SamplingParams(temperature=0.0)


class Clients:
    """Each has one request in the engine, and submits the next one when that has ended."""

    def __init__(self, engine: Engine, given: Sequence[Sequence[Ask]]) -> None:
        self._engine = engine
        self._asks = [deque(asks) for asks in given]
        self._counts = [0] * len(given)
        self._began = [0.0] * len(given)
        self._tokens = self._events = 0
        self._firsts: list[float] = []

    def run(self) -> Told:
        """Raises RuntimeError if a request gets fewer tokens than it asked for."""
        began, spent = time.perf_counter(), time.process_time()
        for client in range(len(self._asks)):
            self._submit(client)
        while self._engine.busy:
            outputs, now = self._engine.step(), time.perf_counter()
            for output in outputs:
                client = output.request_id
                if output.tokens and not self._counts[client]:
                    self._firsts.append(now - self._began[client])
                self._counts[client] += len(output.tokens)
                self._tokens += len(output.tokens)
                self._events += 1
                if output.finish is not None:
                    self._ended(client, output.finish)
        ended, spent = time.perf_counter(), time.process_time() - spent
        return Told(began, ended, spent, self._tokens, self._events, self._firsts, [])

    def _submit(self, client: int) -> None:
        ask = self._asks[client][0]
        self._began[client], self._counts[client] = time.perf_counter(), 0
        prompt = tuple(ask.prompt)
        self._engine.submit(
            GenerateRequest(id=client, prompt=prompt, sampling=GREEDY, max_tokens=ask.max_tokens, ignore_eos=True)
        )

    def _ended(self, client: int, finish: str) -> None:
        ask = self._asks[client].popleft()
        if finish != "length" or self._counts[client] != ask.expected:
            raise RuntimeError(f"a request ended with {finish} after {self._counts[client]} tokens of {ask.expected}")
        if self._asks[client]:
            self._submit(client)


def main() -> int:
    # The collector and the end are as in the engine's process of a server.
    gc.disable()
    config = msgspec.json.decode(sys.stdin.readline(), type=EngineConfig)
    require_gpu(config.backend)
    engine, _ = build_engine(config)
    gc.collect()
    gc.freeze()
    gc.enable()
    print(msgspec.json.encode(engine.info).decode(), flush=True)
    for line in sys.stdin:
        told = Clients(engine, msgspec.json.decode(line, type=list[list[Ask]])).run()
        print(msgspec.json.encode(told).decode(), flush=True)
    engine.close()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
