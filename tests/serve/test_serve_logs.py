"""The log's two formats, and that with JSON nothing else comes out of standard error."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from poot_serve import logs
from poot_serve.logs import JsonFormatter, TextFormatter, request_id

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
PROGRAM = """
import os, subprocess, sys, threading, warnings, logging
from poot_serve.logs import logging_to_stderr

log = logging.getLogger("poot_serve.test")
with logging_to_stderr("INFO", "json"):
    log.info("first")
    log.debug("not asked for")
    logging.getLogger("httpx").info("nor this")
    sys.stderr.write("in two ")
    sys.stderr.write("parts\\n")
    os.write(2, b"weights  1%\\rweights 99%\\n\\n\\xff odd\\n")
    subprocess.run([sys.executable, "-c", "1 / 0"])
    warnings.warn("old")
    thread = threading.Thread(target=lambda: [][0])
    thread.start()
    thread.join()
    sys.stderr.write("no line end")
print("after", file=sys.stderr)
raise ValueError("after all")
"""


def record(message: str, *arguments: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("poot_serve.x", logging.WARNING, "x.py", 1, message, arguments, None)
    made.__dict__.update(fields)
    return made


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_log_says_how_much_of_it_is_lost(log_format):
    """In its own format. Nobody reads it until all has been said."""
    program = f"""
import logging, os
from poot_serve import logs
logs.MOST_WAITING, logs.DRAIN_SECONDS = 10, 0.05
read, write = os.pipe()
kept = os.dup(2)
os.dup2(write, 2)
with logs.logging_to_stderr("INFO", "{log_format}"):
    for number in range(300):
        logging.getLogger("poot_serve.test").info("line %d %s", number, "x" * 2000)
    logging.getLogger().handlers[-1].flush()
    logs.DRAIN_SECONDS = 20.0
    import threading
    def copy():
        while data := os.read(read, 1 << 16):
            os.write(kept, data)
    threading.Thread(target=copy, daemon=True).start()
    logging.getLogger().handlers[-1].flush()
    logging.getLogger("poot_serve.test").info("last")
    logging.getLogger().handlers[-1].flush()
import time
time.sleep(0.2)
os._exit(0)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    lines = ended.stderr.decode().splitlines()
    if log_format == "json":
        lines = [json.loads(line)["message"] for line in lines]
    (told,) = [line for line in lines if "nobody read the log" in line]
    lost = int(re.search(r"(\d+) lines are lost", told)[1])
    assert lost + sum("xxx" in line for line in lines) == 300
    assert lost > 100
    assert sum(line.endswith("last") for line in lines) == 1


@pytest.fixture
def within_a_request():
    token = request_id.set("req_7")
    yield
    request_id.reset(token)


def test_json(within_a_request):
    made = record("one %s\ntwo é", "thing", created=1_700_000_000.0625)
    text = JsonFormatter().format(made)
    assert "\n" not in text and text.isascii()
    assert json.loads(text) == {
        "time": "2023-11-14T22:13:20.062Z",
        "level": "warning",
        "logger": "poot_serve.x",
        "message": "one thing\ntwo é",
        "request_id": "req_7",
    }
    assert datetime.fromisoformat(json.loads(text)["time"]) == datetime(2023, 11, 14, 22, 13, 20, 62000, UTC)


def test_json_outside_of_a_request_and_with_an_exception():
    try:
        raise ValueError("bad \x1b[31m value")
    except ValueError:
        made = record("failed", exc_info=sys.exc_info())
    told = json.loads(JsonFormatter().format(made))
    assert "request_id" not in told and told["message"] == "failed"
    assert told["exception"].startswith("Traceback") and told["exception"].endswith("ValueError: bad \x1b[31m value")


def test_text_is_one_line_and_steers_no_terminal(within_a_request):
    line = TextFormatter().format(record("a\r\nFAKE line \x1b[2J\x85\u2028 é"))
    assert line.endswith(r" WARNING req_7: a\r\nFAKE line \x1b[2J\x85\u2028 é")


def test_text_without_a_request():
    try:
        raise ValueError("x")
    except ValueError:
        line = TextFormatter().format(record("failed", exc_info=sys.exc_info()))
    first, *rest = line.splitlines()
    assert first.endswith(" WARNING failed") and rest[0].startswith("Traceback") and rest[-1] == "ValueError: x"


def test_all_that_is_written_becomes_json():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=30, check=False)
    lines = ended.stderr.decode().splitlines()
    after = lines.index("after")  # then standard error is what it was
    assert lines[-1] == "ValueError: after all" and ended.returncode == 1
    told = [json.loads(line) for line in lines[:after]]
    assert all(TIME.fullmatch(entry["time"]) for entry in told)
    by_logger: dict[str, list[str]] = {}
    for entry in told:
        by_logger.setdefault(entry["logger"], []).append(entry["message"])
    assert by_logger["poot_serve.test"] == ["first"] and "httpx" not in by_logger
    raw = by_logger["stderr"]
    assert raw[:4] == ["in two parts", "weights  1%", "weights 99%", "\\xff odd"]
    assert raw[-2:] == ["ZeroDivisionError: division by zero", "no line end"]
    assert "UserWarning: old" in by_logger["py.warnings"][0]
    (uncaught,) = [entry for entry in told if entry["logger"] == "poot_serve"]
    assert uncaught["level"] == "critical" and "IndexError" in uncaught["exception"]


def test_lines_that_nobody_reads_are_lost_and_keep_nobody_waiting(monkeypatch):
    monkeypatch.setattr(logs, "MOST_WAITING", 100)
    monkeypatch.setattr(logs, "DRAIN_SECONDS", 0.05)
    source, sink = os.pipe()
    with os.fdopen(source, "rb") as read, ThreadPoolExecutor(1) as other:
        with os.fdopen(sink, "w", encoding="utf-8") as out:
            outlet = logs.Outlet(out, lambda lost: json.dumps({"lost": lost}))
            for number in range(1000):
                outlet.write(f"{number} {'x' * 2000}\n")
            outlet.drain()  # in vain
            monkeypatch.setattr(logs, "DRAIN_SECONDS", 60.0)
            got = other.submit(read.read)
            outlet.drain()
            outlet.write("after \udcff\n")
            outlet.close()
        text = got.result().decode()
    *lines, last = text.splitlines()
    kept = [int(line.split()[0]) for line in lines if line.endswith("x")]
    lost = [json.loads(line)["lost"] for line in lines if line.startswith("{")]
    assert kept == list(range(len(kept)))
    assert len(kept) >= 100
    assert (len(lost), sum(lost)) == (1, 1000 - len(kept))
    assert len(kept) + len(lost) == len(lines)
    assert last == r"after \udcff"


def test_lines_of_a_request_carry_its_id(served, caplog):
    told: list[dict[str, object]] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(json.loads(JsonFormatter().format(record)))
    logging.getLogger("poot_serve").addHandler(handler)
    try:
        served.engine.state = "dead"
        served.client.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "mine-1"})
    finally:
        logging.getLogger("poot_serve").removeHandler(handler)
    assert [(entry["level"], entry["request_id"]) for entry in told] == [("error", "mine-1")]


def test_a_json_log_that_nobody_reads_feeds_no_lines_to_itself():
    """Far more lines than a pipe holds."""
    program = """
import os, sys
from poot_serve.logs import logging_to_stderr
reader, writer = os.pipe()
os.dup2(writer, 2)
os.close(reader)
os.close(writer)
with logging_to_stderr("INFO", "json"):
    for _ in range(3000):
        sys.stderr.write("a line that is written to standard error\\n")
        sys.stderr.flush()
print("over")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"over\n")
