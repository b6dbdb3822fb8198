"""What stops a start: at once, with one line that says what is wrong, and an exit code."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from poot_executor.devices.table import PLANNED

SECONDS = 5.0  # for a refusal that takes less than one on a machine that does nothing else
STARTED = re.compile(r"\w+: (started|done)")
COULD_NOT, WRONG_COMMAND = 1, 2
Q4_1, UNKNOWN_TYPE = 3, 250


@pytest.fixture(scope="session")
def header(model: Path) -> bytes:
    """The demonstration model up to somewhere within its weights."""
    with model.open("rb") as file:
        return file.read(4 << 20)


@pytest.fixture
def refused(live, tmp_path) -> Callable[..., str]:
    """(code, *arguments) -> the one line on stderr of a start that must end with that exit code within `seconds`."""

    def run(code: int, *arguments: str, seconds: float = SECONDS) -> str:
        if len(arguments) == 1 and code == COULD_NOT:
            arguments = (*arguments, f"127.0.0.1:{live.free_port()}")
        began = time.perf_counter()
        ended = subprocess.run(
            [live.console_script(), *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
        )
        taken = time.perf_counter() - began
        print(f"{taken:.2f} s: {ended.stderr.strip()}")
        lines = [line for line in ended.stderr.splitlines() if not STARTED.fullmatch(line)]
        assert ended.returncode == code and len(lines) == 1 and lines[0].startswith("poot-serve: "), ended.stderr
        assert ended.stdout == "" and taken < seconds
        return lines[0]

    return run


@pytest.fixture
def patched(header: bytes, model: Path, tmp_path: Path) -> Callable[..., str]:
    """(offset or text, replacement) -> a copy of the model with these bytes changed, its weights a hole in the file."""

    def write(at: int | bytes, new: bytes) -> str:
        position = at if isinstance(at, int) else header.index(at)
        path = tmp_path / "patched.gguf"
        path.write_bytes(header[:position] + new + header[position + len(new) :])
        with path.open("r+b") as file:
            file.truncate(model.stat().st_size)
        return str(path)

    return write


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], str]:
    def write(content: bytes) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return str(path)

    return write


@pytest.mark.parametrize("size", [0, 16, 100_000, 4 << 20])
def test_truncated_file(refused, file, header, size):
    line = refused(COULD_NOT, file(header[:size]))
    assert "model.gguf" in line and re.search("truncated|empty|no GGUF file|claims", line)


def test_file_of_another_format(refused, file, header):
    assert "no GGUF file" in refused(COULD_NOT, file(b"ggjt" + header[4:1000]))


@pytest.mark.parametrize(("offset", "what"), [(8, "tensors"), (16, "key-value pairs")])
def test_oversized_counts(refused, patched, offset, what):
    count = 2**63 + 1
    assert f"claims {count} {what}" in refused(COULD_NOT, patched(offset, struct.pack("<Q", count)))


def test_missing_tensor(refused, patched):
    line = refused(COULD_NOT, patched(b"blk.29.ffn_up.weight", b"blk.29.ffn_xx.weight"))
    assert "blk.29.ffn_up.weight" in line


def test_missing_field(refused, patched):
    line = refused(COULD_NOT, patched(b"llama.embedding_length", b"llama.embedding_lenxxx"))
    assert "llama.embedding_length" in line


def test_unknown_architecture(refused, patched):
    line = refused(COULD_NOT, patched(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0xlama"))
    assert "xlama" in line and "supported" in line


def test_unknown_encoding(refused, patched, header):
    name = b"blk.0.ffn_gate.weight"
    # After the name: the number of dimensions, two of them, the type.
    at = header.index(name) + len(name) + 4 + 2 * 8
    assert header[at : at + 4] == struct.pack("<I", Q4_1)
    line = refused(COULD_NOT, patched(at, struct.pack("<I", UNKNOWN_TYPE)))
    assert name.decode() in line and str(UNKNOWN_TYPE) in line


def test_directory_without_a_model(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(COULD_NOT, str(tmp_path / "empty"))


def test_safetensors_directory_without_its_weights(refused, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    assert "safetensors" in refused(COULD_NOT, str(tmp_path))


@pytest.mark.parametrize("backend", PLANNED)
def test_backend_that_is_planned(refused, live, model, backend):
    line = refused(COULD_NOT, str(model), f"127.0.0.1:{live.free_port()}", "--backend", backend)
    assert f"backend {backend}" in line


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a CUDA device")
def test_backend_without_a_device(refused, live, model):
    # To look for a device takes torch, whose import alone takes seconds.
    line = refused(COULD_NOT, str(model), f"127.0.0.1:{live.free_port()}", "--backend", "ptx", seconds=30.0)
    assert "CUDA" in line


def test_port_in_use(refused, model):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = refused(COULD_NOT, str(model), f"127.0.0.1:{port}")
    assert f"cannot listen on http://127.0.0.1:{port}" in line


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["nowhere.gguf"], "nowhere.gguf"),
        (["MODEL", "example.com:80"], "example.com"),
        (["MODEL", "127.0.0.1:70000"], "70000"),
        (["MODEL", "127.0.0.1:8080", "more"], "more"),
        (["MODEL", "--no-such-flag"], "--no-such-flag"),
        (["MODEL", "--rows"], "--rows"),
        (["MODEL", "--rows", "0"], "--rows"),
        (["MODEL", "--rows", "four"], "'four'"),
        (["MODEL", "--max-seq=-1"], "--max-seq"),
        (["MODEL", "--rows", "2", "--rows", "2"], "twice"),
        (["MODEL", "--drain-timeout-secs", "0"], "--drain-timeout-secs"),
        (["MODEL", "--drain-timeout-secs", "86401"], "--drain-timeout-secs"),
        (["MODEL", "--backend", "cuda"], "ptx"),
        (["MODEL", "--chat-template", "chatml"], "no jinja"),
        (["MODEL", "--chat-template-file", "nowhere.jinja"], "nowhere.jinja"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_command_line(refused, model, arguments, what):
    assert what in refused(WRONG_COMMAND, *(str(model) if one == "MODEL" else one for one in arguments))


def test_a_template_that_does_not_compile(refused, model):
    # Found once the address is known to be free, so not with the default one, which another server may have.
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    line = refused(WRONG_COMMAND, str(model), f"127.0.0.1:{port}", "--chat-template", "{% if %}")
    assert "--chat-template" in line
