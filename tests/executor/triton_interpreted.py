"""Run by test_triton.py in a process of its own: scripts of this folder, one after the other, in one interpreter.

    TRITON_INTERPRET=1 python triton_interpreted.py SCRIPT ...

Triton's interpreter spends more than half of its time on what changes nothing, which is left out here. What scripts say
follows a line of their name.
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import FunctionType

from triton.runtime import interpreter


def leave_out_unread_checks() -> None:
    """Whether numbers overflow is computed at each operation, and asserted only where `debug` is set."""
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)


def put_names_once() -> None:
    """Each call of a function puts interpreted operations in place of triton.language's names: once a launch will do.

    What it does to a module depends on the module alone, so a function with the globals of another finds it done.
    """
    put, done = interpreter._patch_lang, set[int]()

    class Scope(interpreter._LangPatchScope):
        def restore(self) -> None:
            """At the end of a launch: names are triton.language's own again."""
            super().restore()
            done.clear()

    def put_once(function: FunctionType) -> Scope | None:
        if id(function.__globals__) in done:
            return None
        scope = put(function)
        done.add(id(function.__globals__))
        return scope

    interpreter._LangPatchScope = Scope
    interpreter._patch_lang = put_once


if __name__ == "__main__":
    leave_out_unread_checks()
    # Older releases put them back otherwise.
    if hasattr(interpreter, "_LangPatchScope"):
        put_names_once()
    for script in sys.argv[1:]:
        print(script, flush=True)
        sys.argv[1:] = []
        runpy.run_path(str(Path(__file__).with_name(script)), run_name="__main__")
