"""ggml's tensor type ids (`enum ggml_type` in ggml.h)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from poot_executor.encodings import Dense, Encoding, Ggml

_READABLE: Mapping[int, Encoding] = MappingProxyType(
    {
        0: Dense("F32"),
        1: Dense("F16"),
        2: Ggml("Q4_0"),
        3: Ggml("Q4_1"),
        6: Ggml("Q5_0"),
        7: Ggml("Q5_1"),
        8: Ggml("Q8_0"),
        10: Ggml("Q2_K"),
        11: Ggml("Q3_K"),
        12: Ggml("Q4_K"),
        13: Ggml("Q5_K"),
        14: Ggml("Q6_K"),
        24: Dense("I8"),
        25: Dense("I16"),
        26: Dense("I32"),
        27: Dense("I64"),
        28: Dense("F64"),
        30: Dense("BF16"),
    }
)

_OTHER_NAMES: Mapping[int, str] = MappingProxyType(
    {
        9: "Q8_1",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        20: "IQ4_NL",
        21: "IQ3_S",
        22: "IQ2_S",
        23: "IQ4_XS",
        29: "IQ1_M",
        34: "TQ1_0",
        35: "TQ2_0",
        39: "MXFP4",
        40: "NVFP4",
        41: "Q1_0",
    }
)


def encoding_of_type(type_id: int) -> Encoding | None:
    """The encoding of a ggml type id; None where no decoder reads it."""
    return _READABLE.get(type_id)


def type_name(type_id: int) -> str:
    """ggml's name of a type id, for messages; "type 99" where ggml has none."""
    encoding = _READABLE.get(type_id)
    match encoding:
        case Dense():
            return encoding.dtype
        case Ggml():
            return encoding.name
        case None:
            return _OTHER_NAMES.get(type_id, f"type {type_id}")


def readable_names() -> tuple[str, ...]:
    """Names of the types that `encoding_of_type` knows, in id order."""
    return tuple(type_name(type_id) for type_id in _READABLE)
