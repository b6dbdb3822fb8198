"""Sound GGUF files whose metadata, tensors or vocabulary make no llama: what is changed, and what is said then."""

from __future__ import annotations

import struct
from collections.abc import Callable

from broken_model import (
    ARRAY,
    BOOL,
    F32,
    HIDDEN,
    I32,
    STRING,
    TYPE_F16,
    TYPE_I8,
    U8,
    U32,
    Gguf,
    Tensor,
    numbers,
    text,
    texts,
    u32,
    vocabulary,
)

Change = Callable[[Gguf], object]
# What is wrong, what the message must say, and how it comes about.
Changes = list[tuple[str, str, Change]]

NAN, INFINITE, MINUS_ONE = (struct.pack("<f", float(value)) for value in ("nan", "inf", "-1"))
Q, EMBEDDING = "blk.0.attn_q.weight", "token_embd.weight"


def llama_changes() -> Changes:
    return [*_hyperparameters(), *_fits(), *_vocabularies()]


def _hyperparameters() -> Changes:
    def put(key: str, kind: int, raw: bytes) -> Change:
        return lambda made: made.put(f"llama.{key}", kind, raw)

    def signed(value: int) -> bytes:
        return struct.pack("<i", value)

    half = struct.pack("<f", 0.5)

    def array(key: str, values: bytes) -> Change:
        return put(f"attention.{key}", ARRAY, values)

    def each(*changes: Change) -> Change:
        return lambda made: [change(made) for change in changes]

    scaling, factor, large = "rope.scaling.type", "rope.scaling.factor", (1 << 31) - 1
    return [
        ("no architecture", "does not say general.architecture", lambda made: made.drop("general.architecture")),
        ("an architecture of a number", "does not say general.architecture",
         lambda made: made.put("general.architecture", U32, u32(1))),
        ("an unknown architecture", "'wavenet' is not supported",
         lambda made: made.put("general.architecture", STRING, text("wavenet"))),
        ("no block_count", "does not say llama.block_count", lambda made: made.drop("llama.block_count")),
        ("a block_count of text", "llama.block_count must be", put("block_count", STRING, text("1"))),
        ("a block_count of 1.0", "llama.block_count must be", put("block_count", F32, struct.pack("<f", 1))),
        ("a block_count of true", "llama.block_count must be", put("block_count", BOOL, b"\1")),
        ("a block_count of 0", "llama.block_count must be", put("block_count", U32, u32(0))),
        ("a block_count of -1", "llama.block_count must be", put("block_count", I32, signed(-1))),
        ("a block_count of 2^32-1", "llama.block_count must be", put("block_count", U32, u32((1 << 32) - 1))),
        ("no embedding_length", "does not say llama.embedding_length",
         lambda made: made.drop("llama.embedding_length")),
        ("an embedding_length of 2^31", "llama.embedding_length must be", put("embedding_length", U32, u32(1 << 31))),
        ("a context_length of 0", "llama.context_length must be", put("context_length", U32, u32(0))),
        ("no context_length", "does not say llama.context_length", lambda made: made.drop("llama.context_length")),
        ("a head_count of 0", "head_count", put("attention.head_count", U32, u32(0))),
        ("a head_count of 2^31-1", "head_count|rotary|head_dim|says", put("attention.head_count", U32, u32(large))),
        ("an array of head counts that is too long", "head_count", array("head_count", numbers("I", [4, 4]))),
        ("a negative head count in an array", "head_count", array("head_count", numbers("i", [-4]))),
        ("head counts of text", "head_count", array("head_count", texts(["4"]))),
        ("head counts of NaN", "head_count", array("head_count", numbers("f", [float("nan")]))),
        ("a feed-forward length of half", "feed_forward_length",
         put("feed_forward_length", ARRAY, numbers("f", [95.5]))),
        ("KV heads that do not divide", "head|says", put("attention.head_count_kv", U32, u32(3))),
        ("a key_length of 2^31-1", "key_length must be", put("attention.key_length", U32, u32(large))),
        ("a key_length of 2^31-2", "key_length must be", put("attention.key_length", U32, u32(large - 1))),
        ("heads of 2^31-2 columns", "key_length must be", each(
            put("embedding_length", U32, u32(large - 1)), put("attention.head_count", U32, u32(1)))),
        ("an eps of NaN", "epsilon must be", put("attention.layer_norm_rms_epsilon", F32, NAN)),
        ("an eps of 0", "epsilon must be", put("attention.layer_norm_rms_epsilon", F32, bytes(4))),
        ("an eps of text", "epsilon must be", put("attention.layer_norm_rms_epsilon", STRING, text("1e-5"))),
        ("a rotary base of NaN", "rope.freq_base must be", put("rope.freq_base", F32, NAN)),
        ("an infinite rotary base", "rope.freq_base must be", put("rope.freq_base", F32, INFINITE)),
        ("a negative rotary base", "rope.freq_base must be", put("rope.freq_base", F32, MINUS_ONE)),
        ("an odd number of rotated columns", "even number", put("rope.dimension_count", U32, u32(15))),
        ("2^31 rotated columns", "rope.dimension_count must be", put("rope.dimension_count", U32, u32(1 << 31))),
        ("an unknown rotary scaling", "rope.scaling.type must be", put(scaling, STRING, text("spiral"))),
        ("a rotary scaling of a list", "rope.scaling.type must be", put(scaling, ARRAY, texts(["a"]))),
        ("a rotary factor of 0", "rope.scaling.factor",
         each(put(scaling, STRING, text("linear")), put(factor, F32, bytes(4)))),
        ("yarn without its factor", "does not say llama.rope.scaling.factor",
         put(scaling, STRING, text("yarn"))),
        ("yarn over one position", "1 positions", each(
            put(scaling, STRING, text("yarn")), put(factor, F32, half),
            put("rope.scaling.original_context_length", U32, u32(1)))),
        ("longrope without its factors", "needs rope_factors", put(scaling, STRING, text("longrope"))),
        ("a window of text", "sliding_window", put("attention.sliding_window", STRING, text("8"))),
    ]  # fmt: skip


def _fits() -> Changes:
    def of(field: str, value: object, name: str = Q) -> Change:
        return lambda made: setattr(made.tensor(name), field, value)

    def add(name: str, ne: list[int]) -> Change:
        return lambda made: made.tensors.append(Tensor(name, ne))

    return [
        ("a missing tensor", "no tensor blk.0.attn_q.weight", of("name", "blk.0.attn_x.weight")),
        ("no embedding table", "embedding table", of("name", "x.weight", EMBEDDING)),
        ("an embedding table of one dimension", "embedding table", of("ne", [HIDDEN], EMBEDDING)),
        ("another embedding_length", "says", lambda made: made.put("llama.embedding_length", U32, u32(2 * HIDDEN))),
        ("a second layer that is not there", r"blk\.1\.", lambda made: made.put("llama.block_count", U32, u32(2))),
        ("a thousand layers that are not there", r"blk\.1\.",
         lambda made: made.put("llama.block_count", U32, u32(1000))),
        ("a transposed matrix", "ffn_up.weight is", of("ne", [96, HIDDEN], "blk.0.ffn_up.weight")),
        ("a matrix of three dimensions", "attn_q.weight is", of("ne", [HIDDEN, HIDDEN, 1])),
        ("a norm of two rows", "output_norm.weight is", of("ne", [HIDDEN, 2], "output_norm.weight")),
        ("a bias of one number", "attn_q.bias", add("blk.0.attn_q.bias", [1])),
        ("a matrix of integers", "attn_q.weight is of dtype I8", of("kind", TYPE_I8)),
        ("rotary factors of another length", "rope_freqs.weight is", add("rope_freqs.weight", [3])),
        ("rotary factors of 0", "rope_freqs.weight must hold", add("rope_freqs.weight", [8])),
        ("rotary factors of integers", "rope_freqs.weight", lambda made: made.tensors.append(
            Tensor("rope_freqs.weight", [8], TYPE_I8))),
        ("fewer rows than tokens", "tokens", lambda made: (
            of("kind", TYPE_F16, EMBEDDING)(made), of("ne", [HIDDEN, 200], EMBEDDING)(made))),
    ]  # fmt: skip


def _vocabularies() -> Changes:
    tokens, _ = vocabulary()
    nans = numbers("f", [float("nan")] * len(tokens))

    def put(key: str, kind: int, raw: bytes) -> Change:
        return lambda made: made.put(f"tokenizer.{key}", kind, raw)

    def sentencepiece(key: str, kind: int, raw: bytes) -> Change:
        return lambda made: (made.put("tokenizer.ggml.model", STRING, text("llama")), put(key, kind, raw)(made))

    return [
        ("no tokenizer", "has no tokenizer", lambda made: made.drop("tokenizer.ggml.model")),
        ("an unknown tokenizer", "'abacus'", put("ggml.model", STRING, text("abacus"))),
        ("a tokenizer of a number", "ggml.model is not a string", put("ggml.model", U32, u32(2))),
        ("an unknown pre-tokenizer", "'scissors'", put("ggml.pre", STRING, text("scissors"))),
        ("no tokens", "no tokenizer.ggml.tokens", lambda made: made.drop("tokenizer.ggml.tokens")),
        ("tokens of numbers", "tokens is not an array of strings", put("ggml.tokens", ARRAY, numbers("I", [1, 2]))),
        ("tokens of one string", "tokens is not an array of strings", put("ggml.tokens", STRING, text("abc"))),
        ("zero tokens", "tokens is empty", put("ggml.tokens", ARRAY, texts([]))),
        ("a token twice", "'ab' twice", put("ggml.tokens", ARRAY, texts([*tokens[:-1], "ab"]))),
        ("a token that is not UTF-8", "not UTF-8", put("ggml.tokens", ARRAY, texts([*tokens[:-1], b"\xff"]))),
        ("token types of text", "token_type", put("ggml.token_type", ARRAY, texts(["1"] * len(tokens)))),
        ("too few token types", "token_type has 3 numbers", put("ggml.token_type", ARRAY, numbers("i", [1, 1, 1]))),
        ("no merges", "no tokenizer.ggml.merges", lambda made: made.drop("tokenizer.ggml.merges")),
        ("a merge of one token", "'ab', which is not two tokens", put("ggml.merges", ARRAY, texts(["ab"]))),
        ("a merge of unknown tokens", "merges do(es)? not fit", put("ggml.merges", ARRAY, texts(["zq qz"]))),
        ("merges of numbers", "merges is not an array of strings", put("ggml.merges", ARRAY, numbers("I", [1]))),
        ("a flag of text", "add_bos_token", put("ggml.add_bos_token", STRING, text("yes"))),
        ("no scores", "scores is missing", sentencepiece("x", U8, b"\1")),
        ("scores of NaN", "not finite", sentencepiece("ggml.scores", ARRAY, nans)),
        ("too few scores", "scores has 1 numbers", sentencepiece("ggml.scores", ARRAY, numbers("f", [0.0]))),
        ("more tokens than rows", "tokens", put("ggml.tokens", ARRAY, texts([f"t{index}" for index in range(300)]))),
    ]  # fmt: skip
