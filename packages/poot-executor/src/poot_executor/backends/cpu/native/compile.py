"""Compiling the C sources for this very processor, once: the result is kept in a private directory."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from poot_executor.devices.kept import keep, kept
from poot_executor.devices.private_folder import private_folder

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread")
_SECONDS = 60


class CompileError(Exception):
    """Why there is no library; the message is for people."""


def compiled(directory: Path) -> Path:
    """The shared library of a directory's C files.

    It is named by what it depends on (sources, flags, compiler, processor) and is compiled when it is not there yet, or
    is not what was compiled.
    Raises CompileError.
    """
    sources = sorted(directory.glob("*.c"))
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise CompileError(f"no C compiler on the path ({', '.join(COMPILERS)})")
    key = hashlib.sha256()
    texts = [path.read_bytes() for path in (*sources, *sorted(directory.glob("*.h")))]
    for part in (*texts, repr(FLAGS).encode(), _version(compiler), _processor()):
        key.update(part)
        key.update(b"\0")
    target = private_folder("native") / f"{key.hexdigest()[:32]}.so"
    if kept(target) is None:
        _compile(compiler, sources, target)
    return target


def _compile(compiler: str, sources: list[Path], target: Path) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder, "made.so")
            command = [compiler, *FLAGS, "-o", str(made), *map(str, sources), "-lm"]
            run = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
            if run.returncode:
                raise CompileError(f"{compiler} failed: {run.stderr.decode(errors='replace').strip()[:500]}")
            library = made.read_bytes()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{compiler} did not run: {error}") from error
    try:
        keep(target, library)
    except OSError as error:
        raise CompileError(f"{target} cannot be written: {error}; what is in its place may be deleted") from error


def _version(compiler: str) -> bytes:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, timeout=_SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{compiler} did not run: {error}") from error


def _processor() -> bytes:
    """What -march=native depends on, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.machine(), *(line for line in lines if line.startswith(wanted))][:8]).encode()
