"""When a ROCm device opens, and what is said when none does, by a torch that is made to say what it would there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from poot_executor.backends.rocm.backend import BACKEND
from poot_executor.errors import BackendUnavailableError

pytest.importorskip("triton", reason="torch brings triton on Linux only")

from poot_executor.backends.triton.graphs import shared_bytes


def test_a_torch_without_rocm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(
        BackendUnavailableError, match=f"^torch {torch.__version__.split('+')[0]}.* is built without ROCm$"
    ):
        BACKEND.open()


def test_a_rocm_build_without_a_device_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for ask in (BACKEND.open, BACKEND.describe):
        with pytest.raises(BackendUnavailableError, match=r"HIP 7\.1\.25424.*HIP_VISIBLE_DEVICES.*/dev/kfd"):
            ask()


def test_a_rocm_build_without_triton_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendUnavailableError, match="triton is not installed"):
        BACKEND.open()


def test_devices_are_named_with_their_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    properties = SimpleNamespace(
        name="AMD Instinct MI300X", total_memory=192 * 2**30, gcnArchName="gfx942:sramecc+:xnack-"
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert BACKEND.describe() == ("AMD Instinct MI300X, 192.0 GiB, gfx942:sramecc+:xnack-",)


def test_shared_memory_is_what_a_program_may_ask_for() -> None:
    assert shared_bytes(SimpleNamespace(shared_memory_per_block=49152, shared_memory_per_block_optin=232448)) == 232448
    assert shared_bytes(SimpleNamespace(shared_memory_per_block=65536)) == 65536
    assert shared_bytes(SimpleNamespace(shared_memory_per_block=65536, shared_memory_per_block_optin=0)) == 65536
