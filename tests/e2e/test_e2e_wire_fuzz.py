"""benchmarks/wire_fuzz.py: a short run of fixed cases leaves the server as it was, and what a fault is it does see."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ID = b"x-request-id: req_1\r\n"
JSON = b"content-type: application/json\r\n"
ERROR = json.dumps(
    {"error": {"message": "no", "type": "server_error", "param": None, "code": "internal_error"}}
).encode()


@pytest.fixture(scope="module")
def wire() -> Iterator[SimpleNamespace]:
    """The fuzzer's modules."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = ("answers", "cases", "client")
        yield SimpleNamespace(**{name: importlib.import_module(f"wire_{name}") for name in names})
    finally:
        sys.path.remove(str(BENCHMARKS))


def answer(status: bytes, body: bytes, fields: bytes = ID + JSON) -> bytes:
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, fields, len(body), body)


def streamed(*events: bytes) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in (*events, b""))
    return b"HTTP/1.1 200 OK\r\n" + ID + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + body


WELL = {
    "an answer": answer(b"200 OK", b"{}"),
    "a refusal": answer(b"400 Bad Request", ERROR.replace(b"internal_error", b"invalid_json")),
    "the parser's own refusal": answer(b"400 Bad Request", b"", b""),
    "a stream": streamed(b'data: {"a": 1}\n\n', b": keep-alive\n\ndata: {}\n\n", b"data: [DONE]\n\n"),
}
WRONG = {
    "a 500": answer(b"500 Internal Server Error", ERROR),
    "an empty 500": answer(b"500 Internal Server Error", b"", b""),
    "a 503 that no limit gives": answer(b"503 Service Unavailable", ERROR),
    "an error without a body": answer(b"404 Not Found", b""),
    "an error in text": answer(b"404 Not Found", b"Not Found", ID + b"content-type: text/plain\r\n"),
    "an answer without an id": answer(b"200 OK", b"{}", JSON),
    "JSON that is none": answer(b"200 OK", b"{'a'}"),
    "a stream without an end": streamed(b'data: {"a": 1}\n\n'),
    "a stream that ends in an event": streamed(b'data: {"a": 1}\n\n', b"data: [DO"),
    "an error in a stream": streamed(b"data: " + ERROR + b"\n\n", b"data: [DONE]\n\n"),
    "two lengths": answer(b"200 OK", b"{}", ID + JSON + b"content-length: 2\r\n"),
    "no HTTP": b"hello\r\n\r\n",
    "a chunk of no size": streamed().replace(b"0\r\n\r\n", b"z\r\n\r\n"),
}


def judged(wire: Any, data: bytes) -> list[Any]:
    answers, rest = wire.answers.cut_answers(data, closed=True)
    assert rest == b""
    for one in answers:
        wire.answers.judge(one)
    return answers


@pytest.mark.parametrize("data", WELL.values(), ids=WELL)
def test_what_is_well_is_seen_to_be(wire, data):
    assert len(judged(wire, data * 3)) == 3


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_seen_to_be(wire, data):
    with pytest.raises((wire.answers.WireFault, ValueError)):
        judged(wire, data)


def test_an_answer_that_is_not_whole_is_none(wire):
    for data in WELL.values():
        for size in range(1, len(data)):
            assert wire.answers.cut_answers(data[:size], closed=False)[0] == []


def test_a_case_is_made_of_its_seed_and_number(wire):
    limits = wire.cases.Limits(8080, 2, 2, patient=True)
    cases = [wire.cases.make_case(1, number, limits) for number in range(400)]
    assert cases == [wire.cases.make_case(1, number, limits) for number in range(400)]
    assert cases != [wire.cases.make_case(2, number, limits) for number in range(400)]
    assert len(Counter(case.kind for case in cases)) >= 14


@pytest.fixture
def against(wire, monkeypatch) -> Callable[[Callable[..., Any], Any], str | None]:
    """(what a server does with a connection, the case's fields) -> the fault that the client reports."""
    for name in ("ANSWER_SECONDS", "CLOSE_SECONDS", "HEAD_SECONDS", "QUIET_SECONDS", "SLACK_SECONDS"):
        monkeypatch.setattr(wire.client, name, 0.05)

    def run(serve: Callable[..., Any], **fields: Any) -> str | None:
        tasks: list[asyncio.Task[None]] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.append(asyncio.current_task())
            try:
                await serve(reader, writer)
            finally:
                writer.transport.abort()

        async def main() -> str | None:
            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            async with server:
                limits = wire.cases.Limits(server.sockets[0].getsockname()[1], 0.05, 0.05, patient=False)
                case = wire.cases.Case("planted", (wire.cases.Send(b"GET / HTTP/1.1\r\n\r\n"),), **fields)
                fault = await wire.client.run_case(case, limits)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                return fault

        return asyncio.run(main())

    return run


async def hangs(reader, writer):
    await asyncio.Event().wait()


async def closes(reader, writer):
    await reader.readuntil(b"\r\n\r\n")


def saying(data: bytes) -> Callable[..., Any]:
    async def answers(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await reader.read()

    return answers


def test_a_server_that_hangs_is_reported(against):
    assert "no answer for" in against(hangs, answers=1)
    assert "was waited for" in against(hangs, silent=True)
    assert "stayed open" in against(hangs)
    assert "not given up" in against(hangs, deaf=True)


def test_a_server_that_closes_is_reported_where_it_owed_an_answer(against):
    assert against(closes, answers=1).startswith("0 whole answers of 1")
    assert against(closes) is None
    assert against(closes, silent=True) is None


def test_a_fault_in_an_answer_is_reported(against):
    assert against(saying(WELL["an answer"]), answers=1, well=True) is None
    assert "answered with 400" in against(saying(WELL["a refusal"]), answers=1, well=True)
    assert against(saying(WELL["a refusal"])) is None
    assert "status 500" in against(saying(WRONG["a 500"]))
    assert "not given up" in against(saying(WELL["an answer"]), deaf=True)


def test_a_short_run_of_hostile_clients_leaves_the_server_as_it_was():
    command = [sys.executable, str(BENCHMARKS / "wire_fuzz.py"), "--check", "--cases", "100", "--seed", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("PASS: ") == 9 and "FAIL" not in ended.stdout


def test_a_crowd_of_clients_is_served_beside_those_that_leave_or_do_not_read():
    """How long it takes is left to the full run."""
    command = [sys.executable, str(BENCHMARKS / "crowd.py"), "--check", "--clients", "30"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    print(ended.stdout)
    verdicts = [line for line in ended.stdout.splitlines() if line.startswith(("PASS", "FAIL"))]
    assert len(verdicts) == 5, ended.stdout + ended.stderr
    assert [line for line in verdicts if line.startswith("FAIL") and "the worst fair client" not in line] == []
