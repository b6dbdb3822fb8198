"""`poot-batch simulate`: play seeds, on several processes too, and replay one that failed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from itertools import pairwise
from typing import IO

import msgspec

from poot_batch.errors import CampaignError
from poot_batch.simulation.campaign import Found, Tally, play, run_seeds
from poot_batch.simulation.mutations import MUTATIONS, detect

_PROGRESS_SECONDS = 2.0
_MOST_FOUND = 10
_MUTATION_SEEDS = 10_000

Say = Callable[[str], None]


class _Report(msgspec.Struct):
    """What a process of a campaign tells: all that it has played so far."""

    seeds: int
    found: list[tuple[int, int, str]]
    seen: dict[str, int]


def replay(seed: int, say: Say, *, trace: bool) -> bool:
    """Play one seed, with everything that happens in it if asked; whether it held."""
    world, found = play(seed, say if trace else None)
    if found is None:
        say(f"seed {seed}: holds, {world.turn} turns, {len(world.account.lives)} requests")
        return True
    say(_told(found))
    return False


def campaign(first: int, seeds: int, processes: int, say: Say) -> bool:
    """Play `seeds` seeds from `first` on; whether all of them held. A failing one is told at once.

    No more processes are started than there are seeds. Raises CampaignError when one of them fails.
    """
    processes = min(processes, seeds)
    began = shown = time.monotonic()
    told: set[int] = set()

    def progress(done: int, failed: Iterable[Found]) -> None:
        nonlocal shown
        for found in failed:
            if found.seed not in told:
                told.add(found.seed)
                say(_told(found))
        now = time.monotonic()
        if now - shown >= _PROGRESS_SECONDS:
            shown = now
            say(f"{done} of {seeds} seeds, {done / (now - began):.0f} a second, {len(told)} failed")

    if processes == 1:
        numbers = range(first, first + seeds)
        tally = run_seeds(numbers, most=_MOST_FOUND, each=lambda part: progress(part.seeds, part.found))
    else:
        tally = _spread(first, seeds, processes, progress)
    took = max(time.monotonic() - began, 1e-9)
    say(", ".join(f"{count} {what}" for what, count in sorted(tally.seen.items())))
    say(f"{tally.seeds} seeds in {took:.1f} s, {tally.seeds / took:.0f} a second: {len(tally.found)} failed")
    return not tally.found


def report(first: int, seeds: int, say: Say) -> None:
    """Play seeds as a part of a campaign: reports for the process that spreads them, one a line."""
    told = time.monotonic()

    def tell(tally: Tally) -> None:
        found = [(found.seed, found.turn, found.what) for found in tally.found]
        say(msgspec.json.encode(_Report(tally.seeds, found, dict(tally.seen))).decode())

    def each(tally: Tally) -> None:
        nonlocal told
        if time.monotonic() - told >= _PROGRESS_SECONDS:
            told = time.monotonic()
            tell(tally)

    tell(run_seeds(range(first, first + seeds), most=_MOST_FOUND, each=each))


def prove(say: Say) -> bool:
    """Plant each mutation and look for a seed that finds it; whether all were found."""
    missed = 0
    for mutation in MUTATIONS:
        found = detect(mutation, _MUTATION_SEEDS)
        missed += found is None
        result = "NOT FOUND" if found is None else f"found after {found.seed + 1} seeds: {found.what}"
        say(f"{mutation.name}: {result}")
    say(f"{len(MUTATIONS) - missed} of {len(MUTATIONS)} mutations found within {_MUTATION_SEEDS} seeds")
    return not missed


def _told(found: Found) -> str:
    again = f"poot-batch simulate --seed {found.seed} --trace"
    return f"seed {found.seed} fails at turn {found.turn}: {found.what}\n  {again}"


def _spread(first: int, seeds: int, processes: int, progress: Callable[[int, Iterable[Found]], None]) -> Tally:
    """Each process plays a range of its own. When one fails, or what they tell cannot be told, all are ended."""
    borders = [first + seeds * n // processes for n in range(processes + 1)]
    parts: dict[int, Tally] = {}
    gate = threading.Lock()
    players: list[_Player] = []

    def follow(index: int) -> None:
        def take(part: _Report) -> None:
            found = [Found(*each) for each in part.found]
            with gate:
                parts[index] = Tally(part.seeds, found, Counter(part.seen))
                progress(sum(each.seeds for each in parts.values()), found)

        players[index].follow(take)

    with ExitStack() as files, ThreadPoolExecutor(processes) as pool:
        try:
            for low, high in pairwise(borders):
                players.append(_Player(low, high - low, files.enter_context(tempfile.TemporaryFile())))
            following = [pool.submit(follow, index) for index in range(processes)]
            done, _ = wait(following, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            for player in players:
                player.process.kill()
            raise
    whole = Tally()
    for part in parts.values():
        whole.seeds += part.seeds
        whole.found += part.found
        whole.seen += part.seen
    return whole


class _Player:
    """A process that plays a range of seeds. Its complaints go to a file, so that the last can be said in a line."""

    def __init__(self, first: int, seeds: int, complaints: IO[bytes]) -> None:
        self._what = f"the process that played seeds {first} to {first + seeds - 1}"
        self._complaints = complaints
        words = ["-m", "poot_batch.cli", "simulate", "--first", str(first), "--seeds", str(seeds), "--part"]
        self.process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=complaints)

    def follow(self, take: Callable[[_Report], None]) -> None:
        """Give every report to `take`, until the process ends. Raises CampaignError when it does not end well."""
        with self.process as process:
            assert process.stdout is not None
            for line in process.stdout:
                take(msgspec.json.decode(line, type=_Report))
            if process.wait():
                self._complaints.seek(0)
                said = self._complaints.read().decode(errors="replace").split("\n")
                last = next((line for line in reversed(said) if line.strip()), "it says nothing")
                raise CampaignError(f"{self._what} ended with {process.returncode}: {last.strip()}")
