"""Tokenizers: known answers, seconds and memory to build one of Gemma's size, megabytes a second, and hostile texts.

    python benchmarks/tokenizer.py                 print PASS or FAIL a line
    python benchmarks/tokenizer.py --check         also exit 1 on FAIL
    python benchmarks/tokenizer.py --gemma FILE    also build the tokenizer of this GGUF file

The vocabularies of 262,144 tokens are made up: every token is two earlier ones joined. Each is built three times in
processes of their own; the fastest counts (by the seconds of the core it runs on, whatever else the machine does), and
the most memory. Speed is compared with the tokenizers library itself on
the same vocabulary, read from a tokenizer.json that it wrote, in the same run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from poot_models.checkpoint import GgufFile
from poot_models.text import Tokenizer
from poot_models.text.from_gguf import gguf_tokenizer
from poot_models.text.from_json import json_tokenizer
from poot_models.text.pretokenizers import pretokenizer

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests/data/vocab"
NAMES = ("bert-bge", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2")
SIZE = 262_144
SEPARATOR = "\n__ggml_vocab_test__\n"
SPACE = "\u2581"
BUILD_SECONDS, BUILD_MIB = 1.5, 640
SPEED_RATIO = 0.9
# Twice the text may take this much longer, and a megabyte this long at the most.
GROWTH, SECONDS_PER_MB = 3.5, 3.0
MB = 1_000_000


def joined_tokens(alphabet: list[str], size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """(``size`` tokens, the two that each is made of)."""
    draw = np.random.default_rng(0)
    tokens, known = list(alphabet), set(alphabet)
    merges: list[tuple[str, str]] = []
    while len(tokens) < size:
        for a, b in (draw.random((size, 2)) ** 2 * len(tokens)).astype(int).tolist():
            left, right = tokens[a], tokens[b]
            if len(left) + len(right) <= 16 and left + right not in known:
                tokens.append(left + right)
                known.add(left + right)
                merges.append((left, right))
                if len(tokens) == size:
                    break
    return tokens, merges


def sentencepiece() -> dict[str, Any]:
    start = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = [SPACE, *map(chr, range(97, 123)), *map(chr, range(0x4E00, 0x5600))]
    tokens = [*start, *joined_tokens(letters, SIZE - len(start))[0]]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": -np.arange(SIZE, dtype=np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * (SIZE - 259), np.int32),
        "tokenizer.ggml.add_space_prefix": False,
    }


def byte_level() -> dict[str, Any]:
    tokens, merges = joined_tokens(sorted(pre_tokenizers.ByteLevel.alphabet()), SIZE - 1)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*tokens, "<|endoftext|>"],
        "tokenizer.ggml.token_type": np.array([1] * (SIZE - 1) + [3], np.int32),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
    }


def write_json(folder: Path) -> Library:
    """A tokenizer.json in the form of Gemma's, with every cut of every token as a merge."""
    metadata = sentencepiece()
    texts: list[str] = metadata["tokenizer.ggml.tokens"]
    known = set(texts[259:])
    merges = [
        (text[:cut], text[cut:])
        for text in texts[259:]
        for cut in range(len(text) - 1, 0, -1)
        if text[:cut] in known and text[cut:] in known
    ]
    ids = {text: id for id, text in enumerate(texts)}
    library = Library(models.BPE(ids, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    library.normalizer = normalizers.Replace(" ", SPACE)
    library.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    library.save(str(folder / "tokenizer.json"))
    return library


def timed(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    run()
    return clock() - start


def build(kind: str, path: str) -> None:
    """What a child process does: build once, and print seconds of its own, seconds on the clock, and MiB."""
    metadata: Any = {}
    if kind != "json":
        metadata = GgufFile(Path(path)).metadata if path else {"scores": sentencepiece, "merges": byte_level}[kind]()
    run = (lambda: json_tokenizer(Path(path), {})) if kind == "json" else (lambda: gguf_tokenizer(metadata))
    wall, cpu = time.perf_counter(), timed(run, time.process_time)
    wall = time.perf_counter() - wall
    # Not getrusage: that of a child begins at its parent's.
    (peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    print(json.dumps([cpu, wall, int(peak) / 1024]))


def built(kind: str, path: str = "") -> tuple[float, float, float]:
    command = [sys.executable, __file__, "--build", kind, "--path", path]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3)]
    return min(run[0] for run in runs), min(run[1] for run in runs), max(run[2] for run in runs)


def agrees(name: str) -> tuple[Tokenizer, int, int]:
    """(the tokenizer, texts whose ids are the expected ones, texts)."""
    file = DATA / f"ggml-vocab-{name}.gguf"
    tokenizer = gguf_tokenizer(GgufFile(file).metadata)
    texts = Path(f"{file}.inp").read_text("utf-8").removesuffix(SEPARATOR).split(SEPARATOR)
    lines = Path(f"{file}.out").read_text("utf-8").removesuffix("\n").split("\n")
    pairs = list(zip(texts, lines, strict=True))
    right = sum(tokenizer.encode(text, add_special=False) == list(map(int, ids.split())) for text, ids in pairs)
    return tokenizer, right, len(pairs)


def libraries(folder: Path) -> dict[str, tuple[Tokenizer, Library]]:
    """Ours, and the library's own from its tokenizer.json, by name."""
    metadata = GgufFile(DATA / "ggml-vocab-llama-bpe.gguf").metadata
    ids = {text: id for id, text in enumerate(metadata["tokenizer.ggml.tokens"].tolist())}
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"].tolist()]
    library = Library(models.BPE(ids, merges, ignore_merges=True))
    (pattern,) = pretokenizer("llama-bpe").patterns
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.save(str(folder / "llama-bpe.json"))
    return {
        "llama-bpe, GGUF": (gguf_tokenizer(metadata), Library.from_file(str(folder / "llama-bpe.json"))),
        "made up, tokenizer.json": (json_tokenizer(folder, {}), Library.from_file(str(folder / "tokenizer.json"))),
    }


def prose(size: int) -> str:
    text = "".join((ROOT / name).read_text("utf-8") for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"))
    return (text * (size // len(text) + 1))[:size]


def hostile(size: int) -> dict[str, str]:
    return {
        "one letter": "a" * size,
        "spaces": " " * (size - 1) + "1",
        "newlines": "\n" * size,
        "digits": "1" * size,
        "no spaces": "".join(chr(97 + (i * i * 7919 + i // 3) % 26) for i in range(size)),
        "marks": "a" + "\u0301" * (size // 2),
        "beyond the BMP": "\U0001f999" * (size // 4),
        "prose": prose(size),
    }


class Report:
    def __init__(self) -> None:
        self.failed = False

    def line(self, good: bool, text: str) -> None:
        self.failed |= not good
        print(f"{'PASS' if good else 'FAIL'}  {text}", flush=True)


def report_builds(report: Report, folder: Path, gemma: Path | None) -> None:
    kinds = {"made up, scores, GGUF": ("scores", ""), "made up, merges, GGUF": ("merges", "")}
    kinds["made up, tokenizer.json"] = ("json", str(folder))
    if gemma is not None:
        kinds["Gemma 3 270M, GGUF"] = ("gguf", str(gemma))
    for name, (kind, path) in kinds.items():
        cpu, wall, mib = built(kind, path)
        report.line(
            cpu < BUILD_SECONDS,
            f"build     {name:30} {cpu:6.2f} s of one core (less than {BUILD_SECONDS}), {wall:.2f} s on the clock",
        )
        report.line(mib < BUILD_MIB, f"memory    {name:30} {mib:6.0f} MiB, the process (less than {BUILD_MIB})")


def report_speed(report: Report, folder: Path) -> None:
    # Distinct lines, of which a cache of words does not know all.
    text = prose(MB)
    for name, (ours, library) in libraries(folder).items():
        mine = min(timed(lambda: ours.encode(text)) for _ in range(3))  # noqa: B023
        theirs = min(timed(lambda: library.encode(text)) for _ in range(3))  # noqa: B023
        ratio = theirs / mine
        report.line(
            ratio >= SPEED_RATIO,
            f"encode    {name:30} {1 / mine:6.2f} MB/s, the library {1 / theirs:.2f}: {ratio:.2f} of it "
            f"(at least {SPEED_RATIO})",
        )


def report_hostile(report: Report, tokenizers: dict[str, Tokenizer]) -> None:
    small, large = hostile(MB), hostile(2 * MB)
    for name, tokenizer in tokenizers.items():
        worst, growth, which = 0.0, 0.0, ""
        for kind, text in small.items():
            once = timed(lambda: tokenizer.encode(text), time.process_time)  # noqa: B023
            twice = timed(lambda: tokenizer.encode(large[kind]), time.process_time)  # noqa: B023
            growth = max(growth, twice / max(once, 0.1))
            if once > worst:
                worst, which = once, kind
        report.line(
            growth < GROWTH and worst < SECONDS_PER_MB,
            f"hostile   {name:30} {worst:6.2f} s for 1 MB ({which}), twice as much takes up to {growth:.1f} times that "
            f"(less than {SECONDS_PER_MB} and {GROWTH})",
        )
    ten = timed(lambda: tokenizers["llama-bpe"].encode(prose(10 * MB)))
    report.line(ten < 10 * SECONDS_PER_MB, f"hostile   {'llama-bpe':30} {ten:6.2f} s for 10 MB of prose")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--gemma", type=Path)
    parser.add_argument("--build", help=argparse.SUPPRESS)
    parser.add_argument("--path", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        build(options.build, options.path)
        return 0
    report = Report()
    found = {name: agrees(name) for name in NAMES}
    for name, (_, right, count) in found.items():
        report.line(right == count, f"ids       {name:30} {right} of {count} texts")
    good = sum(right == count for _, right, count in found.values())
    report.line(good == len(NAMES), f"ids       {good} of {len(NAMES)} vocabularies")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_json(folder)
        report_builds(report, folder, options.gemma)
        report_speed(report, folder)
    report_hostile(report, {name: tokenizer for name, (tokenizer, _, _) in found.items()})
    return int(options.check and report.failed)


if __name__ == "__main__":
    sys.exit(main())
