"""All tests, two parts of them at a time: one compiles kernels for much of its time, the other waits for servers.

    python tests/whole.py

What the second part says is printed when both are done. The exit code is pytest's, of the first part that failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PYTEST = (sys.executable, "-m", "pytest")
FIRST = ("tests/executor",)
OTHERS = ("tests", *(f"--ignore={folder}" for folder in FIRST))


def main() -> int:
    if (os.cpu_count() or 1) == 1:
        return subprocess.run(PYTEST, cwd=TESTS.parent, check=False).returncode
    with tempfile.TemporaryFile() as output:
        other = subprocess.Popen([*PYTEST, *OTHERS], cwd=TESTS.parent, stdout=output, stderr=subprocess.STDOUT)
        try:
            first = subprocess.run([*PYTEST, *FIRST], cwd=TESTS.parent, check=False).returncode
            second = other.wait()
        finally:
            other.kill()
            output.seek(0)
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()
    return first or second


if __name__ == "__main__":
    sys.exit(main())
