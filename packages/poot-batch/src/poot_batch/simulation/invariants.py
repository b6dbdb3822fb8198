"""What must hold after every step of a world, whatever happened. Each function raises InvariantError by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poot_batch.errors import InvariantError
from poot_batch.simulation import view

if TYPE_CHECKING:
    from poot_batch.simulation.world import World


def check(world: World) -> None:
    """All that must hold between two steps."""
    device_has_no_complaint(world)
    references_are_holders(world)
    rows_are_exclusive(world)
    what_is_found_is_there(world)
    gauges_agree(world)
    nobody_is_forgotten(world)


def check_end(world: World) -> None:
    """What must hold, beside that, once a world is still."""
    everybody_ended(world)
    heads_outlive_tails(world)
    counters_add_up(world)


def _demand(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise InvariantError(f"{name}: {what}")


def device_has_no_complaint(world: World) -> None:
    if world.device.complaint is not None:
        raise InvariantError(f"the device was asked what nobody may ask: {world.device.complaint}")


def references_are_holders(world: World) -> None:
    """A block has a reference for each running sequence that holds it, and no other."""
    used = 0
    for group, found in enumerate(view.references(world.kv)):
        count = [0] * len(found)
        for life in world.account.holders:
            for block in life.tables[group]:
                count[block] += 1
        if count != (said := found.tolist()):
            block = next(block for block in range(len(count)) if count[block] != said[block])
            what = f"block {block} of group {group} has {said[block]} references and {count[block]} holders"
            _demand(False, "references_are_holders", what)
        used += len(count) - count.count(0)
    world.used = used


def rows_are_exclusive(world: World) -> None:
    rows = {life.row for life in world.account.holders}
    _demand(len(rows) == len(world.account.holders), "rows_are_exclusive", "two running requests share a row")


def what_is_found_is_there(world: World) -> None:
    """A findable block holds what its digest says, as written by a step that was collected, and nothing else."""
    device, name, truths = world.device, "what_is_found_is_there", world.truths
    collected = device.collected
    for group, (index, marked) in enumerate(zip(view.findable(world.kv), view.marked_findable(world.kv), strict=True)):
        digests, written, meaning = device.digests[group], device.written[group], world.meaning[group]
        for digest, block in index.items():
            there = digests[block]
            if meaning.setdefault(digest, there) != there:
                _demand(False, name, f"block {block} of group {group} is findable and holds something else")
            if there not in truths:
                _demand(False, name, f"block {block} of group {group} is findable and holds no prompt's beginning")
            if not collected[written[block]]:
                _demand(False, name, f"block {block} of group {group} was published before its step was collected")
        if len(index) != marked:
            _demand(False, name, f"{len(index)} blocks are found in group {group}, {marked} are kept for it")


def gauges_agree(world: World) -> None:
    stats, account = world.engine.stats(), world.account
    running, waiting = len(account.holders) + len(account.held), len(account.waiting)
    said = (stats.inflight, stats.queue_depth)
    if said != (running + waiting, waiting):
        what = f"(inflight, queue) are said to be {said} with {running} running, {waiting} waiting"
        _demand(False, "gauges_agree", what)
    _demand(running > 0 or stats.batch_size == 0, "gauges_agree", "a batch without rows")
    _demand(stats.kv_blocks_used == world.used, "gauges_agree", "the blocks in use are not those that are held")


def nobody_is_forgotten(world: World) -> None:
    """An engine that says it has nothing to do has no request that could go on."""
    if world.engine.busy:
        return
    for life in world.account.holders:
        _demand(life.paused, "nobody_is_forgotten", f"request {life.request.id} may run and the engine is idle")
    if world.refused:
        return
    able = world.account.first_in_line()
    what = "nobody" if able is None else f"request {able.request.id}"
    _demand(able is None, "nobody_is_forgotten", f"{what} could be admitted and the engine is idle")


def everybody_ended(world: World) -> None:
    for life in world.account.lives.values():
        _demand(life.finish is not None, "everybody_ended", f"request {life.request.id} never ended")
    stats = world.engine.stats()
    gauges = (stats.inflight, stats.queue_depth, stats.batch_size, stats.kv_blocks_used)
    _demand(gauges == (0, 0, 0, 0), "everybody_ended", f"gauges {gauges} of an idle engine")


def heads_outlive_tails(world: World) -> None:
    """Of a sequence's blocks those found last are evicted first: what comes after a missing one is of no use."""
    digests, index = world.device.digests[0], view.findable(world.kv)[0]
    there = {digests[block] for block in index.values()}
    for life in world.account.lives.values():
        found = [digest in there for digest in life.alone.digests]
        name = f"a block of request {life.request.id} outlived the one before it"
        _demand(world.account.doubted or found == sorted(found, reverse=True), "heads_outlive_tails", name)


def counters_add_up(world: World) -> None:
    stats, lives = world.engine.stats(), world.account.lives.values()
    finishes = [life.finish for life in lives]
    pairs = {
        "requests": (stats.requests_total, len(lives)),
        "completed": (stats.requests_completed, finishes.count("stop") + finishes.count("length")),
        "cancelled": (stats.requests_cancelled, finishes.count("abort")),
        "errored": (stats.requests_errored, finishes.count("error")),
        "tokens": (stats.completion_tokens, sum(len(life.tokens) for life in lives)),
        "prompt tokens": (stats.prompt_tokens, world.device.collected_prompt_tokens),
        "steps": (stats.steps, sum(world.device.collected)),
    }
    for name, (said, is_) in pairs.items():
        _demand(said == is_, "counters_add_up", f"{name} are said to be {said}, and are {is_}")
    # Those whose rows could not be opened are counted or not.
    most, least = (sum(life.cached for life in lives if every or life.row is not None) for every in (True, False))
    hits = stats.prefix_hit_tokens
    _demand(least <= hits <= most, "counters_add_up", f"prefix hits are said to be {hits}, and are {least}")
