"""Seconds from the command to a server that answers, of a safetensors checkpoint with random weights.

    python benchmarks/startup.py [--shape 8b|135m|tiny] [--backend ptx] [--starts 2] [--folder DIR] [--check]

The checkpoint (bfloat16, in shards, the vocabulary of Llama 3) is written once into the folder and found in the page
cache afterwards, as a restarted server finds its model. Needs only what poot-serve itself needs; runs from a checkout
as well as from installed packages. --check prints PASS or FAIL for every start after the first, by --seconds.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = Path(__file__).resolve().parents[1] / "tests/data/vocab/ggml-vocab-llama-bpe.gguf"
BF16_BYTES = 2
SHARD_BYTES = 4 * 2**30
BLOCK_BYTES = 64 * 2**20
READY_SECONDS = 300.0
REACH_SECONDS = 15.0
# Lines of the log that end a phase of the start, in their order.
PHASES = (
    ("interpreters, imports", "model: started"),
    ("headers", "device: started"),
    ("torch, device, tokenizer, fit", "weights: started"),
    ("weights, allocated", "entries: started"),
    ("entries, weights copied", " INFO ready after "),
    ("listener", " INFO serving "),
)
# The way of the README, for a checkout without the console script too.
COMMAND = (sys.executable, "-c", "from poot_serve.cli import main; main()")


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int


SHAPES = {
    "8b": Shape(32, 4096, 14336, 32, 8, 128),
    "135m": Shape(30, 576, 1536, 9, 3, 64),
    "tiny": Shape(2, 64, 128, 4, 2, 16),
}


def config(shape: Shape, vocabulary: int) -> dict[str, Any]:
    """config.json, with Llama 3.1's own values where the shape has none."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ff,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    }


def tensors(shape: Shape, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape, as transformers names them."""
    q, kv, hidden, ff = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.hidden, shape.ff
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocabulary, hidden)}
    for index in range(shape.layers):
        layer = f"model.layers.{index}"
        found |= {
            f"{layer}.input_layernorm": (hidden,),
            f"{layer}.self_attn.q_proj": (q, hidden),
            f"{layer}.self_attn.k_proj": (kv, hidden),
            f"{layer}.self_attn.v_proj": (kv, hidden),
            f"{layer}.self_attn.o_proj": (hidden, q),
            f"{layer}.post_attention_layernorm": (hidden,),
            f"{layer}.mlp.gate_proj": (ff, hidden),
            f"{layer}.mlp.up_proj": (ff, hidden),
            f"{layer}.mlp.down_proj": (hidden, ff),
        }
    found |= {"model.norm": (hidden,), "lm_head": (vocabulary, hidden)}
    return {f"{name}.weight": size for name, size in found.items()}


def checkpoint(folder: Path | None, name: str) -> Path:
    """The checkpoint of a shape in `folder` (None: among the temporary files), written if it is not there yet."""
    path = (folder or Path(tempfile.gettempdir()) / "poot-startup") / name
    if not (path / "model.safetensors.index.json").exists():
        began = time.perf_counter()
        write_checkpoint(path, SHAPES[name])
        print(f"{path} written in {time.perf_counter() - began:.1f} s", flush=True)
    return path


def write_checkpoint(folder: Path, shape: Shape) -> None:
    """Everything that poot-serve reads. The index is written last: with it the checkpoint is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    count = write_tokenizer(folder)
    sizes = tensors(shape, count)
    (folder / "config.json").write_text(json.dumps(config(shape, count), indent=1))
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    room = SHARD_BYTES
    for name, size in sizes.items():
        nbytes = int(np.prod(size)) * BF16_BYTES
        if nbytes > room and shards[-1]:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = size
        room -= nbytes
    files = [f"model-{index + 1:05}-of-{len(shards):05}.safetensors" for index in range(len(shards))]
    noise = np.random.default_rng(0).standard_normal(BLOCK_BYTES // BF16_BYTES, np.float32) * np.float32(0.02)
    block = memoryview((noise.view(np.uint32) >> 16).astype("<u2").view(np.uint8))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pair: write_shard(folder / pair[0], pair[1], block), zip(files, shards, strict=True)))
    where = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def write_shard(path: Path, sizes: Mapping[str, tuple[int, ...]], block: memoryview) -> None:
    """Matrices repeat one random block; vectors, which scale norms, are ones."""
    at, header = 0, {}
    for name, size in sizes.items():
        end = at + int(np.prod(size)) * BF16_BYTES
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": (at, end)}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for size in sizes.values():
            left = int(np.prod(size)) * BF16_BYTES
            if len(size) == 1:
                file.write(b"\x80\x3f" * size[0])
                continue
            while left:
                left -= file.write(block[: min(left, len(block))])


def write_tokenizer(folder: Path) -> int:
    """tokenizer.json of the vocabulary that the tests carry; the number of its tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    from poot_models.checkpoint import open_checkpoint
    from poot_models.text.pretokenizers import pretokenizer

    with open_checkpoint(VOCABULARY) as given:
        tokens = [str(token) for token in given.metadata["tokenizer.ggml.tokens"]]
        merges = [tuple(str(line).split(" ")) for line in given.metadata["tokenizer.ggml.merges"]]
        kinds = given.metadata["tokenizer.ggml.token_type"]
        cut = pretokenizer(str(given.metadata["tokenizer.ggml.pre"]))
    ids = {token: index for index, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(ids, merges, ignore_merges=cut.ignore_merges))  # type: ignore[arg-type]
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    made.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    control = 3
    made.add_special_tokens(
        [AddedToken(t, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == control]
    )
    made.save(str(folder / "tokenizer.json"), pretty=False)
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return len(tokens)


@dataclass(frozen=True)
class Start:
    """Seconds since the command: the first 200 of /health, and each line of the log; then of one short answer."""

    health: float
    lines: tuple[tuple[float, str], ...]
    answer: float


def start(folder: Path, flags: Iterable[str]) -> Start:
    """Start a server, ask it once, end it. Raises RuntimeError with its log if it does not serve."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    lines: list[tuple[float, str]] = []
    began = time.perf_counter()
    command = [*COMMAND, str(folder), f"127.0.0.1:{port}", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        errors = process.stderr

        def read() -> None:
            lines.extend((time.perf_counter() - began, line.rstrip()) for line in errors)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            while not healthy(port):
                if process.poll() is not None or time.perf_counter() - began > READY_SECONDS:
                    raise RuntimeError("poot-serve does not serve:\n" + "\n".join(line for _, line in lines))
                time.sleep(0.02)
            health = time.perf_counter() - began
            asked = time.perf_counter()
            complete(port)
            answer = time.perf_counter() - asked
        finally:
            process.terminate()
            reader.join(READY_SECONDS)
    return Start(health, tuple(lines), answer)


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def complete(port: int) -> None:
    body = {"prompt": [128000, 9906, 1917], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode())
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked, timeout=120) as answer:
        if (count := json.load(answer)["usage"]["completion_tokens"]) != body["max_tokens"]:
            raise RuntimeError(f"the server answered with {count} tokens")


def show(number: int, found: Start) -> None:
    print(f"start {number}")
    before = 0.0
    for phase, text in PHASES:
        at = next((at for at, line in found.lines if text in line), before)
        print(f"  {phase:30} {at - before:7.2f} s")
        before = at
    print(f"  {'command to /health 200':30} {found.health:7.2f} s")
    print(f"  {'8 tokens after a prompt of 3':30} {found.answer * 1000:7.1f} ms")
    for _, line in found.lines:
        if " INFO " in line:
            print("    " + re.sub(r"^.* INFO ", "", line))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b")
    parser.add_argument("--backend", default="ptx")
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where checkpoints are kept (default: temporary files)"
    )
    parser.add_argument("--rows", default="64")
    parser.add_argument("--max-seq", default="4096")
    parser.add_argument("--seconds", type=float, default=REACH_SECONDS, help="what --check allows")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    folder = checkpoint(arguments.folder, arguments.shape)
    flags = ("--backend", arguments.backend, "--rows", arguments.rows, "--max-seq", arguments.max_seq)
    passed = True
    for number in range(1, arguments.starts + 1):
        found = start(folder, flags)
        show(number, found)
        if arguments.check and number > 1:
            good = found.health <= arguments.seconds
            passed &= good
            print(
                f"{'PASS' if good else 'FAIL'}: start {number} took {found.health:.1f} s, at most {arguments.seconds}"
            )
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
