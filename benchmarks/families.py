"""Logits of every model family beside transformers' in float32, from safetensors and from GGUF files.

    python benchmarks/families.py                      print the table
    python benchmarks/families.py --check              also print PASS or FAIL, and exit 1 on FAIL
    python benchmarks/families.py --only cohere        only models whose name contains this; says nothing of the others
    python benchmarks/families.py --backend ptx --tolerance 0.2         on a GPU, which rounds activations to bfloat16

Tiny random models of transformers (tiny_models.py) are saved, written as GGUF files the way llama.cpp's converter does
(float32 and Q8_0; the reference then has the weights that the file holds), and run by the executor alone. "prompt" is
the largest error of a logit after 45 tokens at once and after uneven chunks of them, "decode" the same token by token
from there on; windows are 8 positions. Both are of all models of a family, of which there are as many as "models" says.

Every architecture of the registry has a row, and one that no model here has fails.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import tiny_models
import torch
from model_runner import Runner
from tiny_gguf import write_gguf
from transformers.utils import logging

from poot_models import ModelHandle, load
from poot_models.families import find_family, known_architectures

TOLERANCE = 1e-3  # of the CPU, in float32
PROMPT, DECODED = 45, 12
CHUNKS = (1, 7, 3, 7, 7, 2, 7, 5, 6)  # 45 tokens; a window's ring wraps several times
KINDS = ("F32", "Q8_0")
# Models for images too: the name of the text part. Its tensors have other names then.
WITH_IMAGES = ("ministral3",)
FORMATS = ("safetensors", "GGUF")


@dataclass
class Row:
    """What was found for one family in one format."""

    wanted: set[str]
    tolerance: float
    seen: set[str] = field(default_factory=set)
    models: int = 0
    prompt: float = 0.0
    decode: float = 0.0

    def add(self, model: ModelHandle, prompt: float, decode: float) -> None:
        self.models += 1
        self.seen.add(model.architecture)
        self.prompt, self.decode = (float(np.fmax(*pair)) for pair in ((self.prompt, prompt), (self.decode, decode)))

    @property
    def missing(self) -> list[str]:
        return sorted(self.wanted - self.seen)

    @property
    def passed(self) -> bool:
        return not self.missing and max(self.prompt, self.decode) < self.tolerance


def rows_of_registry(tolerance: float = TOLERANCE) -> dict[tuple[str, str], Row]:
    """An empty row for every (family, format) that some architecture of the registry belongs to."""
    rows: dict[tuple[str, str], Row] = {}
    for architecture in known_architectures():
        # GGUF files name architectures in lower case, config.json names classes.
        key = find_family(architecture).name, FORMATS[architecture == architecture.lower()]
        rows.setdefault(key, Row(set(), tolerance)).wanted.add(architecture)
    return rows


def errors(path: Path, reference: Any, backend: str) -> tuple[ModelHandle, float, float]:
    """The model, and the largest errors of its logits for a prompt and token by token."""
    handle = load(path)
    tokens = np.random.default_rng(3).integers(0, tiny_models.SIZES["vocab_size"], PROMPT + DECODED).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    if not np.abs(expected).max() > 1:
        raise ValueError(f"{path}: the reference has nothing to say")
    whole = Runner(handle, backend=backend)
    whole.open(1)
    prompt = difference(whole.step((1, tokens[:PROMPT])), expected[PROMPT - 1])
    small = Runner(handle, chunk=max(CHUNKS), backend=backend)
    small.open(2)
    at = 0
    for size in CHUNKS:
        found = small.step((2, tokens[at : at + size]))
        at += size
        prompt = max(prompt, difference(found, expected[at - 1]))
    decode = 0.0
    for runner, row in ((whole, 1), (small, 2)):
        for position in range(PROMPT, PROMPT + DECODED):
            found = runner.step((row, tokens[position : position + 1]))
            decode = max(decode, difference(found, expected[position]))
    return handle, prompt, decode


def difference(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """The largest; infinite if anything found is not a number."""
    largest = float(np.abs(found[0] - expected).max())
    return largest if np.isfinite(largest) else float("inf")


def checkpoints(name: str, folder: Path) -> list[tuple[Path, Any]]:
    """The model under every format that it has, and for each the reference."""
    model = tiny_models.build(name)
    made: list[tuple[Path, Any]] = [(folder / "directory", model)]
    tiny_models.save(model, made[0][0])
    if name in WITH_IMAGES:
        made.append((folder / "images", tiny_models.with_images(name, tied=False)))
        tiny_models.save(made[-1][1], made[-1][0])
    if name in tiny_models.IN_GGUF:
        for kind in KINDS:
            path = folder / f"{kind}.gguf"
            state = write_gguf(model, path, gguf.GGMLQuantizationType[kind])
            made.append((path, tiny_models.holding(model, state)))
    return made


def measure(names: Sequence[str], rows: dict[tuple[str, str], Row], backend: str = "cpu") -> None:
    """Add what these models show to the rows of their families."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            for path, reference in checkpoints(name, Path(folder)):
                handle, prompt, decode = errors(path, reference, backend)
                rows[handle.family.name, FORMATS[path.is_file()]].add(handle, prompt, decode)


def show(rows: dict[tuple[str, str], Row]) -> None:
    print(f"{'family':12} {'format':12} {'models':>6} {'prompt':>9} {'decode':>9}        architectures")
    for (family, form), row in sorted(rows.items()):
        verdict = "PASS" if row.passed else "FAIL"
        names = ", ".join(sorted(row.seen)) + (f"; no checkpoint of {', '.join(row.missing)}" if row.missing else "")
        print(f"{family:12} {form:12} {row.models:6} {row.prompt:9.1e} {row.decode:9.1e}  {verdict}  {names}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless everything held")
    parser.add_argument("--only", default="", metavar="TEXT", help="only models whose name contains TEXT")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="of a logit (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    names = [name for name in tiny_models.TINY if arguments.only in name]
    rows, began = rows_of_registry(arguments.tolerance), time.perf_counter()
    measure(names, rows, arguments.backend)
    if arguments.only:
        rows = {key: row for key, row in rows.items() if row.models}
        for row in rows.values():
            row.wanted &= row.seen
    show(rows)
    passed = bool(rows) and all(row.passed for row in rows.values())
    worst = max((max(row.prompt, row.decode) for row in rows.values()), default=0.0)
    print(f"{len(names)} models, largest error {worst:.1e}, in {time.perf_counter() - began:.0f} s")
    if not arguments.check:
        return 0
    print("PASS" if passed else "FAIL")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
