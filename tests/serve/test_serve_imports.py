"""The HTTP process never loads torch."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import importlib, pkgutil, sys
import poot_serve
for module in pkgutil.walk_packages(poot_serve.__path__, "poot_serve."):
    importlib.import_module(module.name)
print(sorted(name for name in ("torch", "transformers", "triton") if name in sys.modules))
"""


def test_no_module_of_the_server_imports_torch():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
