"""The table of backends, and what the CPU knows of its memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from poot_executor.backends.cpu import memory
from poot_executor.devices import BACKENDS, open_device, probe, table
from poot_executor.errors import BackendUnavailableError


def test_auto_never_opens_null() -> None:
    assert open_device().backend == ("ptx" if torch.cuda.is_available() else "cpu")
    assert open_device("null").backend == "null"


@pytest.mark.parametrize("name", table.PLANNED)
def test_planned_backends_are_refused_by_name(name: str) -> None:
    refusal = f"backend {name} is not part of this version; choose one of auto, ptx, rocm, cpu$"
    with pytest.raises(BackendUnavailableError, match=refusal):
        open_device(name)


@pytest.mark.parametrize("name", ["", "cuda", "CPU", "poot_executor.backends.cpu.device"])
def test_unknown_backends_are_refused(name: str) -> None:
    with pytest.raises(BackendUnavailableError, match=r"there is no backend .*; choose one of auto, ptx, rocm, cpu$"):
        open_device(name)


def test_a_backend_whose_package_is_missing_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "cpu", "no_such_package.device")
    monkeypatch.setitem(BACKENDS, "ptx", "no_such_package.device")
    refusals = r"no backend opens: ptx: .*; rocm: .*; cpu: .*needs a package that is not installed"
    with pytest.raises(BackendUnavailableError, match=refusals):
        open_device()
    found = {one.backend: one for one in probe()}
    assert "no_such_package" in str(found["cpu"].refusal)
    assert found["null"].refusal is None


def test_probe_lists_every_backend_with_devices_or_a_reason() -> None:
    found = probe()
    assert [one.backend for one in found] == [*table.PLANNED, *BACKENDS]
    for one in found:
        assert bool(one.devices) != bool(one.refusal)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device opens here")
def test_ptx_says_why_it_does_not_open() -> None:
    with pytest.raises(BackendUnavailableError, match="CUDA"):
        open_device("ptx")


def test_threads() -> None:
    before = torch.get_num_threads()
    try:
        assert "1 threads" in open_device("cpu", threads=1).name
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    for threads in (0, -2):
        with pytest.raises(BackendUnavailableError, match=f"threads must be at least 1, not {threads}"):
            open_device("cpu", threads=threads)


def group(root: Path, limit: str, used: int, active: int, inactive: int) -> Path:
    root.joinpath("memory.max").write_text(f"{limit}\n")
    root.joinpath("memory.current").write_text(f"{used}\n")
    root.joinpath("memory.stat").write_text(f"anon 5\nfile 9\nactive_file {active}\ninactive_file {inactive}\n")
    return root


def test_a_control_group_bounds_the_memory(tmp_path: Path) -> None:
    assert memory._cgroup_room(group(tmp_path, "1000", 700, 100, 50)) == 450
    assert memory._cgroup_room(group(tmp_path, "1000", 1200, 0, 0)) == 0
    assert memory._cgroup_room(group(tmp_path, "1000", 100, 300, 0)) == 1000
    unbound = memory._cgroup_room(group(tmp_path, "max", 700, 0, 0))
    assert unbound >= 2**60
    tmp_path.joinpath("memory.stat").unlink()
    assert memory._cgroup_room(tmp_path) == unbound
    assert memory._cgroup_room(tmp_path / "none") == unbound


def test_the_reserve_grows_with_the_machine_and_is_kept_back() -> None:
    assert memory.reserve(2**30) == 2**29
    assert memory.reserve(2**36) == 2**32
    device = open_device("cpu")
    assert 0 < device.capacity() <= memory.available()
    assert memory.allocate(1000, 64).tensor.data_ptr() % 64 == 0
