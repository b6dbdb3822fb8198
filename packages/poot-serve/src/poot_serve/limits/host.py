"""Which Host headers name the listener: the defence against DNS rebinding on a local server."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from poot_serve.errors import BadHostError, WrongHostError

_HOST = re.compile(rb"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?")
HTTP_PORT = 80


@dataclass(frozen=True, slots=True)
class Listener:
    """An IP address and a port that the server is bound to."""

    address: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.address}]:{self.port}" if ":" in self.address else f"http://{self.address}:{self.port}"


def check_host(values: list[bytes], listener: Listener) -> None:
    """Refuse a request whose Host headers (raw values) are not exactly one that names `listener`.

    `localhost` names a loopback listener; a wildcard listener (0.0.0.0, ::) checks the port alone. No port means 80.
    Raises BadHostError or WrongHostError.
    """
    if len(values) != 1:
        raise BadHostError(f"a request needs exactly one Host header, this one has {len(values)}")
    match = _HOST.fullmatch(values[0].strip(b" \t"))
    if match is None:
        raise BadHostError("the Host header is not HOST or HOST:PORT")
    if int(match["port"] or HTTP_PORT) != listener.port:
        raise WrongHostError(f"the Host header does not name port {listener.port}, where this server listens")
    bound = ipaddress.ip_address(listener.address)
    if bound.is_unspecified:
        return
    name = (match["six"] or match["name"]).decode("ascii").lower()
    if name == "localhost" and bound.is_loopback:
        return
    try:
        named = ipaddress.ip_address(name)
    except ValueError:
        named = None
    if named != bound or (match["six"] is not None) != (bound.version == 6):
        raise WrongHostError("the Host header does not name this server's listener")
