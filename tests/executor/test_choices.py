"""Choices that are kept on disk: for later processes, from several at once, and where files or folders are bad."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_executor.backends.triton import choices
from poot_executor.backends.triton.choices import Choices

MADE_OF = ("NVIDIA H200", "torch 2.15.0+cu132", "CUDA 13.2")
HEAD = '["NVIDIA H200, torch 2.15.0+cu132, CUDA 13.2"]'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def private_folder(name: str) -> Path:
        assert name == "choices"
        return tmp_path

    monkeypatch.setattr(choices, "private_folder", private_folder)
    return tmp_path


def opened(*made_of: str) -> Choices:
    """As a new process has them."""
    return Choices(lambda: made_of or MADE_OF)


def kept(folder: Path) -> Path:
    [path] = folder.iterdir()
    return path


def test_what_was_chosen_is_known_later(folder: Path) -> None:
    first = opened()
    assert not first
    assert first.get("a site") is None
    first.put("a site", "a way")
    first.put('another\nsite, "quoted"', "way 2")
    assert first.get("a site") == "a way"
    later = opened()
    assert len(later) == 2
    assert (later.get("a site"), later.get('another\nsite, "quoted"'), later.get("x")) == ("a way", "way 2", None)
    lines = kept(folder).read_text().splitlines()
    assert lines[:2] == [HEAD, '["a site", "a way"]']
    assert len(lines) == 3
    assert kept(folder).stat().st_mode & 0o777 == 0o600


def test_the_last_choice_counts(folder: Path) -> None:
    for way in ("first", "second"):
        opened().put("site", way)
    assert opened().get("site") == "second"


@pytest.mark.parametrize("changed", range(len(MADE_OF)))
def test_what_choices_depend_on_has_a_file_of_its_own(folder: Path, changed: int) -> None:
    opened().put("site", "way")
    other = [part + "1" if index == changed else part for index, part in enumerate(MADE_OF)]
    assert opened(*other).get("site") is None
    opened(*other).put("site", "other way")
    assert len(list(folder.iterdir())) == 2
    assert (opened().get("site"), opened(*other).get("site")) == ("way", "other way")


def test_nothing_is_asked_or_read_before_it_is_needed(folder: Path) -> None:
    asked: list[int] = []

    def made_of() -> tuple[str, ...]:
        asked.append(1)
        return MADE_OF

    made = Choices(made_of)
    assert asked == []
    opened().put("site", "way")
    assert made.get("site") == "way"
    made.put("site", "other")
    assert asked == [1]


DAMAGE = [
    b"",
    b"{",
    b"\xff\xfe\x00",
    b'["site"',
    b'["site", 1]',
    b'["site", "way", "more"]',
    b'{"site": "way"}',
    b'"site"',
    b"null",
    b"[" * 100_000,
    b"1" * 5000,
]


@pytest.mark.parametrize("line", DAMAGE, ids=lambda line: repr(line[:20]))
def test_damaged_lines_are_passed_over(folder: Path, line: bytes) -> None:
    opened().put("before", "1")
    path = kept(folder)
    path.write_bytes(path.read_bytes() + line + b"\n")
    opened().put("after", "2")
    found = opened()
    assert (found.get("before"), found.get("after"), found.get("site")) == ("1", "2", None)


def test_a_line_that_was_not_finished_costs_no_other(folder: Path) -> None:
    opened().put("before", "1")
    path = kept(folder)
    path.write_bytes(path.read_bytes()[:-3])
    opened().put("next", "2")
    opened().put("after", "3")
    found = opened()
    assert [found.get(site) for site in ("before", "next", "after")] == [None, "2", "3"]


@given(st.binary(max_size=200))
def test_no_bytes_are_an_error(tmp_path_factory: pytest.TempPathFactory, held: bytes) -> None:
    path = tmp_path_factory.mktemp("choices") / "held"
    path.write_bytes(held + b'\n["site", "way"]\n')
    found = list(choices._pairs(choices._read(path)))
    assert found[-1] == ("site", "way")
    assert all(isinstance(text, str) for pair in found for text in pair)


def test_a_file_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is read, and none is written that would not be."""
    monkeypatch.setattr(choices, "_MOST_BYTES", 100)
    for number in range(10):
        opened().put(f"site {number}", "way")
    size = kept(folder).stat().st_size
    assert 60 < size <= 100
    with kept(folder).open("ab") as file:
        file.write(b'["site 9", "beyond"]\n' * 10)
    found = opened()
    assert (found.get("site 0"), found.get("site 9")) == ("way", None)
    assert opened().get("site 0") == "way"


def test_without_a_folder_a_process_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Path:
        raise OSError("the disk is full")

    monkeypatch.setattr(choices, "private_folder", none)
    made = opened()
    made.put("site", "way")
    assert made.get("site") == "way"


@pytest.mark.parametrize("bad", ["gone", "a folder", "a link"])
def test_a_file_that_cannot_be_written_is_no_error(folder: Path, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened().put("site", "way")
    path, target = kept(folder), folder / "target"
    path.unlink()
    if bad == "gone":
        monkeypatch.setattr(choices, "private_folder", lambda name: folder / "gone")
    elif bad == "a folder":
        path.mkdir()
    else:
        target.write_text("")
        path.symlink_to(target)
    made = opened()
    made.put("site", "way")
    assert made.get("site") == "way"
    assert opened().get("site") is None
    assert not target.exists() or target.read_text() == ""


APPEND = """
import sys
from poot_executor.backends.triton.choices import Choices
made = Choices(lambda: sys.argv[2:])
for number in range(300):
    made.put(f"site {number} of {sys.argv[1]}", "a way with a long name " * 8)
"""


def test_processes_append_at_once(tmp_path: Path) -> None:
    """Each line whole, and the first one says what the choices depend on."""
    command = [sys.executable, "-c", APPEND]
    environment = {"HOME": str(tmp_path)}
    running = [subprocess.Popen([*command, name, *MADE_OF], env=environment) for name in ("a", "b", "c")]
    assert [process.wait() for process in running] == [0, 0, 0]
    folder = tmp_path / ".cache" / "poot" / "choices"
    assert folder.stat().st_mode & 0o777 == 0o700
    path = kept(folder)
    lines = path.read_text().splitlines()
    assert lines[0] == HEAD
    # Whoever saw a line half written began with a line of its own.
    pairs = [json.loads(line) for line in lines if line not in (HEAD, "")]
    assert len(pairs) == 900
    assert {site for site, _ in pairs} == {f"site {number} of {name}" for number in range(300) for name in "abc"}
    assert len(dict(choices._pairs(choices._read(path)))) == 900
