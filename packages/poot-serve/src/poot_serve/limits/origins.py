"""Which web pages of other origins may read the answers (Fetch standard, "CORS protocol"). None by default.

What is answered is always a configured value, never what the request said, and credentials are never allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from poot_serve.errors import OriginError

RawHeaders = Iterable[tuple[bytes, bytes]]
ANY = "*"
MAX_ORIGINS = 64
# A serialised origin: no path, no trailing slash, and a port only if it is not the scheme's own.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?")
_PREFLIGHT = [
    # The wildcard does not cover Authorization. Browser builds of the official client send headers of their own.
    (b"access-control-allow-headers", b"authorization, *"),
    (b"access-control-max-age", b"600"),
]
_EXPOSED = (b"access-control-expose-headers", b"x-request-id, retry-after, www-authenticate")
_VARY = (b"vary", b"origin")


def is_origin(text: str) -> bool:
    match = _ORIGIN.fullmatch(text)
    return match is not None and (match["port"] is None or 1 <= int(match["port"]) <= 65_535)


@dataclass(frozen=True, slots=True)
class Origins:
    """The origins that a server lets in: exact ones, or any if `*` is among them."""

    names: tuple[str, ...] = ()

    def headers(self, headers: RawHeaders) -> list[tuple[bytes, bytes]]:
        """What to add to the answer to a request with these headers; nothing for an origin that is not let in."""
        if not self.names:
            return []
        if ANY in self.names:
            return [(b"access-control-allow-origin", b"*"), _EXPOSED] if _origin(headers) is not None else []
        allowed = self._allowed(headers)
        return [_VARY] if allowed is None else [_VARY, (b"access-control-allow-origin", allowed), _EXPOSED]

    def preflight(self, headers: RawHeaders, methods: Iterable[str]) -> list[tuple[bytes, bytes]] | None:
        """The headers of the answer to a preflight, beside those of `headers`; None if the request is none.

        Raises OriginError for an origin that is not let in.
        """
        pairs = list(headers)
        asks = any(name == b"access-control-request-method" for name, _ in pairs)
        if not self.names or not asks or _origin(pairs) is None:
            return None
        if ANY not in self.names and self._allowed(pairs) is None:
            raise OriginError("pages of this origin are not let in; see --cors-origin")
        return [(b"access-control-allow-methods", ", ".join(sorted(methods)).encode()), *_PREFLIGHT]

    def _allowed(self, headers: RawHeaders) -> bytes | None:
        given = _origin(headers)
        return next((name.encode() for name in self.names if name.encode() == given), None)


def _origin(headers: RawHeaders) -> bytes | None:
    values = [value for name, value in headers if name == b"origin"]
    return values[0] if len(values) == 1 else None
