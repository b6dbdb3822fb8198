"""Start, drain and exit codes of the real program over the tests' engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

BODY = {"prompt": "a", "stream": True}
HALF = (
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
    b'Content-Length: 100\r\n\r\n{"prompt"'
)


@pytest.fixture
def port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def start(tmp_path, port):
    """Starts the program; the process is killed if the test leaves it running."""
    started: list[subprocess.Popen[str]] = []

    def make(fault: str, *flags: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([*served(tmp_path, port, fault), *flags], stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield make
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def engine(tmp_path):
    """engine() -> the process that was launched for the engine, as far as it is there. Waits until it is launched."""

    def find() -> psutil.Process | None:
        while not (tmp_path / "engine").exists() or not (text := (tmp_path / "engine").read_text()):
            pass
        try:
            return psutil.Process(int(text))
        except psutil.NoSuchProcess:
            return None

    return find


def ended(process: psutil.Process | None) -> bool:
    """Whether it ends by itself."""
    return process is None or not psutil.wait_procs([process], timeout=10)[1]


def until_serving(process: subprocess.Popen[str]) -> list[str]:
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "serving" in line:
            return lines
    raise AssertionError("".join(lines))


def until_received(port: int) -> None:
    """Returns once the server reads a body."""
    while not httpx.get(f"http://127.0.0.1:{port}/metrics").json()["poot_receiving_requests"]:
        pass


def get_health(port: int) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port}/health")


def test_idle_server_ends_with_0(start, port):
    process = start("none")
    lines = until_serving(process)
    assert "weights: started\n" in lines and "weights: done\n" in lines
    assert get_health(port).json()["status"] == "serving"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert "panicked" not in process.stderr.read()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_drain_refuses_new_work_and_cuts_what_does_not_end(start, port):
    process = start("hold", "--drain-timeout-secs=1")
    until_serving(process)
    with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=BODY, timeout=10) as response:
        lines = response.iter_lines()
        assert "text" in next(lines)
        half = socket.create_connection(("127.0.0.1", port), timeout=10)
        half.sendall(HALF % port)
        until_received(port)
        process.send_signal(signal.SIGINT)
        assert "draining" in process.stderr.readline()
        # It would be refused once it is there, and may never be.
        with half:
            assert b"503 Service Unavailable" in half.recv(65536)
        assert get_health(port).status_code == 503
        refused = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=BODY)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        rest = [line for line in lines if line]
    assert len(rest) == 1 and '"error"' in rest[0]
    assert process.wait(10) == 0


def test_second_signal_ends_at_once(start, port):
    process = start("hold")
    until_serving(process)
    with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=BODY, timeout=10) as response:
        assert "text" in next(response.iter_lines())
        process.send_signal(signal.SIGTERM)
        assert "draining" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 128 + signal.SIGTERM


def test_a_dead_engine_ends_the_program_with_1(start):
    process = start("dead")
    until_serving(process)
    assert process.wait(10) == 1
    assert "the engine is gone" in process.stderr.read()


@pytest.mark.parametrize(
    ("fault", "flags", "code", "message"),
    [
        ("start", [], 1, "poot-serve: the model does not fit: 3 MB are missing\n"),
        ("none", ["--chat-template", "{% if %}"], 2, "--chat-template: "),
    ],
)
def test_what_stops_the_start(start, engine, *, fault, flags, code, message):
    process = start(fault, *flags)
    assert process.wait(10) == code
    error = process.stderr.read()
    assert message in error and "Traceback" not in error
    assert engine() is None


@pytest.mark.parametrize("flag", ["--help", "--version", "--rows=0", "--no-such-flag"])
def test_no_engine_is_launched_for_a_command_line_that_starts_nothing(start, tmp_path, flag):
    assert start("none", flag).wait(10) == (0 if flag in ("--help", "--version") else 2)
    assert not (tmp_path / "engine").exists()


def test_a_module_that_does_not_load_leaves_no_engine(start, engine):
    process = start("import")
    assert process.wait(10) == 1
    assert "No module named 'uninstalled'" in process.stderr.read()
    assert engine() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_modules_load_leaves_no_engine(start, engine, number):
    process = start("slow")
    launched = engine()
    assert launched is not None
    process.send_signal(number)
    assert process.wait(10) == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in process.stderr.read()
    assert ended(launched)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full"])
@pytest.mark.parametrize("flags", [[], ["--log-format", "json"]], ids=["text", "json"])
def test_it_serves_where_nobody_takes_what_it_writes(tmp_path, port, closed, flags):
    serves_and_ends(port, ["sh", "-c", f'exec "$0" "$@" {closed}', *served(tmp_path, port), *flags])


@pytest.fixture
def unread():
    """The number of a pipe that is full, and read by nobody."""
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    for size in (4096, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(sink, b"x" * size)
    os.set_blocking(sink, True)
    yield sink
    os.close(source)
    os.close(sink)


@pytest.mark.parametrize("flags", [[], ["--log-format", "json"]], ids=["text", "json"])
def test_it_serves_and_ends_where_nobody_reads_what_it_writes(tmp_path, port, unread, flags):
    serves_and_ends(port, [*served(tmp_path, port), *flags], stderr=unread)


def test_signals_that_were_blocked_before_end_it_too(tmp_path, port):
    code = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    serves_and_ends(port, [sys.executable, "-c", code, *served(tmp_path, port)])


def served(tmp_path: Path, port: int, fault: str = "none") -> list[str]:
    """The command that starts the program."""
    script = Path(__file__).with_name("launched_server.py")
    return [sys.executable, str(script), fault, str(tmp_path), f"127.0.0.1:{port}"]


def serves_and_ends(port: int, command: list[str], stderr: int | None = None) -> None:
    with subprocess.Popen(command, stderr=stderr) as process:
        try:
            until_healthy(port)
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


def until_healthy(port):
    for _ in range(200):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    pytest.fail("it does not serve")


@pytest.mark.parametrize(
    ("flag", "closed", "code"),
    [
        ("--help", ">&-", 0),
        ("--help", ">/dev/full", 0),
        ("--version", ">/dev/full", 0),
        ("--no-such-flag", "2>&-", 2),
        ("--no-such-flag", "2>/dev/full", 2),
    ],
)
def test_exit_codes_where_nobody_takes_what_it_writes(tmp_path, flag, closed, code):
    words = [sys.executable, "-c", "from poot_serve.cli import main; main()", flag]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {closed}', *words], capture_output=True, timeout=20, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"", b"")


def test_port_in_use(start, engine, port):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        process = start("none")
        assert process.wait(10) == 1
        error = process.stderr.read()
    assert error.startswith(f"poot-serve: cannot listen on http://127.0.0.1:{port}") and error.count("\n") == 1
    assert engine() is None


def test_a_log_of_json_from_start_to_end(start, port):
    process = start("none", "--log-format=json")
    lines = until_serving(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    told = [json.loads(line) for line in [*lines, *process.stderr]]
    messages = {(entry["logger"], entry["message"]) for entry in told}
    assert ("stderr", "weights: started") in messages and ("poot_serve", "draining for at most 30 s") in messages
    assert all(set(entry) >= {"time", "level", "logger", "message"} for entry in told)


def test_what_stops_the_start_is_json_too(start):
    process = start("start", "--log-format=json")
    assert process.wait(10) == 1
    *_, last = (json.loads(line) for line in process.stderr)
    assert (last["level"], last["message"]) == ("critical", "the model does not fit: 3 MB are missing")
