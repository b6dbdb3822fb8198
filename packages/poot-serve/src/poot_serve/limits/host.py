"""Which Host headers name the listener: the defence against DNS rebinding on a local server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from poot_serve.errors import BadHostError, WrongHostError

_HOST = re.compile(rb"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?")
HTTP_PORT = 80
MAX_PORT = 65_535
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Listener:
    """An IP address and a port that the server is bound to. `host` is the Host header that names both, nothing for a
    wildcard address."""

    address: str
    port: int
    host: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wildcard = ipaddress.ip_address(self.address).is_unspecified
        object.__setattr__(self, "host", b"" if wildcard else self.url.removeprefix("http://").encode())

    @property
    def url(self) -> str:
        return f"http://[{self.address}]:{self.port}" if ":" in self.address else f"http://{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """A name in lower case, or an IP address in its usual spelling, without brackets.

    With a `port`, the Host header must give that port; without one, it may give any or none.
    """

    name: str
    port: int | None = None


def parse_host(value: bytes) -> AllowedHost | None:
    """`NAME`, `IPV4` or `[IPV6]`, with or without `:PORT`, as Host headers have it. None for anything else."""
    match = _HOST.fullmatch(value)
    if match is None or (match["port"] is not None and int(match["port"]) > MAX_PORT):
        return None
    port = int(match["port"]) if match["port"] is not None else None
    name = (match["six"] or match["name"]).decode("ascii").lower()
    address = _address(name)
    if match["six"] is not None and (address is None or address.version != 6):
        return None
    return AllowedHost(str(address or name), port)


def check_host(values: Sequence[bytes], listener: Listener, allowed: Sequence[AllowedHost] = ()) -> None:
    """Refuse a request whose Host headers (raw values) are not exactly one that names `listener` or is `allowed`.

    `localhost` names a loopback listener, and no port means 80. A wildcard listener (0.0.0.0, ::) checks the port
    alone; where hosts are `allowed`, it takes none but those and the loopback names. Raises BadHostError or
    WrongHostError.
    """
    if len(values) != 1:
        raise BadHostError(f"a request needs exactly one Host header, this one has {len(values)}")
    if values[0] == listener.host and listener.host:
        return  # as nearly all say it
    host = parse_host(values[0].strip(b" \t"))
    if host is None:
        raise BadHostError("the Host header is not HOST or HOST:PORT")
    for one in allowed:
        if one.name == host.name and one.port in (None, host.port):
            return
    if (HTTP_PORT if host.port is None else host.port) != listener.port:
        raise WrongHostError(f"the Host header does not name port {listener.port}, where this server listens")
    bound = ipaddress.ip_address(listener.address)
    if bound.is_unspecified:
        if not allowed or host.name in LOOPBACK_NAMES:
            return
    elif host.name == str(bound) or (host.name == "localhost" and bound.is_loopback):
        return
    raise WrongHostError("the Host header does not name this server's listener")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
