"""Algorithms of cuBLASLt by name: what they are and how they are configured, the same in every process."""

from __future__ import annotations

import ctypes
import re
from typing import Any

from poot_executor.backends.cuda.blaslt_library import Algorithm, library, require

# CUBLASLT_ALGO_CONFIG_..., by the names that they have here.
_CONFIGURATION: dict[str, tuple[int, Any]] = {
    "id": (0, ctypes.c_int32),
    "tile": (1, ctypes.c_uint32),
    "cluster": (8, ctypes.c_uint16),
    "split": (2, ctypes.c_int32),
    "swizzle": (4, ctypes.c_uint32),
    "custom": (5, ctypes.c_uint32),
    "stages": (6, ctypes.c_uint32),
    "sums": (3, ctypes.c_uint32),
    "inner": (7, ctypes.c_uint16),
}
_SAID = re.compile(r"cublasLt (\d{1,9})((?: [a-z]+ \d{1,9})*)", re.ASCII)
_SELDOM = ("sums", "inner")  # named only if they are not zero


def configure(algorithm: Algorithm, values: dict[str, int]) -> None:
    for name, value in values.items():
        attribute, kind = _CONFIGURATION[name]
        given = kind(value)
        status = library().cublasLtMatmulAlgoConfigSetAttribute(
            ctypes.byref(algorithm), attribute, ctypes.byref(given), ctypes.sizeof(given)
        )
        require(status, f"{name} {value} of an algorithm")


def name_of(algorithm: Algorithm) -> str:
    """What an algorithm is and how it is configured, the same in every process."""
    said, written = [], ctypes.c_size_t()
    for name, (attribute, kind) in _CONFIGURATION.items():
        value = kind()
        status = library().cublasLtMatmulAlgoConfigGetAttribute(
            ctypes.byref(algorithm), attribute, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written)
        )
        require(status, f"{name} of an algorithm")
        if value.value or name not in _SELDOM:
            said.append(str(value.value) if name == "id" else f"{name} {value.value}")
    return f"cublasLt {' '.join(said)}"


def said_by(name: str) -> dict[str, int]:
    """What `name_of` says of an algorithm; nothing for what it does not say."""
    found = _SAID.fullmatch(name)
    if found is None:
        return {}
    words = found[2].split()
    values = {"id": int(found[1]), **dict(zip(words[::2], map(int, words[1::2]), strict=True))}
    return values if values.keys() <= _CONFIGURATION.keys() else {}
