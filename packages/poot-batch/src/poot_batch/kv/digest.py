"""What a full block holds, as a digest: equal digests stand for equal keys and values."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from hashlib import sha256

Tokens = array  # of type code "i"; position p of a sequence holds its p-th token


def _field(tag: str, content: bytes) -> bytes:
    """One tagged field. Tag and content carry their lengths, so that no two lists of fields are the same bytes."""
    name = tag.encode()
    return len(name).to_bytes(2, "little") + name + len(content).to_bytes(8, "little") + content


class Chain:
    """SHA-256 digests of a sequence's full blocks, each chained to the one before it: they grow as tokens are known.

    The first has as its parent a digest of `fields`: everything beside the tokens that keys and values depend on, or
    that must keep sequences apart.
    """

    __slots__ = ("_block", "_given", "_root", "digests")

    def __init__(self, block: int, fields: Mapping[str, str]) -> None:
        self._block = block
        self._root = sha256(b"".join(_field(tag, value.encode()) for tag, value in fields.items())).digest()
        # What lies between the parent's digest and the tokens' bytes: their field's header.
        self._given = _field("tokens", bytes(4 * block))[: -4 * block]
        self.digests: list[bytes] = []

    def extend(self, tokens: Tokens[int], blocks: int) -> None:
        """Add the digests up to that of the last of `blocks` full blocks."""
        digests, size = self.digests, self._block
        parent = digests[-1] if digests else self._root
        for index in range(len(digests), blocks):
            content = tokens[index * size : (index + 1) * size].tobytes()
            if len(content) != 4 * size:
                raise ValueError("a block whose tokens are not all known has no digest")
            parent = sha256(_PARENT + parent + self._given + content).digest()
            digests.append(parent)


_PARENT = _field("parent", bytes(32))[:-32]
