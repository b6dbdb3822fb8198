"""Conformance of a device, and whole graphs by reference: for any backend, also those of others.

A backend is a `Device` (poot_executor.devices.protocol) with a `KernelTable` of its own. Its author checks it so:

    import pytest
    from poot_executor.testing import cases, run_case

    @pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
    def test_conformance(case):
        outcome = run_case(case, MyDevice())
        if outcome.refusal:
            pytest.skip(outcome.refusal)    # no kernel accepts this site, and why
        assert outcome.passed, outcome      # outcome.error: the largest excess over the op's tolerance

An op states its own examples and tolerance, so a new op is covered on every backend at once. `interpret` runs a whole
graph by the ops' definitions in plain torch; a prepared graph, or the same graph after a pass, must agree with it.
"""

from poot_executor.testing.conformance import Case, Outcome, cases, run_case
from poot_executor.testing.interpret import Interpreted, interpret

__all__ = ["Case", "Interpreted", "Outcome", "cases", "interpret", "run_case"]
