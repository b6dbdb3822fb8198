"""A sound model of one layer in both formats, as bytes that can be broken anywhere, and what one broken case is."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

HIDDEN, FF, HEADS, KV_HEADS, POSITIONS = 64, 96, 4, 2, 64
U8, I32, F32, BOOL, STRING, ARRAY, U32, U64 = 0, 5, 6, 7, 8, 9, 4, 10
TYPE_F32, TYPE_F16, TYPE_Q8_0, TYPE_I8 = 0, 1, 8, 24
# Bytes of an element of the tensor types above; of Q8_0 a block of 32 takes 34.
_SIZES = {TYPE_F32: 4.0, TYPE_F16: 2.0, TYPE_Q8_0: 34 / 32, TYPE_I8: 1.0}
_MOST_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Case:
    """`make` writes the broken model into an empty folder and returns the path that is to be opened.

    `words`: a regular expression that the refusal's message holds beside the name of the file or folder.
    """

    name: str
    make: Callable[[Path], Path]
    words: str


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def texts(values: Sequence[str | bytes]) -> bytes:
    return u32(STRING) + u64(len(values)) + b"".join(map(text, values))


def numbers(letter: str, values: Sequence[float]) -> bytes:
    kinds = {"B": U8, "I": U32, "i": I32, "f": F32, "?": BOOL}
    return u32(kinds[letter]) + u64(len(values)) + struct.pack(f"<{len(values)}{letter}", *values)


def vocabulary() -> tuple[list[str], list[str]]:
    """Byte-level BPE's alphabet with a merge and two control tokens: (tokens, merges)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    alphabet = [chr(byte) for byte in shown] + [chr(256 + index) for index in range(len(hidden))]
    return [*alphabet, "ab", "<|begin|>", "<|end|>"], ["a b"]


@dataclass
class Tensor:
    name: str | bytes
    ne: list[int]
    kind: int = TYPE_F32
    offset: int | None = None  # None: after the tensor before


@dataclass
class Gguf:
    """A GGUF file in pieces. `ends` are where its sections end once it was built: counts, keys, tensors."""

    pairs: dict[str | bytes, tuple[int, bytes]] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    pair_count: int | None = None
    after_pairs: bytes = b""  # pairs beside those, uncounted unless `pair_count` says so
    ends: tuple[int, ...] = ()

    def put(self, key: str | bytes, kind: int, value: bytes) -> None:
        self.pairs[key] = kind, value

    def drop(self, key: str) -> None:
        del self.pairs[key]

    def tensor(self, name: str) -> Tensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def build(self) -> bytes:
        counts = (
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.pairs) if self.pair_count is None else self.pair_count,
        )
        head = self.magic + struct.pack("<IQQ", self.version, *counts)
        pairs = b"".join(text(key) + u32(kind) + value for key, (kind, value) in self.pairs.items()) + self.after_pairs
        entries, data = b"", b""
        for tensor in self.tensors:
            size = prod(tensor.ne) * _SIZES.get(tensor.kind, 4.0)
            size = int(size) if size <= _MOST_BYTES else 0  # what claims to be huge has no bytes
            offset = len(data) if tensor.offset is None else tensor.offset
            entries += text(tensor.name) + struct.pack(f"<I{len(tensor.ne)}QI", len(tensor.ne), *tensor.ne, tensor.kind)
            entries += u64(offset)
            data += bytes(size + -size % 32)
        self.ends = len(head), len(head + pairs), len(head + pairs + entries)
        return head + pairs + entries + bytes(-self.ends[-1] % 32) + data


def sound_gguf() -> Gguf:
    """A llama of one layer with a vocabulary."""
    tokens, merges = vocabulary()
    made = Gguf()
    made.put("general.architecture", STRING, text("llama"))
    for key, value in {
        "context_length": POSITIONS,
        "embedding_length": HIDDEN,
        "block_count": 1,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
    }.items():
        made.put(f"llama.{key}", U32, u32(value))
    made.put("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5))
    made.put("llama.rope.freq_base", F32, struct.pack("<f", 1e4))
    made.put("tokenizer.ggml.model", STRING, text("gpt2"))
    made.put("tokenizer.ggml.pre", STRING, text("gpt-2"))
    made.put("tokenizer.ggml.tokens", ARRAY, texts(tokens))
    made.put("tokenizer.ggml.token_type", ARRAY, numbers("i", [1] * (len(tokens) - 2) + [3, 3]))
    made.put("tokenizer.ggml.merges", ARRAY, texts(merges))
    made.put("tokenizer.ggml.eos_token_id", U32, u32(len(tokens) - 1))
    kv = KV_HEADS * HIDDEN // HEADS
    shapes = {"token_embd": [HIDDEN, len(tokens)], "output_norm": [HIDDEN]}
    layer = {"attn_norm": [HIDDEN], "ffn_norm": [HIDDEN], "attn_q": [HIDDEN, HIDDEN], "attn_output": [HIDDEN, HIDDEN]}
    layer |= {"attn_k": [HIDDEN, kv], "attn_v": [HIDDEN, kv], "ffn_down": [FF, HIDDEN]}
    layer |= {"ffn_gate": [HIDDEN, FF], "ffn_up": [HIDDEN, FF]}
    shapes |= {f"blk.0.{name}": shape for name, shape in layer.items()}
    made.tensors = [Tensor(f"{name}.weight", shape) for name, shape in shapes.items()]
    return made


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": FF,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def shapes() -> dict[str, list[int]]:
    """The tensors of a safetensors directory's model."""
    kv = KV_HEADS * HIDDEN // HEADS
    prefix = "model.layers.0."
    names = {
        "model.embed_tokens": [len(vocabulary()[0]), HIDDEN],
        "model.norm": [HIDDEN],
        f"{prefix}input_layernorm": [HIDDEN],
        f"{prefix}post_attention_layernorm": [HIDDEN],
        f"{prefix}self_attn.q_proj": [HIDDEN, HIDDEN],
        f"{prefix}self_attn.k_proj": [kv, HIDDEN],
        f"{prefix}self_attn.v_proj": [kv, HIDDEN],
        f"{prefix}self_attn.o_proj": [HIDDEN, HIDDEN],
        f"{prefix}mlp.gate_proj": [FF, HIDDEN],
        f"{prefix}mlp.up_proj": [FF, HIDDEN],
        f"{prefix}mlp.down_proj": [HIDDEN, FF],
    }
    return {f"{name}.weight": shape for name, shape in names.items()}


def header_of(tensors: dict[str, list[int]]) -> tuple[dict[str, Any], int]:
    """(a safetensors header of F32 tensors one after the other, bytes of its data)."""
    header, end = {}, 0
    for name, shape in tensors.items():
        size = 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return header, end


def safetensors(header: Any, size: int, *, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return u64(len(raw) if length is None else length) + raw + bytes(size)


def tokenizer_json() -> dict[str, Any]:
    """The vocabulary in the tokenizers library's form."""
    tokens, merges = vocabulary()
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": id, "content": tokens[id], **special} for id in (len(tokens) - 2, len(tokens) - 1)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: id for id, token in enumerate(tokens[:-2])}, "merges": merges},
    }


def write_directory(folder: Path) -> Path:
    """A sound safetensors directory in `folder`."""
    path = folder / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "model.safetensors").write_bytes(safetensors(*header_of(shapes())))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return path
