"""OpenMP says itself, when it is loaded, how its threads wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, sys
from poot_batch import LLM
with LLM(sys.argv[1], rows=1, max_seq=128) as llm:
    assert llm.chat([{"role": "user", "content": "one"}], max_tokens=1).text
print(os.environ.get("OMP_WAIT_POLICY"))
"""


@pytest.mark.parametrize(("given", "policy"), [(None, "PASSIVE"), ("active", "ACTIVE")])
def test_threads_sleep_unless_the_user_says_otherwise(smollm2_path: Path, given: str | None, policy: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    environment |= {"OMP_DISPLAY_ENV": "true"} | ({} if given is None else {"OMP_WAIT_POLICY": given})
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(smollm2_path)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr
    assert done.stdout.strip() == str(given)
