"""The limits alone: rate, keys, origins, open files."""

from __future__ import annotations

import resource

import pytest

from poot_serve.errors import AuthenticationError, OriginError, RateLimitError
from poot_serve.limits.head import Head
from poot_serve.limits.keys import ApiKeys
from poot_serve.limits.origins import Origins
from poot_serve.limits.rate import MAX_ADDRESSES, RateLimit
from poot_serve.listen import allow_files


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_window_of_a_minute_from_the_first_request(clock):
    limit = RateLimit(3, clock=clock)
    for second in (0, 10, 20):
        clock.now = 1000.0 + second
        limit.take("10.0.0.1")
    for second, wait in ((20, 40), (20.5, 40), (59.5, 1), (59.99, 1)):
        clock.now = 1000.0 + second
        with pytest.raises(RateLimitError, match="more than 3 requests") as refused:
            limit.take("10.0.0.1")
        assert refused.value.retry_after == wait
    limit.take("10.0.0.2")
    clock.now = 1060.0
    for _ in range(3):
        limit.take("10.0.0.1")
    with pytest.raises(RateLimitError) as refused:
        limit.take("10.0.0.1")
    assert refused.value.retry_after == 60


def test_no_limit_remembers_nobody(clock):
    limit = RateLimit(0, clock=clock)
    for _ in range(1000):
        limit.take("10.0.0.1")
    assert len(limit) == 0


def test_a_million_addresses_take_bounded_memory_and_harm_nobody(clock):
    limit = RateLimit(2, clock=clock)
    limit.take("10.0.0.1")
    limit.take("10.0.0.1")
    for number in range(1_000_000):
        limit.take(f"2001:db8::{number:x}")
        if number % 50_000 == 0:
            with pytest.raises(RateLimitError):  # whoever goes on asking stays known
                limit.take("10.0.0.1")
    assert len(limit) == MAX_ADDRESSES


def test_a_head_is_read_once():
    head = Head(iter([(b"host", b"a:1"), (b"x-one", b""), (b"host", b"b")]))
    assert dict(head) == {b"host": [b"a:1", b"b"], b"x-one": [b""]}
    assert head.size == len(b"host: a:1\r\nx-one: \r\nhost: b\r\n")


def test_keys():
    keys = ApiKeys.of([b"alpha", b"beta-2"])
    for header in (b"Bearer alpha", b"bearer beta-2", b"BEARER  alpha", b" Bearer alpha "):
        keys.check([(b"host", b"x"), (b"authorization", header)])


@pytest.mark.parametrize(
    "headers",
    [
        [], [b"alpha"], [b"Basic alpha"], [b"Bearer"], [b"Bearer "], [b"Bearer alph"], [b"Bearer alphaa"],
        [b"Bearer Alpha"], [b"Bearer alpha beta-2"], [b"Bearer alpha,"], [b"Bearer\talpha"], [b"Bearer \xff"],
        [b"Bearer alpha", b"Bearer alpha"], [b"Bearer alpha", b"Bearer beta-2"], [b"Bearer " + b"a" * 1000],
    ],
    ids=repr,
)  # fmt: skip
def test_keys_that_are_none(headers):
    with pytest.raises(AuthenticationError):
        ApiKeys.of([b"alpha", b"beta-2"]).check([(b"authorization", header) for header in headers])


def test_keys_do_not_show():
    assert "alpha" not in repr(ApiKeys.of([b"alpha"])) and "digest" not in repr(ApiKeys.of([b"alpha"]))


def test_every_key_is_compared(monkeypatch):
    """With the first one as with the last, and with one that is none."""
    from poot_serve.limits import keys as module

    compared: list[bytes] = []
    real = module.hmac.compare_digest
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    keys = ApiKeys.of([b"a", b"b", b"c"])
    for key in (b"a", b"c"):
        keys.check([(b"authorization", b"Bearer " + key)])
    with pytest.raises(AuthenticationError):
        keys.check([(b"authorization", b"Bearer d")])
    assert compared == [*keys.digests] * 3


def test_origins_are_off_by_default():
    asked = [(b"origin", b"https://a.example"), (b"access-control-request-method", b"POST")]
    assert Origins().headers(asked) == [] and Origins().preflight(asked, ["POST"]) is None


def test_origins_are_exact():
    origins = Origins(("https://a.example", "http://localhost:3000"))
    told = dict(origins.headers([(b"origin", b"http://localhost:3000")]))
    assert told[b"access-control-allow-origin"] == b"http://localhost:3000" and told[b"vary"] == b"origin"
    assert b"access-control-allow-credentials" not in told
    for other in (b"https://a.example.evil", b"http://a.example", b"https://a.example:443", b"null", b"*", b""):
        assert origins.headers([(b"origin", other)]) == [(b"vary", b"origin")]
        with pytest.raises(OriginError):
            origins.preflight([(b"origin", other), (b"access-control-request-method", b"POST")], ["POST"])
    twice = [(b"origin", b"https://a.example")] * 2
    assert origins.headers(twice) == origins.headers([]) == [(b"vary", b"origin")]


def test_any_origin_is_never_reflected():
    origins = Origins(("*",))
    assert dict(origins.headers([(b"origin", b"https://x")]))[b"access-control-allow-origin"] == b"*"
    assert origins.headers([]) == []
    asked = [(b"origin", b"https://x"), (b"access-control-request-method", b"POST")]
    told = dict(origins.preflight(asked, {"POST"}))
    assert told[b"access-control-allow-methods"] == b"POST"
    assert told[b"access-control-allow-headers"] == b"authorization, *"
    assert origins.preflight(asked[:1], {"POST"}) is None


@pytest.fixture
def files(monkeypatch):
    """A system's limits of open files, by setting which the server asks for more."""
    limits = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, new: limits.__setitem__(slice(None), new))
    return limits


@pytest.mark.parametrize(
    ("connections", "limits"),
    [
        (100, (1024, 4096)),
        (2000, (2256, 4096)),
        (4096, (4096, 4096)),
        (0, (4096, 4096)),
        (100_000, (100_256, -1)),
        (0, (-1, -1)),
    ],
)
def test_open_files(files, caplog, connections, limits):
    files[1] = limits[1]
    fits = connections != 4096
    assert allow_files(connections) is fits
    assert files == list(limits) and ("ulimit -n" in caplog.text) is not fits


def test_open_files_where_the_system_refuses(files, monkeypatch, caplog):
    def refuse(kind, new):
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert not allow_files(2000) and "may open 1024 files" in caplog.text
    files[0] = -1
    assert allow_files(2000)
