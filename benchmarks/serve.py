"""Throughput over HTTP against the same engine in-process: many streaming clients, the same requests on both sides.

    python benchmarks/serve.py [--shape 8b|135m] [--clients 64,256] [--prompt 512] [--out 256] [--mixed] [--check]
    python benchmarks/serve.py --model FILE --backend cpu --clients 4 --prompt 64 --out 32

One side is the engine in a process of its own, driven as throughput.py does: all requests at once, greedy, and with
--mixed a client's next request when its last one has ended. The other is `poot-serve` of the same checkpoint, and
clients that stream over HTTP from processes of their own, which begin at one word. A rate is all tokens of a round,
from the first request to the end of the last answer. The prompts of two rounds share nothing. The ratio is the median
of those of the rounds; on the CPU, which has room for both, the sides take turns, for this machine has others to serve.

Tokens are those that `usage` of the last event tells, and they must be as many as were asked for. --shape serves random
weights (startup.py writes them, under the vocabulary of Llama 3), so every answer ignores end tokens. --mixed adds
requests of mixed lengths, and chats that leave max_tokens to --default-max-tokens.

That the clients are not what is measured is seen by their processor time: a process of them that is idle for most of a
round is waiting for the server. `cores` are what the server, the engine and the busiest process of clients used.

--check: exit 1 unless every line with a verdict says PASS.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from startup import SHAPES, checkpoint
from stream_prompts import Load, Prompts
from stream_sides import Asks, InProcess, OverHttp, Round

from poot_batch.request import EngineConfig
from poot_models.text import open_text

REACH, PUSH = 0.95, 0.98
CLIENT_CORE = 0.5  # most of a core that a process of clients may use
MIXED_EACH = 3  # requests of a client, one after another
WARM_CLIENTS, WARM_TOKENS = 8, 4
SLACK = 16  # positions of a row beside prompt and answer

# Of the engine and of the server, for the same requests.
Pair = tuple[Round, Round]


def make_loads(arguments: argparse.Namespace) -> list[Load]:
    most, lengths = max(arguments.clients), f"{arguments.prompt} in, {arguments.out} out"
    loads = [Load(f"{clients} clients, {lengths}", clients) for clients in arguments.clients]
    if arguments.mixed:
        loads.append(Load(f"{most} clients, mixed lengths up to {lengths}", most, MIXED_EACH, mixed=True))
        name = f"{most} clients, mixed prompts up to {arguments.prompt}, no max_tokens"
        loads.append(Load(name, most, mixed=True, told=False))
    return loads


def requests(arguments: argparse.Namespace, loads: Sequence[Load]) -> Iterator[tuple[Load | None, Asks]]:
    """What both sides are asked, round by round; None is a round that warms up."""
    prompts = Prompts(open_text(arguments.model).tokenizer, arguments.seed, arguments.default_max_tokens)
    warm = Load("", min(WARM_CLIENTS, max(arguments.clients)))
    yield None, prompts.asks(warm, arguments.prompt, min(WARM_TOKENS, arguments.out))
    for load in loads:
        for _ in range(arguments.rounds):
            yield load, prompts.asks(load, arguments.prompt, arguments.out)


def measure(config: EngineConfig, arguments: argparse.Namespace, loads: Sequence[Load]) -> dict[Load, list[Pair]]:
    """The rounds of every load."""
    ran: list[tuple[Load | None, Pair]] = []
    clients = max(arguments.clients)
    if config.backend == "cpu":
        with InProcess(config) as engine, OverHttp(config, clients) as server:
            for load, asks in requests(arguments, loads):
                ran.append((load, (engine.run(asks), server.run(asks))))
    else:
        # An engine takes all the memory of its device.
        with InProcess(config) as engine:
            alone = [engine.run(asks) for _, asks in requests(arguments, loads)]
        with OverHttp(config, clients) as server:
            for first, (load, asks) in zip(alone, requests(arguments, loads), strict=True):
                ran.append((load, (first, server.run(asks))))
    return {load: [pair for of, pair in ran if of == load] for load in loads}


def show(rounds: Sequence[Round]) -> str:
    rates = [one.rate for one in rounds]
    cores = {name: max(one.cores[name] for one in rounds) for name in rounds[0].cores}
    return (
        f"{statistics.median(rates):9.1f} tokens/s ({min(rates):.1f} to {max(rates):.1f}), "
        f"first token after {statistics.median(one.first for one in rounds):.2f} s, "
        f"cores: {', '.join(f'{name} {share:.2f}' for name, share in cores.items())}"
    )


def judge(found: dict[Load, list[Pair]]) -> Iterator[bool]:
    """The table, then the lines with a verdict."""
    for load, pairs in found.items():
        events = statistics.median(over.events_a_token for _, over in pairs)
        print(f"{load.name}\n  in-process {show([alone for alone, _ in pairs])}")
        print(f"  over HTTP  {show([over for _, over in pairs])}; {events:.2f} events a token")
    for load, pairs in found.items():
        ratio = statistics.median(over.rate / alone.rate for alone, over in pairs)
        yield verdict(ratio >= REACH, f"{load.name}: {ratio:.3f} of the engine in-process (reach {REACH}, push {PUSH})")
    served = [over for pairs in found.values() for _, over in pairs]
    faults = [fault for over in served for fault in over.faults]
    told = "every stream ended with as many tokens as were asked for"
    yield verdict(not faults, told if not faults else f"{len(faults)} streams did not: {'; '.join(faults[:3])}")
    busiest = max(over.cores["clients"] for over in served)
    told = f"the busiest process of clients used {busiest:.2f} of a core, at most {CLIENT_CORE}"
    yield verdict(busiest <= CLIENT_CORE, told)


def verdict(passed: bool, text: str) -> bool:
    print(f"{'PASS' if passed else 'FAIL'}: {text}", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b")
    parser.add_argument("--folder", type=Path, default=None, help="where --shape is kept (default: temporary files)")
    parser.add_argument("--model", type=Path, default=None, help="a checkpoint in the place of --shape")
    parser.add_argument("--backend", default="ptx", help="as poot-serve takes it")
    parser.add_argument("--clients", type=counts, default=[64, 256], help="at once, with commas between")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--out", type=int, default=256)
    parser.add_argument("--default-max-tokens", type=int, default=None, help="for chats that name none [OUT]")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the run", flush=True)
    arguments.model = arguments.model or checkpoint(arguments.folder, arguments.shape)
    arguments.default_max_tokens = arguments.default_max_tokens or arguments.out
    config = EngineConfig(
        model=str(arguments.model),
        backend=arguments.backend,
        rows=max(arguments.clients),
        max_seq=arguments.prompt + max(arguments.out, arguments.default_max_tokens) + SLACK,
        default_max_tokens=arguments.default_max_tokens,
    )
    passed = list(judge(measure(config, arguments, make_loads(arguments))))
    return int(arguments.check and not all(passed))


def counts(text: str) -> list[int]:
    return sorted({int(part) for part in text.split(",")})


if __name__ == "__main__":
    sys.exit(main())
