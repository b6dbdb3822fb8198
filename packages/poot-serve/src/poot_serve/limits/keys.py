"""API keys: which a server takes, and whether a request brings one (RFC 6750, section 2.1)."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from poot_serve.errors import AuthenticationError

MAX_KEYS = 1024
MAX_KEY_BYTES = 512
KEY = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_KEY_BYTES)
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]{1,%d})" % MAX_KEY_BYTES)


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """SHA-256 digests of the keys, so that no key shows wherever this is printed."""

    digests: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> ApiKeys:
        return cls(tuple(_digest(key) for key in keys))

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuse a request without exactly one `Authorization: Bearer KEY` of a key that is known.

        Takes as long whichever key it is, and whether it is one. Raises AuthenticationError.
        """
        values = [value for name, value in headers if name == b"authorization"]
        match = _BEARER.fullmatch(values[0].strip(b" \t")) if len(values) == 1 else None
        if match is None:
            raise AuthenticationError("this server needs an API key: send one header `Authorization: Bearer KEY`")
        given = _digest(match[1])
        known = False
        for digest in self.digests:
            known |= hmac.compare_digest(digest, given)
        if not known:
            raise AuthenticationError("the API key is not one of this server's")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
