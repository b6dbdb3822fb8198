"""What NVML says, by a fake of its Python package, and the reasons that come of it. No NVIDIA card needed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from poot_executor.backends.cuda import nvml
from poot_executor.backends.cuda.backend import BACKEND, _why_none
from poot_executor.errors import BackendUnavailableError


class FakeError(Exception):
    pass


class FakeNvml:
    """Two cards; the second has three NVLinks up. `fails` names the function that raises."""

    NVMLError = FakeError
    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.open = 0

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "fails"):

            def fail(*arguments: Any) -> None:
                raise FakeError(name)

            return fail
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 12080

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        return ("NVIDIA H200", b"NVIDIA H100")[handle]

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=1000 + handle, used=10 + handle)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if handle == 0 or link > 3:
            raise FakeError("not supported")
        return int(link < 3)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_cards_are_read_and_nvml_is_closed(fake: FakeNvml) -> None:
    first, second = nvml.cards()
    assert first == nvml.Card("NVIDIA H200", "GPU-00", 1000, 10, "570.86.15", (12, 8), 0)
    assert second == nvml.Card("NVIDIA H100", "GPU-11", 1001, 11, "570.86.15", (12, 8), 3)
    assert fake.open == 0
    assert nvml.card("11") == nvml.card("GPU-11") == second
    assert nvml.card("22") is None


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo"])
def test_an_nvml_that_fails_knows_no_cards(fake: FakeNvml, function: str) -> None:
    fake.fails = function
    assert nvml.cards() == ()
    assert fake.open == 0


def test_without_the_package_there_are_no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.cards() == ()


def test_why_torch_sees_none_of_the_cards(fake: FakeNvml) -> None:
    here = "NVIDIA H200 (driver 570.86.15, up to CUDA 12.8), NVIDIA H100 (driver 570.86.15, up to CUDA 12.8)"
    cards = nvml.cards()
    assert _why_none("13.2", cards) == (
        f"the driver of {here} is too old for torch's CUDA 13.2: update it, or install an older torch"
    )
    # Minor versions above the driver's run too.
    assert _why_none("12.9", cards).startswith(f"{here} is here and its driver is new enough: CUDA_VISIBLE_DEVICES")
    assert _why_none("12.9", ()).startswith("NVML finds none either")


def test_a_torch_without_cuda_is_told_from_a_machine_without_a_card(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(BackendUnavailableError, match=r"built without CUDA, though NVIDIA H200 .* is here"):
        BACKEND.describe()
    fake.fails = "nvmlInit"
    with pytest.raises(BackendUnavailableError, match=r"built without CUDA$"):
        BACKEND.describe()


def test_doctor_describes_what_opens(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H100", total_memory=80 * 2**30, major=9, minor=0, uuid="11")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    pytest.importorskip("triton", reason="torch brings triton on Linux only")
    assert BACKEND.describe() == (
        "NVIDIA H100, 80.0 GiB, compute capability 9.0, 0.0 GiB in use, driver 570.86.15, 3 NVLinks",
    )
