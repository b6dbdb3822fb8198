"""Many worlds, one after another: how many seeds hold, which do not, and what the worlds saw."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from poot_batch.errors import InvariantError
from poot_batch.schedule.waiting import OVERTAKEN
from poot_batch.simulation.world import Trace, World


@dataclass(frozen=True, slots=True)
class Found:
    """A seed in which something does not hold: the turn and what it is."""

    seed: int
    turn: int
    what: str


@dataclass(slots=True)
class Tally:
    """What was played, and what happened in it: a test sees from this that the worlds reach what they must."""

    seeds: int = 0
    found: list[Found] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def add(self, world: World) -> None:
        """Count what a world that ended well saw."""
        seen = self.seen
        seen["worlds lost to faults"] += world.lost
        seen["requests"] += len(world.account.lives)
        for life in world.account.lives.values():
            seen[f"ended: {life.finish}"] += 1
            seen["tokens"] += len(life.tokens)
            seen["held"] += life.was_held
            seen["hits"] += life.cached > 0
            seen["hit tokens"] += life.cached
            seen["forks"] += life.request.fork_of is not None
            seen["overtaken"] += life.overtaken > 0
            seen["overtaken to the bound"] += life.overtaken == OVERTAKEN
            seen["scored"] += life.request.prompt_logprobs is not None and life.finish in ("stop", "length")
            seen["not finite"] += life.spoilt_at is not None and life.finish == "error"
        seen["steps"] += sum(world.device.collected)


def play(seed: int, trace: Trace | None = None) -> tuple[World, Found | None]:
    """Play one world. Whatever it raises is a finding: nothing of the engine may raise out of what a world does."""
    world = World(seed, trace)
    try:
        world.run()
    except InvariantError as error:
        return world, Found(seed, world.turn, str(error))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"
        return world, Found(seed, world.turn, what)
    return world, None


def run_seeds(seeds: Iterable[int], *, most: int = 10, each: Callable[[Tally], None] | None = None) -> Tally:
    """Play these seeds, until `most` of them have failed. `each` is told after every one."""
    tally = Tally()
    for seed in seeds:
        world, found = play(seed)
        tally.seeds += 1
        if found is None:
            tally.add(world)
        else:
            tally.found.append(found)
        if each is not None:
            each(tally)
        if len(tally.found) >= most:
            break
    return tally
