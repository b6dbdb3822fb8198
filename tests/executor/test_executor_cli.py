"""The console script and the README's example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from poot_executor import __version__, cli
from poot_executor.devices import BACKENDS
from poot_executor.testing import conformance

README = Path(__file__).resolve().parents[2] / "packages/poot-executor/README.md"


def test_help_and_version_load_nothing_heavy() -> None:
    program = (
        "import sys\nfrom poot_executor import cli\n"
        "try:\n    cli.run(sys.argv[1:])\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(*[name for name in ('torch', 'numpy') if name in sys.modules], 'loaded')"
    )
    for flag in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", program, flag], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == " loaded".strip()
    assert f"poot-executor {__version__}" in done.stdout


def test_doctor_lists_backends_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"poot-executor {__version__}, python 3.")
    for name, answer in (("cpu", "yes: "), ("null", "yes: no hardware"), ("wgpu", "no: backend wgpu is not part")):
        assert re.search(rf"^  {name} +{answer}", said, re.M), said
    assert re.search(r"^host memory: \d+\.\d GiB free, of which \d+\.\d GiB are kept in reserve$", said, re.M)


def test_doctor_gives_reasons_where_nothing_opens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(BACKENDS, "cpu", "no_such_package.device")
    assert cli.run(["doctor"]) == 1
    said = capsys.readouterr()
    assert re.search(r"^  cpu +no: .*no_such_package", said.out, re.M)
    assert said.err == "no backend computes here\n"
    assert cli._installed("no-such-package") == "not installed"


def test_conformance_prints_a_line_a_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["conformance", "--backend", "cpu", "--only", "LayerNorm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 6
    assert all(line.startswith("PASS    ") for line in lines[:-1])
    assert lines[-1].startswith("cpu (") and lines[-1].endswith(f": {len(lines) - 1} PASS, 0 FAIL, 0 refused")


def test_conformance_fails_where_a_kernel_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["conformance", "--backend", "null", "--only", "Scale"]) == 1
    assert re.search(r"^FAIL    Scale: .*: beyond the tolerance by \d", capsys.readouterr().out, re.M)


def test_conformance_reports_refusals_and_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(case: Any, device: Any) -> conformance.Outcome:
        return conformance.Outcome(-1.0, "no kernel" if "silu" in case.id else None)

    monkeypatch.setattr("poot_executor.testing.run_case", run)
    assert cli.run(["conformance", "--backend", "null", "--only", "GatedActivation"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^refused GatedActivation: .*silu.*: no kernel$", said, re.M)
    assert re.search(r" [1-9] PASS, 0 FAIL, [1-9] refused$", said, re.M)

    def fault(case: Any, device: Any) -> conformance.Outcome:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("poot_executor.testing.run_case", fault)
    assert cli.run(["conformance", "--backend", "null", "--only", "Scale"]) == 1
    assert "ZeroDivisionError: boom" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["conformance", "--backend", "abacus"], 1, "there is no backend 'abacus'"),
        (["conformance", "--backend", "null", "--only", "Nothing"], 2, "no case has 'Nothing' in its name"),
    ],
)
def test_refusals_are_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["cure"], ["doctor", "--loud"]])
def test_wrong_command_lines_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as found:
        cli.run(arguments)
    assert found.value.code == 2
    assert "usage: poot-executor" in capsys.readouterr().err


def test_the_example_of_the_readme_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)
    assert len(example.splitlines()) <= 45
    done = subprocess.run([sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "max error" in done.stdout
    # Relative, of sums of 64 numbers in float32, whose order is the machine's.
    assert float(done.stdout.split()[-1]) < 1e-6


def test_what_a_terminal_cannot_show_is_escaped() -> None:
    program = "from poot_executor import cli; cli.run = lambda words: print('\\u2581'); cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "doctor"],
        env=os.environ | {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "\\u2581\n"
