"""Which Host headers name a listener."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_serve.errors import BadHostError, WrongHostError
from poot_serve.limits.host import AllowedHost, Listener, check_host, parse_host

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


ALLOWED = (AllowedHost("api.example.com"), AllowedHost("b.example", 8443), AllowedHost("2001:db8::1"))


@pytest.mark.parametrize("listener", [LOOPBACK, ANY])
@pytest.mark.parametrize(
    "host",
    [
        b"api.example.com", b"Api.Example.COM:443", b"api.example.com:8080", b"b.example:8443",
        b"[2001:db8::1]", b"[2001:DB8:0:0::1]:99", b"localhost:8080", b"127.0.0.1:8080",
    ],
)  # fmt: skip
def test_allowed_besides_the_listener(listener, host):
    check_host([host], listener, ALLOWED)


@pytest.mark.parametrize("listener", [LOOPBACK, ANY])
@pytest.mark.parametrize(
    ("host", "error"),
    [
        (b"b.example", WrongHostError), (b"b.example:443", WrongHostError), (b"api.example.com.", WrongHostError),
        (b"x.api.example.com", WrongHostError), (b"any.name:8080", WrongHostError), (b"10.0.0.9:8080", WrongHostError),
        (b"localhost", WrongHostError), (b"u@api.example.com", BadHostError), (b"api.example.com:", BadHostError),
        (b"2001:db8::1", BadHostError), (b"api.example.com:65536", BadHostError),
    ],
)  # fmt: skip
def test_nothing_else_is_allowed_then_not_even_on_a_wildcard_listener(listener, host, error):
    with pytest.raises(error):
        check_host([host], listener, ALLOWED)


@pytest.mark.parametrize("value", [b"[1.2.3.4]", b"[::1", b"::1", b"a b", b"", b"[]", b"a:b", b"a:", b"\xff", b"*"])
def test_what_is_no_host(value):
    assert parse_host(value) is None


@given(st.binary(max_size=40) | st.text(alphabet="localhost.127:[]@8080 /\\x", max_size=24).map(str.encode))
def test_any_host_is_taken_or_refused_in_type(value):
    """What is taken names the loopback listener in one of its spellings."""
    try:
        check_host([value], LOOPBACK)
    except (BadHostError, WrongHostError):
        return
    assert value.strip(b" \t").lower() in (b"localhost:8080", b"127.0.0.1:8080")


@pytest.mark.parametrize(
    ("address", "port", "host"),
    [("127.0.0.1", 8080, b"127.0.0.1:8080"), ("::1", 80, b"[::1]:80"), ("0.0.0.0", 8080, b""), ("::", 8080, b"")],
)
def test_the_host_header_that_names_a_listener(address, port, host):
    """What is let in by a look at the bytes alone; a wildcard address is no name, and an empty header never one."""
    listener = Listener(address, port)
    assert listener.host == host
    if host:
        check_host([host], listener)
    with pytest.raises(BadHostError):
        check_host([b""], listener)
