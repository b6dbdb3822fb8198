"""The log: text for people or JSON for programs, on standard error, with the id of the request that a line is about."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from queue import SimpleQueue
from types import TracebackType
from typing import TextIO

# Of the request that is being answered.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

STDERR = 2
JOIN_SECONDS = 1.0
DRAIN_SECONDS = 1.0
MOST_WAITING = 1000
MAX_LINE_BYTES = 1 << 16
_READ_BYTES = 1 << 16
_LINE_END = re.compile(rb"[\r\n]+")
# What could make one message look like several lines, or steer a terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_log = logging.getLogger("poot_serve")


@contextmanager
def logging_to_stderr(level: str, log_format: str) -> Iterator[Outlet]:
    """Logs at `level` and above go to standard error until the block ends, as "text" or as "json".

    With "json" so does everything else that this process and its children write there: each line becomes an object
    of the logger "stderr". Exceptions that nothing catches are logged, and so are warnings. The outlet is for what else
    is told there beside a log of text, in its order.
    """
    relay = _Relay() if log_format == "json" else None
    formatter = TextFormatter() if relay is None else JsonFormatter()
    outlet = Outlet(sys.stderr if relay is None else relay.out, lambda lost: formatter.format(_loss(lost)))
    handler = _Handler(outlet)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    before = root.level, sys.excepthook, threading.excepthook
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)
    sys.excepthook, threading.excepthook = _uncaught, _uncaught_in_thread
    for client in ("httpx", "httpx2"):  # huggingface_hub's, which tells of every request
        logging.getLogger(client).setLevel(logging.WARNING)
    if relay is not None:
        relay.start()
    try:
        yield outlet
    finally:
        if relay is not None:
            relay.stop()
        sys.excepthook, threading.excepthook = before[1:]
        logging.captureWarnings(False)
        root.setLevel(before[0])
        root.removeHandler(handler)
        handler.close()
        outlet.close()
        if relay is not None:
            with suppress(OSError):  # nobody reads what was left
                relay.out.close()


class Outlet:
    """Texts go out in a thread of its own, so that a reader that does not read keeps nobody else waiting.

    A text that cannot be written is lost, and so are texts while MOST_WAITING wait. Of so many, `tell` makes a line,
    which goes out with the next.
    """

    def __init__(self, out: TextIO, tell: Callable[[int], str]) -> None:
        self._out, self._tell = out, tell
        try:
            self._number: int | None = out.fileno()
        except (OSError, ValueError):  # a stream of a test's, say
            self._number = None
        # Of this queue a signal's handler may put something while the same thread does.
        self._waiting: SimpleQueue[str | threading.Event | None] = SimpleQueue()
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="stderr writer", daemon=True)
        self._thread.start()

    def isatty(self) -> bool:
        return self._out.isatty()

    def write(self, text: str) -> None:
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(text)
        else:
            self._lost += 1

    def flush(self) -> None:
        """Nothing: texts are on their way."""

    def drain(self) -> None:
        """Waits until what has been written is out, for DRAIN_SECONDS at most."""
        written = threading.Event()
        self._waiting.put(written)
        written.wait(DRAIN_SECONDS)

    def close(self) -> None:
        self.drain()
        self._waiting.put(None)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            lost, self._lost = self._lost, 0
            with suppress(OSError, ValueError):
                self._put(item + (f"{self._tell(lost)}\n" if lost else ""))

    def _put(self, text: str) -> None:
        if self._number is None:
            self._out.write(text)
            self._out.flush()
            return
        # Not by the stream: whoever flushes it would wait for its lock.
        data = memoryview(text.encode(self._out.encoding or "utf-8", "backslashreplace"))
        while data:
            data = data[os.write(self._number, data) :]


def _loss(lost: int) -> logging.LogRecord:
    said = "%d lines are lost: nobody read the log"
    return logging.LogRecord(_log.name, logging.WARNING, __file__, 0, said, (lost,), None)


class _Handler(logging.Handler):
    """Lines through an outlet. One that cannot be made is lost: to tell standard error of it, as logging does, is to
    tell the relay, which would log that too."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__()
        self._outlet = outlet

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a message whose arguments do not fit
            self._outlet.write(self.format(record) + "\n")

    def flush(self) -> None:
        self._outlet.drain()


class TextFormatter(logging.Formatter):
    """`TIME LEVEL MESSAGE`, the message on one line behind its request's id; an exception's lines follow."""

    def format(self, record: logging.LogRecord) -> str:
        name, message = request_id.get(), _CONTROL.sub(_escaped, record.getMessage())
        line = f"{self.formatTime(record)} {record.levelname} {f'{name}: ' if name else ''}{message}"
        trace = self._trace(record)
        return f"{line}\n{trace}" if trace else line

    def _trace(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class JsonFormatter(logging.Formatter):
    """An object on one line: time, level, logger, message and, where there is one, request_id and exception."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {
            "time": time.removesuffix("+00:00") + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (name := request_id.get()) is not None:
            told["request_id"] = name
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


class _Relay:
    """Takes the place of standard error, and logs each line that is written there."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self.out = os.fdopen(os.dup(STDERR), "w", encoding="utf-8", errors="backslashreplace")
        self._source, sink = os.pipe()
        os.dup2(sink, STDERR)
        os.close(sink)
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._lines = logging.getLogger("stderr")
        # Whatever level is asked for: nobody says how bad such a line is.
        self._lines.setLevel(logging.INFO)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Gives standard error back, once what was written is logged. A child that still lives may hold it open."""
        sys.stderr.flush()
        os.dup2(self.out.fileno(), STDERR)
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        rest = b""
        while data := os.read(self._source, _READ_BYTES):
            *lines, rest = _LINE_END.split(rest + data)
            if len(rest) > MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            self._tell(lines)
        self._tell([rest])
        os.close(self._source)

    def _tell(self, lines: list[bytes]) -> None:
        for line in lines:
            if line:
                self._lines.info("%s", line.decode("utf-8", "backslashreplace"))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _log.critical("an exception was not caught", exc_info=(kind, error, trace))


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
