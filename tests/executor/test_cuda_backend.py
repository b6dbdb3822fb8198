"""What opening a CUDA device does before torch is there. No NVIDIA card needed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from poot_executor.backends.cuda import backend, libraries
from poot_executor.errors import BackendUnavailableError


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What threads could not cope with."""
    failed: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: failed.append(repr(told.exc_value)))
    return failed


def begun() -> None:
    libraries.begin_driver()
    for thread in threading.enumerate():
        if thread.name == "cuInit":
            thread.join()


def test_the_driver_is_initialised_in_a_thread(monkeypatch: pytest.MonkeyPatch, failures: list[str]) -> None:
    seen: list[tuple[str, int, str]] = []

    class Library:
        def __init__(self, name: str) -> None:
            self.name = name

        def cuInit(self, flags: int) -> int:
            seen.append((self.name, flags, threading.current_thread().name))
            return 100  # CUDA_ERROR_NO_DEVICE, which torch tells too

    monkeypatch.setattr(libraries.ctypes, "CDLL", Library)
    begun()
    assert seen == [("libcuda.so.1", 0, "cuInit")]
    assert failures == []


@pytest.mark.parametrize("name", ["libpoot-is-no-such-library.so.1", None])
def test_without_a_driver_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, failures: list[str], name: str | None
) -> None:
    monkeypatch.setattr(libraries, "DRIVER", name)  # None: the process itself, which has no such function
    begun()
    assert failures == []


@pytest.mark.parametrize(("ask", "count"), [(backend.BACKEND.open, 1), (backend.BACKEND.describe, 0)])
def test_only_a_device_that_is_to_be_opened_needs_the_driver(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object], count: int
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(backend, "begin_driver", lambda: begun.append(1))
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(BackendUnavailableError, match="built without CUDA"):
        ask()
    assert len(begun) == count


PROGRAM = """
import sys
from poot_executor.backends.cuda import backend
from poot_executor.errors import BackendUnavailableError

def begin_driver():
    print("torch" in sys.modules)
    sys.modules["torch"] = None  # from here on it does not load

backend.begin_driver = begin_driver
try:
    backend.BACKEND.open()
except BackendUnavailableError as error:
    print(error)
"""


def test_the_driver_begins_before_torch_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert first == "False"
    assert second.startswith("torch does not load: ")
