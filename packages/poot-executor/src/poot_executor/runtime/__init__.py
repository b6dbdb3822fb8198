"""From graphs to entries: compile (all sizes known, nothing allocated), then prepare (allocated and recorded)."""

from poot_executor.runtime.compile import Compiled, CompiledEntry, EntryKey, compile_graphs
from poot_executor.runtime.entry import Entry, EntrySet
from poot_executor.runtime.prepare import prepare

__all__ = ["Compiled", "CompiledEntry", "Entry", "EntryKey", "EntrySet", "compile_graphs", "prepare"]
