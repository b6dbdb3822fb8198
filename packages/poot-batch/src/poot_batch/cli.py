"""The console script: generate text, measure a model, try the host logic. Nothing heavy is imported before its time."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from poot_batch import __version__
from poot_batch.errors import EngineError

_MOST_COUNT = 2**24
_SEEDS = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0, 1 when the model cannot be served or the request is refused, 2 for a wrong command line.

    `simulate` exits with 1 when a seed failed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # a model's text may not fit the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command == "simulate" and (wrong := _wrong(given)) is not None:
        parser.error(wrong)
    # These are light; torch comes with the model.
    from poot_executor.errors import ExecutorError
    from poot_models.errors import ModelError

    code = 0
    try:
        if given.command == "generate":
            _generate(given)
        elif given.command == "bench":
            _bench(given)
        else:
            code = 0 if _simulate(given) else 1
        sys.stdout.flush()
    except (EngineError, ExecutorError, ModelError) as error:
        print(f"poot-batch: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read has left. The interpreter must not find the pipe broken once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="poot-batch", description="The poot engine on the command line.")
    parser.add_argument("--version", action="version", version=f"poot-batch {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="complete a prompt and print the text as it comes")
    _add_engine_flags(generate)
    generate.add_argument("--prompt", required=True, help="the text to go on from")
    generate.add_argument("--max-tokens", type=int, help="tokens to generate at most [what is left of max-seq]")
    generate.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token [0]")
    generate.add_argument("--seed", type=int, help="makes draws repeatable [random]")
    bench = commands.add_parser("bench", help="measure prompt and decode speed, and the phases of the start")
    _add_engine_flags(bench)
    bench.add_argument("--prompt-tokens", type=_count, default=256, help="tokens of the measured prompt [256]")
    bench.add_argument("--decode-tokens", type=_count, default=64, help="tokens each row then generates [64]")
    _add_simulate(commands.add_parser("simulate", help="play random worlds around the host logic, without a model"))
    return parser


def _add_simulate(simulate: argparse.ArgumentParser) -> None:
    # Without defaults, to know what was given.
    simulate.add_argument("--seeds", type=_count, help=f"worlds to play [{_SEEDS}]")
    simulate.add_argument("--first", type=int, help="the first one's seed [0]")
    simulate.add_argument("--processes", type=_processes, help="processes to spread them over [1]")
    simulate.add_argument("--seed", type=int, help="play this one alone")
    simulate.add_argument("--trace", action="store_true", help="with --seed: print all that happens in it")
    simulate.add_argument("--mutations", action="store_true", help="plant known faults and see each one found")
    simulate.add_argument("--part", action="store_true", help=argparse.SUPPRESS)


def _wrong(given: argparse.Namespace) -> str | None:
    """What flags of `simulate` exclude each other."""
    counts = {"--seeds": given.seeds, "--first": given.first, "--processes": given.processes}
    extra = [flag for flag, value in counts.items() if value is not None]
    if given.seed is not None and given.mutations:
        return "--seed and --mutations exclude each other"
    if given.trace and given.seed is None:
        return "--trace is only taken with --seed"
    if extra and (given.seed is not None or given.mutations):
        return f"{extra[0]} is not taken with {'--mutations' if given.mutations else '--seed'}"
    return None


def _count(text: str) -> int:
    return _whole(text, _MOST_COUNT)


def _processes(text: str) -> int:
    return _whole(text, 4 * (os.cpu_count() or 1))


def _whole(text: str, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes a whole number, not {text[:64]!r}") from None
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"must be between 1 and {most}, not {value}")
    return value


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a GGUF file or a safetensors directory")
    parser.add_argument("--backend", default="auto", help="auto, or a backend's name [auto]")
    parser.add_argument("--rows", type=int, default=4, help="sequences run at once [4]")
    parser.add_argument("--max-seq", type=int, default=4096, help="positions of a sequence at most [4096]")
    parser.add_argument("--threads", type=int, help="host threads [the backend's choice]")


def _generate(given: argparse.Namespace) -> None:
    from poot_batch.llm import LLM
    from poot_batch.request import SamplingParams

    sampling = SamplingParams(temperature=given.temperature, seed=given.seed)
    with LLM(given.model, backend=given.backend, rows=given.rows, max_seq=given.max_seq, threads=given.threads) as llm:
        for delta in llm.stream(given.prompt, sampling, max_tokens=given.max_tokens):
            print(delta.text, end="", flush=True)
    print()


def _bench(given: argparse.Namespace) -> None:
    from poot_batch.bench import bench
    from poot_batch.request import EngineConfig

    config = EngineConfig(
        model=given.model, backend=given.backend, rows=given.rows, max_seq=given.max_seq, threads=given.threads
    )
    for line in bench(config, given.prompt_tokens, given.decode_tokens):
        print(line, flush=True)


def _simulate(given: argparse.Namespace) -> bool:
    """Whether everything held."""
    from poot_batch.simulation import command

    def say(line: str) -> None:
        print(line, flush=True)

    first, seeds = given.first or 0, given.seeds or _SEEDS
    if given.part:
        command.report(first, seeds, say)
        return True
    if given.mutations:
        return command.prove(say)
    if given.seed is not None:
        return command.replay(given.seed, say, trace=given.trace)
    return command.campaign(first, seeds, given.processes or 1, say)


if __name__ == "__main__":
    raise SystemExit(main())
