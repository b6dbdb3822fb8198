"""Checks of a request's head, made of the raw header pairs that ASGI delivers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from poot_serve.errors import (
    BadLengthError,
    BodyTooLargeError,
    HeadTooLargeError,
    LengthRequiredError,
    MediaTypeError,
    TransferEncodingError,
)
from poot_serve.limits.host import AllowedHost, Listener, check_host

RawHeaders = Iterable[tuple[bytes, bytes]]
LINE_OVERHEAD = 4  # ": " and CRLF of each header line
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,18}")
_PLAIN_TYPE = b"application/json"  # as nearly all say it
_JSON_TYPE = re.compile(rb'application/json(?:[ \t]*;[ \t]*charset=(?:utf-8|"utf-8"))?[ \t]*;?[ \t]*', re.IGNORECASE)


class Head(dict[bytes, list[bytes]]):
    """A request's headers: the values of each name (in lower case) in their order, from one pass over them.

    `size` is in bytes, with what separates the lines.
    """

    __slots__ = ("size",)

    def __init__(self, headers: RawHeaders) -> None:
        size = 0
        for name, value in headers:
            size += len(name) + len(value) + LINE_OVERHEAD
            if name in self:
                self[name].append(value)
            else:
                self[name] = [value]
        self.size = size


def check_size(head: Head, max_bytes: int) -> None:
    """Raises HeadTooLargeError for headers of more than `max_bytes`."""
    if head.size > max_bytes:
        raise HeadTooLargeError(f"the request's headers exceed {max_bytes} bytes")


def check_head(head: Head, listener: Listener, allowed: Sequence[AllowedHost] = ()) -> None:
    """What every request must satisfy: one Host that names the listener or is `allowed`, and a body, if any, whose
    length is stated once and plainly.

    Raises BadHostError, WrongHostError, TransferEncodingError or BadLengthError.
    """
    check_host(head.get(b"host", ()), listener, allowed)
    if b"transfer-encoding" in head:
        raise TransferEncodingError("Transfer-Encoding is not taken; send the body with a Content-Length")
    lengths = head.get(b"content-length", ())
    if lengths and (len(lengths) != 1 or _LENGTH.fullmatch(lengths[0]) is None):
        raise BadLengthError("Content-Length must be one plain decimal number")


def body_length(head: Head, max_bytes: int) -> int:
    """The length in bytes that a JSON body states, checked before any of it is read. After `check_head`.

    Raises MediaTypeError, LengthRequiredError or BodyTooLargeError.
    """
    types = head.get(b"content-type", ())
    if len(types) != 1 or (types[0] != _PLAIN_TYPE and _JSON_TYPE.fullmatch(types[0].strip(b" \t")) is None):
        raise MediaTypeError("the body must be sent with Content-Type: application/json")
    if b"content-encoding" in head:
        raise MediaTypeError("Content-Encoding is not taken; send the body as it is")
    lengths = head.get(b"content-length", ())
    if not lengths:
        raise LengthRequiredError("the body must be sent with a Content-Length")
    length = int(lengths[0])
    if length > max_bytes:
        raise BodyTooLargeError(f"the body has {length} bytes; at most {max_bytes} are taken")
    return length
