"""The console script, on the null device where it needs one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from poot_batch import __version__
from poot_batch.cli import main

SMALL = ["--backend", "null", "--max-seq", "16", "--rows", "2"]


def test_help_and_version_import_no_torch() -> None:
    code = (
        "import sys; from poot_batch.cli import main\n"
        "for words in (['--help'], ['--version'], ['generate', '--help'], ['generate'], []):\n"
        "    try:\n        main(words)\n    except SystemExit as end:\n        print('exit', end.code)\n"
        "print(sorted({'torch', 'numpy', 'poot_batch.llm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == [
        f"exit {n}" for n in (0, 0, 0, 2, 2)
    ]
    assert f"poot-batch {__version__}" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_module_that_a_server_needs_imports_torch() -> None:
    code = (
        "import sys, poot_batch.process.client, poot_batch.process.interface, poot_batch.request\n"
        "print(sorted({'torch', 'poot_models', 'poot_executor'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_generate_prints_text(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The null device says an end token at once.
    assert main(["generate", str(smollm2_path), "--prompt", "x", *SMALL]) == 0
    assert capsys.readouterr() == ("\n", "")


def test_bench_prints_a_table(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(smollm2_path), *SMALL, "--prompt-tokens", "8", "--decode-tokens", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "llama on null (no hardware), 2 rows of 16 positions"
    (heading,) = (n for n, line in enumerate(lines) if line.startswith("measure"))
    rows = {line[:14].strip(): line.split() for line in lines[heading + 1 :]}
    assert set(rows) == {"prompt, 1 row", "decode, 1 row", "decode, 2 rows"}
    assert [row[3] for row in rows.values()] == ["8", "4", "8"]
    assert all(float(row[5]) > 0 for row in rows.values())


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["generate", "/nowhere.gguf", "--prompt", "x"], 1, "there is no /nowhere.gguf"),
        (["generate", "MODEL", "--prompt", "x", "--backend", "abacus"], 1, "no backend 'abacus'"),
        (["generate", "MODEL", "--prompt", "x", *SMALL, "--temperature", "9"], 1, "temperature must be between"),
        (["generate", "MODEL", "--prompt", "x", *SMALL, "--max-tokens", "99"], 1, "max_tokens 99"),
        (["generate", "MODEL", "--prompt", "\udcff", *SMALL], 1, "surrogate"),
        (["generate", "MODEL", "--prompt", "x", "--rows", "0"], 1, "rows must be between"),
        (["bench", "MODEL", *SMALL, "--prompt-tokens", "16"], 1, "16 tokens"),
        (["bench", "MODEL", *SMALL, "--prompt-tokens", "0"], 2, "must be between 1"),
        (["generate", "MODEL", "--prompt", "x", "--rows", "many"], 2, "many"),
        (["generate", "MODEL"], 2, "--prompt"),
        (["sing"], 2, "sing"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    given = [str(smollm2_path) if word == "MODEL" else word for word in words]
    if code == 2:
        with pytest.raises(SystemExit) as ended:
            main(given)
        assert ended.value.code == 2
    else:
        assert main(given) == code
    shown = capsys.readouterr()
    assert says in shown.err
    if code == 1:
        assert shown.err.startswith("poot-batch: ")
        assert shown.err.count("\n") == 1


def test_what_a_terminal_cannot_show_is_escaped() -> None:
    program = "from poot_batch import cli; cli._generate = lambda given: print('\\u2581'); cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "generate", "m", "--prompt", "x"],
        env=os.environ | {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "\\u2581\n"
