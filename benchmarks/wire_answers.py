"""What came back to the fuzzer on a connection, cut into answers and judged: a reading of HTTP/1.1 (RFC 9112)."""

from __future__ import annotations

import json
from dataclasses import dataclass

# What Granian's parser answers by itself, without a body: nothing of the application's is behind it.
PARSERS_OWN = (400, 414, 431)
# Statuses from 500 up that are part of the limits' documentation, with their codes.
DOCUMENTED = ((503, "queue_wait"),)


class WireFault(Exception):
    """The server sent what it never may."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    fields: dict[str, str]
    body: bytes


def cut_answers(data: bytes, *, closed: bool) -> tuple[list[Answer], bytes]:
    """The whole answers in `data`, and what is left over. `closed`: no more will come. Raises WireFault."""
    answers: list[Answer] = []
    while data:
        head, found, rest = data.partition(b"\r\n\r\n")
        if not found:
            break
        status, fields = _head(head)
        if status == 100:
            data = rest
            continue
        body, after = _body(status, fields, rest, closed=closed)
        if body is None:
            break
        answers.append(Answer(status, fields, body))
        data = after
    return answers, data


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or not rest[:3].isdigit():
        raise WireFault(f"a status line {first[:100]!r}")
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or (name.lower() in fields and name.lower() != "vary"):
            raise WireFault(f"a header line {line[:100]!r}")
        fields[name.lower()] = value.strip()
    return int(rest[:3]), fields


def _body(status: int, fields: dict[str, str], data: bytes, *, closed: bool) -> tuple[bytes | None, bytes]:
    if status in {204, 304}:
        return b"", data
    if fields.get("transfer-encoding") == "chunked":
        return _chunked(data)
    if "content-length" in fields:
        length = int(fields["content-length"])
        if len(data) < length:
            # HEAD, which has the length of another answer and no body.
            return (b"", b"") if status == 405 and not data else (None, data)
        return data[:length], data[length:]
    return (data, b"") if closed else (None, data)


def _chunked(data: bytes) -> tuple[bytes | None, bytes]:
    parts = []
    while True:
        line, found, rest = data.partition(b"\r\n")
        if not found:
            return None, data
        try:
            size = int(line, 16)
        except ValueError:
            raise WireFault(f"a chunk's size {line[:50]!r}") from None
        if len(rest) < size + 2:
            return None, data
        if rest[size : size + 2] != b"\r\n":
            raise WireFault("a chunk that does not end where it says")
        parts.append(rest[:size])
        data = rest[size + 2 :]
        if not size:
            return b"".join(parts), data


def judge(answer: Answer) -> None:
    """Raises WireFault for an answer that this server may never give."""
    ours, kind = "x-request-id" in answer.fields, answer.fields.get("content-type", "")
    if answer.status >= 400:
        if not ours and answer.status in PARSERS_OWN and not answer.body:
            return
        if not ours:
            raise WireFault(f"status {answer.status} without x-request-id: {answer.body[:200]!r}")
        if not answer.body and answer.status == 405:
            return
        code = error_code(answer.body, kind)
        if answer.status >= 500 and (answer.status, code) not in DOCUMENTED:
            raise WireFault(f"status {answer.status}: {answer.body[:500]!r}")
        return
    if not ours:
        raise WireFault(f"status {answer.status} without x-request-id")
    if kind.startswith("text/event-stream"):
        check_events(answer.body)
    elif kind == "application/json":
        json.loads(answer.body.decode("utf-8"))


def error_code(body: bytes, kind: str) -> str:
    """The code in an error's body. Raises WireFault unless it has the shape that OpenAI's clients read."""
    try:
        error = json.loads(body.decode("utf-8"))["error"]
        well = kind == "application/json" and set(error) == {"message", "type", "param", "code"} and error["message"]
    except (ValueError, KeyError, TypeError):
        well = False
    if not well:
        raise WireFault(f"an error without the body of one: {kind!r} {body[:300]!r}")
    return str(error["code"])


def check_events(body: bytes) -> None:
    """Raises WireFault unless `body` is a whole stream that ended well."""
    blocks = body.decode("utf-8").split("\n\n")
    if blocks.pop() != "" or not blocks:
        raise WireFault(f"a stream that ends within an event: {body[-200:]!r}")
    for block in blocks[:-1]:
        if block.startswith(":"):
            continue
        if not block.startswith("data: {") or "\n" in block:
            raise WireFault(f"an event {block[:200]!r}")
        if "error" in json.loads(block.removeprefix("data: ")):
            raise WireFault(f"an error in a stream: {block[:500]}")
    if blocks[-1] != "data: [DONE]":
        raise WireFault(f"a stream without an end: {blocks[-1][:500]}")
