"""Which Host headers name a listener."""

from __future__ import annotations

import pytest

from poot_serve.errors import BadHostError, WrongHostError
from poot_serve.limits.host import Listener, check_host

LOOPBACK, SIX = Listener("127.0.0.1", 8080), Listener("::1", 8080)
LAN, ANY, ANY_SIX, WEB = (
    Listener(a, p) for a, p in [("10.0.0.5", 80), ("0.0.0.0", 8080), ("::", 8080), ("127.0.0.1", 80)]
)


@pytest.mark.parametrize(
    ("listener", "host"),
    [
        (LOOPBACK, b"127.0.0.1:8080"), (LOOPBACK, b"localhost:8080"), (LOOPBACK, b"LOCALHOST:8080"),
        (SIX, b"[::1]:8080"), (SIX, b"[0:0:0:0:0:0:0:1]:8080"), (SIX, b"localhost:8080"), (LAN, b"10.0.0.5"),
        (LAN, b"10.0.0.5:80"), (WEB, b"localhost"), (ANY, b"any.name:8080"), (ANY, b"[::1]:8080"), (ANY_SIX, b"x:8080"),
    ],
)  # fmt: skip
def test_taken(listener, host):
    check_host([host], listener)


@pytest.mark.parametrize(
    ("listener", "host", "error"),
    [
        (LOOPBACK, b"127.0.0.1", WrongHostError), (LOOPBACK, b"127.0.0.1:80", WrongHostError),
        (LOOPBACK, b"127.0.0.2:8080", WrongHostError), (LOOPBACK, b"[::1]:8080", WrongHostError),
        (LOOPBACK, b"localhost.:8080", WrongHostError), (LOOPBACK, b"localhost.evil.example:8080", WrongHostError),
        (LOOPBACK, b"2130706433:8080", WrongHostError), (LOOPBACK, b"0x7f000001:8080", WrongHostError),
        (LOOPBACK, b":8080", BadHostError), (LOOPBACK, b"", BadHostError),
        (LOOPBACK, b"u@localhost:8080", BadHostError),
        (LOOPBACK, b"localhost:", BadHostError), (LOOPBACK, b"localhost:8080:8080", BadHostError),
        (LOOPBACK, b"local host:8080", BadHostError), (LOOPBACK, b"localhost:8080, evil", BadHostError),
        (LOOPBACK, b"\xff:8080", BadHostError), (LOOPBACK, b"localhost/x:8080", BadHostError),
        (SIX, b"::1:8080", BadHostError), (SIX, b"[::1%lo]:8080", BadHostError), (LAN, b"localhost", WrongHostError),
        (ANY, b"any.name", WrongHostError), (ANY, b"any.name:8081", WrongHostError), (ANY, b":8080", BadHostError),
    ],
)  # fmt: skip
def test_refused(listener, host, error):
    with pytest.raises(error):
        check_host([host], listener)


@pytest.mark.parametrize("hosts", [[], [b"localhost:8080"] * 2])
def test_exactly_one(hosts):
    with pytest.raises(BadHostError, match="exactly one"):
        check_host(hosts, LOOPBACK)
