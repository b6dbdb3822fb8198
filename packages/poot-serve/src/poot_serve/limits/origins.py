"""Which web pages of other origins may read the answers (Fetch standard, "CORS protocol"). None by default.

What is answered is always a configured value, never what the request said, and credentials are never allowed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from poot_serve.errors import OriginError
from poot_serve.limits.host import MAX_PORT

RawHeaders = Iterable[tuple[bytes, bytes]]
ANY = "*"
MAX_ORIGINS = 64
_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?:(?P<name>[a-z0-9._-]{1,253})|\[(?P<six>[0-9a-f:.]{2,45})\])(?::(?P<port>[0-9]{1,5}))?(?:[/?#].*)?",
    re.ASCII | re.IGNORECASE,
)
_DEFAULT_PORTS = {"http": 80, "https": 443}
# There are no pages with these, or they are of the origin "null".
_PAGELESS = ("blob", "data", "file", "ws", "wss")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PREFLIGHT = [
    # The wildcard does not cover Authorization. Browser builds of the official client send headers of their own.
    (b"access-control-allow-headers", b"authorization, *"),
    (b"access-control-max-age", b"600"),
]
_EXPOSED = (b"access-control-expose-headers", b"x-request-id, retry-after, www-authenticate")
_VARY = (b"vary", b"origin")


def as_sent(text: str) -> str | None:
    """The origin of a page at the address `text`, as browsers write it (URL standard, "origin", and its serialisation):
    in lower case, without a path, its port only if it is not the scheme's own. None for what is no page's address."""
    match = _URL.fullmatch(text)
    if match is None:
        return None
    scheme, host = match["scheme"].lower(), _host(match)
    port = None if match["port"] is None else int(match["port"])
    if host is None or scheme in _PAGELESS or (port is not None and not 1 <= port <= MAX_PORT):
        return None
    return f"{scheme}://{host}" if port in (None, _DEFAULT_PORTS.get(scheme)) else f"{scheme}://{host}:{port}"


def _host(match: re.Match[str]) -> str | None:
    """A name or an IP address as browsers write it; None for an address that they write in another way."""
    try:
        if match["six"] is not None:
            six = ipaddress.IPv6Address(match["six"])
            return None if six.ipv4_mapped else f"[{six}]"
        name = match["name"].lower()
        last = name.removesuffix(".").rpartition(".")[2]
        return str(ipaddress.IPv4Address(name)) if _NUMBER.fullmatch(last) else name
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Origins:
    """The origins that a server lets in: exact ones, or `*` alone for any."""

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
