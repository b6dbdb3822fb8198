"""What a CUDA device makes of errors that torch raises. No GPU: the calls that would reach one are made to fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from poot_executor.devices import Live
from poot_executor.errors import CapacityError, DeviceError

pytest.importorskip("triton", reason="torch brings triton on Linux only")

from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.backends.triton import recording
from poot_executor.backends.triton.graphs import PinnedFetch
from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.backends.triton.recording import GraphRecording

ALLOCATION = TorchAllocation(torch.zeros(64, dtype=torch.uint8))


class Broken:
    """Whatever is called on it, or on what it has, fails as a lost context does."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        return call


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """An opened device whose context is lost."""
    made = object.__new__(CudaDevice)
    made.__dict__.update(_up=Broken(), _down=Broken(), _uploads=Broken(), torch_device="cpu")
    made.live = torch.zeros(4, dtype=torch.int32)
    for name in ("synchronize", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, getattr(Broken(), name))
    return made


@pytest.mark.parametrize(
    "call",
    [
        lambda device: device.write(ALLOCATION, 0, np.zeros(4, np.uint8)),
        lambda device: device.fetch(ALLOCATION, 0, 4),
        lambda device: device.synchronize(),
        lambda device: device.record([], []),
        lambda device: PinnedFetch(ALLOCATION.tensor, Broken()).result(),
    ],
    ids=["write", "fetch", "synchronize", "record", "result"],
)
def test_a_lost_context_is_a_device_error(device: CudaDevice, call: Callable[[CudaDevice], Any]) -> None:
    with pytest.raises(DeviceError, match="illegal memory access"):
        call(device)


@pytest.mark.parametrize("ready", [True, False])
def test_only_fresh_launches_run_first_unless_that_does_not_do(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    said: list[list[str]] = []
    device.side = device.pool = None  # type: ignore[assignment]

    def capture(side: Any, pool: Any, calls: Sequence[Callable[[], str]], first: Sequence[Callable[[], str]]) -> str:
        said.append([call() for call in first])
        if len(said) == 1 and not ready:
            raise RuntimeError("operation not permitted when stream is capturing")
        return " ".join(call() for call in calls)

    monkeypatch.setattr(recording, "capture", capture)
    launches = [lambda live, name=name: lambda: name for name in ("a", "b", "c")]
    made = GraphRecording(device, launches, [True, False, True], ALLOCATION)
    assert said == ([["a", "c"]] if ready else [["a", "c"], ["a", "b", "c"]])
    assert made.__dict__["_graph"] == "a b c"


def test_a_replay_on_a_lost_context_is_a_device_error(device: CudaDevice) -> None:
    recording = object.__new__(GraphRecording)
    recording.__dict__.update(_device=device, _live=ALLOCATION, _last=Live(), _graph=Broken())
    with pytest.raises(DeviceError, match="illegal memory access"):
        recording.replay(Live())
    with pytest.raises(DeviceError, match="illegal memory access"):
        recording.replay(Live(tokens=1))


def test_closing_a_lost_device_is_quiet(device: CudaDevice) -> None:
    device.close()


def test_memory_that_runs_out_is_a_capacity_error(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    monkeypatch.setattr(torch.cuda, "synchronize", full)
    device._uploads = type("Done", (), {"finish": lambda self: None})()  # type: ignore[assignment]
    with pytest.raises(CapacityError, match="tried to allocate 20 GiB"):
        device.synchronize()
