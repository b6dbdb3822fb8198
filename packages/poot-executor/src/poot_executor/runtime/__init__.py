"""From graphs to entries: compile (all sizes known, nothing allocated), then prepare (allocated and recorded)."""

from poot_executor.runtime.compile import Compiled, CompiledEntry, EntryKey, compile_graphs, state_types
from poot_executor.runtime.entry import Entry, EntrySet, Pending
from poot_executor.runtime.prepare import prepare

__all__ = [
    "Compiled",
    "CompiledEntry",
    "Entry",
    "EntryKey",
    "EntrySet",
    "Pending",
    "compile_graphs",
    "prepare",
    "state_types",
]
