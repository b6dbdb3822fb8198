"""What the wire fuzzer does to the lines of a request's head, the first of which is the request line."""

from __future__ import annotations

import random
from collections.abc import Callable

from json_mutations import broken


def _first_line(dice: random.Random, lines: list[bytes]) -> None:
    path = b"/v1/completions"
    lines[0] = dice.choice(
        (
            b"GET " + path + b" HTTP/1.1", b"post " + path + b" HTTP/1.1", b"POST " + path,
            b"POST  " + path + b" HTTP/1.1",
            b"POST " + path + b" HTTP/1.0", b"POST " + path + b" HTTP/0.9", b"POST " + path + b" HTTP/2.0",
            b"POST http://127.0.0.1" + path + b" HTTP/1.1", b"POST * HTTP/1.1", b"OPTIONS * HTTP/1.1",
            b"CONNECT 127.0.0.1:80 HTTP/1.1", b"TRACE / HTTP/1.1", b"HEAD /health HTTP/1.1", b"PUT /health HTTP/1.1",
            b"POST /v1/completions/ HTTP/1.1", b"POST //v1/completions HTTP/1.1", b"POST /v1/../health HTTP/1.1",
            b"POST /v1/%63ompletions HTTP/1.1", b"POST /v1/completions?a=%00&b=%ff HTTP/1.1", b"POST /%ff%fe HTTP/1.1",
            b"GET /v1/models/" + b"%2e%2e%2f" * 8 + b" HTTP/1.1", b"GET /v1/models/\xff HTTP/1.1",
            b"POST /" + b"a" * 70_000 + b" HTTP/1.1", b"POST /a b HTTP/1.1", b"\x00POST / HTTP/1.1", b"", b" ",
            b"PRI * HTTP/2.0", b"GET /health?" + b"&".join([b"a=b"] * 500) + b" HTTP/1.1",
        )
    )  # fmt: skip


def _field(dice: random.Random, lines: list[bytes]) -> None:
    lines.insert(
        dice.randint(1, len(lines)),
        dice.choice(
            (
                b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity",
                b"Transfer-Encoding: \xff", b"Content-Length: 5", b"Content-Length: +5", b"Content-Length: 005",
                b"Content-Length: 5, 5", b"Content-Length: 9223372036854775808", b"Content-Length:", b"Host: evil.test",
                b"Host:", b"Host: 127.0.0.1.", b"Host: user@127.0.0.1", b"Host: [::1]", b"Expect: 100-continue",
                b"Expect: 200-ok", b"Content-Encoding: gzip", b"Content-Type: text/plain", b"Connection: close",
                b"Connection: upgrade, keep-alive", b"Upgrade: websocket\r\nConnection: upgrade\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13", b"Upgrade: h2c",
                b"X-Request-Id: \xff", b"X-Request-Id: a\r\nX-Request-Id: b", b"X-Request-Id: " + b"a" * 5000,
                b"Authorization: Bearer \xff", b"Authorization: Basic OjpA", b"Origin: null", b"Origin: http://a.test",
                b"Range: bytes=0-1", b"Accept-Encoding: *", b"X : y", b" folded", b"no colon", b": empty", b"X: a\x00b",
                b"X: " + b"a" * 70_000, b"\r\n".join(b"X%d: y" % index for index in range(120)), b"X: \xc3\x28",
                b"Access-Control-Request-Method: POST", b"Cookie: " + b"a=b; " * 1000, b"X:\ta", b"\xff\xfe: a",
            )
        ),
    )  # fmt: skip


def _lost(dice: random.Random, lines: list[bytes]) -> None:
    if len(lines) > 1:
        del lines[dice.randrange(1, len(lines))]


def _twice(dice: random.Random, lines: list[bytes]) -> None:
    lines.insert(dice.randint(1, len(lines)), dice.choice(lines))


def _damaged(dice: random.Random, lines: list[bytes]) -> None:
    at = dice.randrange(len(lines))
    lines[at] = broken(dice, lines[at])


HEAD_CHANGES: tuple[Callable[[random.Random, list[bytes]], None], ...] = (
    _first_line,
    _field,
    _field,
    _lost,
    _twice,
    _damaged,
)
