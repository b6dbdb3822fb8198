"""Bad input is refused with its status, while another client's stream goes on to its end."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import httpx
import pytest

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
JSON = {"content-type": "application/json"}
HELLO = [{"role": "user", "content": "Hello"}]
# path, headers, body, status, code
BAD = {
    "invalid UTF-8": (COMPLETION, JSON, b'{"prompt": "\xff\xfe"}', 400, "invalid_json"),
    "bad JSON": (CHAT, JSON, b'{"messages": [', 400, "invalid_json"),
    "an array": (CHAT, JSON, b"[]", 400, "invalid_json"),
    "an empty body": (CHAT, JSON, b"", 400, "invalid_json"),
    "a wrong type": (CHAT, JSON, b'{"messages": "Hello"}', 400, "invalid_value"),
    "no messages": (CHAT, JSON, b'{"messages": []}', 400, "invalid_value"),
    "an unknown role": (CHAT, JSON, b'{"messages": [{"role": "wizard", "content": "a"}]}', 400, "invalid_value"),
    "broken tool arguments": (
        CHAT,
        JSON,
        b'{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", '
        b'"function": {"name": "f", "arguments": "{"}}]}, {"role": "user", "content": "a"}]}',
        400,
        "invalid_value",
    ),
    "deep nesting": (CHAT, JSON, b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "invalid_json"),
    "a token outside the vocabulary": (COMPLETION, JSON, b'{"prompt": [49152]}', 400, "invalid_token"),
    "a negative token": (COMPLETION, JSON, b'{"prompt": [-1]}', 400, "invalid_token"),
    "no prompt": (COMPLETION, JSON, b'{"prompt": []}', 400, "invalid_value"),
    "text": (CHAT, {"content-type": "text/plain"}, b'{"messages": []}', 415, "unsupported_media_type"),
    "no content type": (CHAT, {}, b'{"messages": []}', 415, "unsupported_media_type"),
    "an unknown route": ("/v1/nothing", JSON, b"{}", 404, "not_found"),
    "a prompt of megabytes": (
        COMPLETION,
        JSON,
        b'{"prompt": "' + b"many words " * 350_000 + b'"}',
        400,
        "context_length_exceeded",
    ),
    "a body of 5 MiB": (COMPLETION, JSON, bytes(5 << 20), 413, "body_too_large"),
}


@pytest.fixture(scope="module")
def streaming(server):
    """A stream of another client that is open while the bad requests come; at the end it must be whole."""
    body = {"prompt": "a b c d e f g", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}{COMPLETION}", json=body, timeout=120) as answer:
        assert answer.status_code == 200
        yield
        data = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert data[-1] == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in data[:-1]]
    assert "".join(choice["text"] for choice in choices).startswith(" h i j k l m n o p q r s t u v w")
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused(streaming, server, name):
    path, headers, body, status, code = BAD[name]
    # A connection each: after a refusal that has not read the body the server closes it.
    answer = _send(server.port, path, headers, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def _send(port: int, path: str, headers: dict[str, str], body: bytes) -> httpx.Response:
    """The answer, also to a body that the server does not care to read to its end."""
    lines = {"host": f"127.0.0.1:{port}", "content-length": str(len(body)), "connection": "close", **headers}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head.encode())
        with suppress(ConnectionError):
            connection.sendall(body)
        received = b""
        while b"\r\n\r\n" not in received or len(received.partition(b"\r\n\r\n")[2]) < _length(received):
            part = connection.recv(65536)
            assert part, received
            received += part
    status = int(received.split(b" ")[1])
    return httpx.Response(status, content=received.partition(b"\r\n\r\n")[2])


def _length(received: bytes) -> int:
    head = httpx.Headers(
        [tuple(line.split(b": ", 1)) for line in received.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]]
    )
    return int(head["content-length"])


def test_the_next_request_works(streaming, chat, server):
    assert chat("Hello", max_tokens=2)["usage"]["completion_tokens"] == 2
    assert httpx.get(f"{server.url}/health").json()["status"] == "serving"
