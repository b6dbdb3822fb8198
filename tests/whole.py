"""All tests in parts, two of them at a time, each in a pytest of its own.

    python tests/whole.py

What a part says is printed when it is done. The exit code is pytest's, of the first part in order that failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PYTEST = (sys.executable, "-m", "pytest")
AT_ONCE = 2
# Begun in this order, the longest first. The last one runs a process a core itself, and so fills what the others leave;
# the one before it is whatever no other names.
SERVERS, TRITON = "tests/e2e", "tests/executor/test_triton.py"
FOLDERS = (SERVERS, "tests/executor", "tests/models", "tests/batch")
PARTS = (
    *((folder, f"--ignore={TRITON}") for folder in FOLDERS),
    ("tests", *(f"--ignore={folder}" for folder in FOLDERS)),
    (TRITON,),
)
printing = threading.Lock()


def environment(bytecode: str) -> dict[str, str]:
    """That of the parts. `bytecode`: a folder that goes with the run."""
    # Threads that spin while they wait take the core of the other part. Engines let theirs sleep themselves.
    found = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    # Some hundred processes import torch, and would each compile its sources.
    if found.pop("PYTHONDONTWRITEBYTECODE", None):
        found["PYTHONPYCACHEPREFIX"] = bytecode
    return found


def run(part: tuple[str, ...], given: dict[str, str]) -> int:
    """Its exit code; its output is printed in one piece."""
    if part[0] == SERVERS:
        # Threads of an engine wait for each other, and so for the one whose core the other part has. That there may be
        # one a core is tested in other folders.
        given = {"OMP_NUM_THREADS": str((os.cpu_count() or 1) // AT_ONCE), **given}
    with tempfile.TemporaryFile() as output:
        ended = subprocess.run(
            [*PYTEST, *part], cwd=TESTS.parent, env=given, stdout=output, stderr=subprocess.STDOUT, check=False
        )
        with printing:
            print(f"== {' '.join(part)}", flush=True)
            output.seek(0)
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()
    return ended.returncode


def main() -> int:
    with tempfile.TemporaryDirectory() as bytecode:
        given = environment(bytecode)
        if (os.cpu_count() or 1) == 1:
            return subprocess.run(PYTEST, cwd=TESTS.parent, env=given, check=False).returncode
        with ThreadPoolExecutor(AT_ONCE) as pool:
            codes = list(pool.map(lambda part: run(part, given), PARTS))
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
