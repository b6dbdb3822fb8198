"""The engine's host logic in a world driven by one seed: a fake device, requests that come and go, faults.

A seed is one world; `play` runs it to its end and checks the invariants after each step.
"""

from poot_batch.simulation.campaign import Found, Tally, play, run_seeds
from poot_batch.simulation.world import World

__all__ = ["Found", "Tally", "World", "play", "run_seeds"]
