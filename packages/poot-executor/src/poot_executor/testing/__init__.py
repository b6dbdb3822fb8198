"""Conformance: every op's examples on a device, against the references. For any backend, also those of others."""

from poot_executor.testing.conformance import Case, Outcome, cases, run_case

__all__ = ["Case", "Outcome", "cases", "run_case"]
