"""Errors of poot-guided.

GuidedError          "guided"
└── ConstraintError  "invalid_constraint"  the client's mistake: a constraint that is malformed or too large
"""

from __future__ import annotations

from typing import ClassVar


class GuidedError(Exception):
    """Root of the errors of this package; `code` is stable across releases."""

    code: ClassVar[str] = "guided"


class ConstraintError(GuidedError):
    code = "invalid_constraint"
