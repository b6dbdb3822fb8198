"""Folders for one owner, and what serves where there is none."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from poot_executor.devices.kept import keep, kept
from poot_executor.devices.private_folder import private_folder


def test_it_is_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    found = private_folder("cuda")
    assert found == tmp_path / ".cache" / "poot" / "cuda"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_a_temporary_one_goes_with_the_process(tmp_path: Path) -> None:
    home = tmp_path / "no-folder"
    home.write_text("")
    code = "from poot_executor.devices.private_folder import private_folder as p; print(p('a'), p('a'), p('b'))"
    run = subprocess.run(
        [sys.executable, "-c", code], env={"HOME": str(home), "TMPDIR": str(tmp_path)}, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    first, again, other = map(Path, run.stdout.split())
    assert first == again
    assert first.parent == other.parent
    assert first.parent.parent == tmp_path
    assert list(tmp_path.iterdir()) == [home]


def test_what_is_kept_comes_back_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "code"
    assert kept(path) is None
    keep(path, b"machine code")
    assert kept(path) == b"machine code"
    held = path.read_bytes()
    assert held.startswith(b"machine code")
    for spoilt in (b"", held[:-1], held[1:], held[:5], b"x" + held[1:], held + b"x", held[-32:]):
        path.write_bytes(spoilt)
        assert kept(path) is None
    keep(path, b"new")
    assert kept(path) == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_kept_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    with pytest.raises(OSError, match="code"):
        keep(tmp_path / "code", b"machine code")
    assert list(tmp_path.iterdir()) == [tmp_path / "code"]
    with pytest.raises(FileNotFoundError):
        keep(tmp_path / "none" / "code", b"machine code")
