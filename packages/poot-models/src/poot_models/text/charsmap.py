"""SentencePiece's precompiled character map, checked: the library that applies it trusts its offsets.

Form: the size of a trie in bytes (32 bits, little-endian), the trie, and the texts that characters are replaced with,
each ended by NUL. The trie is a double array of 32-bit units (darts-clone, https://github.com/s-yata/darts-clone): bits
0 to 7 and 31 a label, bit 8 whether a value follows, bit 9 and the bits from 10 an offset; a value is an offset into
the texts.
"""

from __future__ import annotations

import numpy as np

from poot_models.errors import TokenizerError

__all__ = ["check_charsmap"]

_MAX_DEPTH = 1024  # bytes of the longest text that is replaced; Unicode's compositions have less than 32
_CHUNK = 1024


def check_charsmap(data: bytes, name: str) -> None:
    """Raises ``TokenizerError`` unless every step that any text takes through the map stays inside it."""
    size = int.from_bytes(data[:4], "little")
    if len(data) < 8 or size % 4 or not 4 <= size < len(data) - 4:
        raise TokenizerError(f"{name} does not hold a character map: its trie of {size} bytes is not inside it")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    texts = np.frombuffer(data, np.uint8, offset=4 + size)
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    seen = np.zeros(len(units), bool)
    # Where the children of the nodes of one depth lie.
    bases = offsets[:1]
    for _ in range(_MAX_DEPTH):
        if not len(bases):
            return
        if int(bases.max() | 0xFF) >= len(units):  # a byte leads to any of the 255 units beside
            raise TokenizerError(f"{name} has a trie that leads outside itself")
        nodes = _children(units, bases)
        nodes = nodes[~seen[nodes]]
        seen[nodes] = True
        bases = np.unique(nodes ^ offsets[nodes])
        _check_values(units, texts, (nodes ^ offsets[nodes])[(units[nodes] >> 8) & 1 == 1], name)
    raise TokenizerError(f"{name} replaces texts of more than {_MAX_DEPTH} bytes")


def _children(units: np.ndarray, bases: np.ndarray) -> np.ndarray:
    labels = np.arange(1, 256, dtype=np.int64)
    found = []
    for start in range(0, len(bases), _CHUNK):
        at = bases[start : start + _CHUNK, None] ^ labels
        found.append(at[(units[at] & 0x800000FF) == labels])
    return np.unique(np.concatenate(found))


def _check_values(units: np.ndarray, texts: np.ndarray, at: np.ndarray, name: str) -> None:
    if len(at) and int(at.max()) >= len(units):
        raise TokenizerError(f"{name} has a trie that leads outside itself")
    values = units[at] & 0x7FFFFFFF
    # A value inside a character would cut it in two.
    if len(values) and (int(values.max()) >= len(texts) or (texts[values] & 0xC0 == 0x80).any()):
        raise TokenizerError(f"{name} has a replacement that is not one of its texts")
