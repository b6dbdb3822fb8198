"""What the driver waits for on a device that has several steps in its queue, and how many prompts a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from poot_batch.driver import ModelDriver, prepare_model
from poot_batch.driver.startup import Prepared
from poot_batch.kv import KvSpace
from poot_batch.request import GenerateRequest
from poot_batch.schedule import PromptRun, Sequence, StepPlan
from poot_executor.backends.null.device import NullDevice
from poot_executor.devices.protocol import Allocation
from poot_models import ModelHandle, load


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> ModelHandle:
    return load(smollm2_path)


def sequence_of(row: int, prompt: int = 3) -> Sequence:
    sequence = Sequence(GenerateRequest(id=row, prompt=tuple(range(2, 2 + prompt))), 9, 0, 0.0, row=row)
    sequence.reservation = KvSpace(16, (8,), (4,)).reserve(prompt + 9)
    return sequence


@dataclass(frozen=True)
class Arrival:
    """A copy that stands in the queue behind so many runs."""

    device: QueueDevice
    behind: int
    nbytes: int

    def result(self) -> npt.NDArray[np.uint8]:
        self.device.waited_for = max(self.device.waited_for, self.behind)
        return np.zeros(self.nbytes, dtype=np.uint8)


class QueueDevice(NullDevice):
    """Does what it is asked for in turn. `waited_for`: how many runs are known to be over."""

    waited_for = 0

    def __init__(self) -> None:
        super().__init__()
        self.copied: list[int] = []

    @property
    def enqueued(self) -> int:
        return sum(recording.replays for recording in self.recordings)

    def fetch(self, allocation: Allocation, offset: int, nbytes: int) -> Arrival:  # type: ignore[override]
        self.copied.append(nbytes)
        return Arrival(self, self.enqueued, nbytes)


def prepared(model: ModelHandle, device: Any, rows: int, step_tokens: int | None) -> Prepared:
    """For rows of 64 positions."""
    return prepare_model(model, device, rows=rows, max_seq=64, ends=(2,), step_tokens=step_tokens)


@pytest.fixture
def device() -> QueueDevice:
    return QueueDevice()


@pytest.fixture
def driver(model: ModelHandle, device: QueueDevice, monkeypatch: pytest.MonkeyPatch) -> ModelDriver:
    """From here on nobody may wait for all that is enqueued."""
    made = ModelDriver(prepared(model, device, 2, 32))

    def everything() -> None:
        raise AssertionError("waits for steps that were submitted later")

    monkeypatch.setattr(device, "synchronize", everything)
    return made


def part(sequence: Sequence, first: int, count: int) -> StepPlan:
    """A step with a part of a prompt, which does not sample before its end."""
    run = PromptRun(sequence, first, count)
    return StepPlan((), (run,), (sequence,) if run.samples else ())


def test_a_step_without_results_is_waited_for_alone(driver: ModelDriver, device: QueueDevice) -> None:
    """Else a device would stand still between the parts of a long prompt: the next one is in its queue by then."""
    sequence = sequence_of(0, 50)
    driver.open(sequence)
    first, second, last = (part(sequence, *span) for span in ((0, 20), (20, 20), (40, 10)))
    tickets, ends = [], []
    for plan in (first, second):
        tickets.append(driver.submit(plan))
        ends.append(device.enqueued)
    assert 0 < ends[0] < ends[1]
    assert device.waited_for == 0
    result = driver.collect(tickets[0])
    assert device.waited_for == ends[0]
    assert result.tokens.shape == result.flags.shape == (0,)
    assert result.chosen is None
    assert result.score is None
    tickets.append(driver.submit(last))
    driver.collect(tickets[1])
    assert device.waited_for == ends[1]
    # To wait nothing is copied.
    assert device.copied[:2] == [0, 0]
    assert driver.collect(tickets[2]).tokens.shape == (1,)
    assert device.waited_for == device.enqueued > ends[1]


def test_a_step_with_results_is_waited_for_by_way_of_them(driver: ModelDriver, device: QueueDevice) -> None:
    sequences = sequence_of(0), sequence_of(1, 40)
    for sequence in sequences:
        driver.open(sequence)
    sampled = driver.submit(StepPlan(sequences[:1], (), sequences[:1]))
    end, copied = device.enqueued, len(device.copied)
    assert all(device.copied)
    driver.submit(part(sequences[1], 0, 20))
    assert device.copied[copied:] == [0]
    assert driver.collect(sampled).tokens.shape == (1,)
    assert device.waited_for == end < device.enqueued


@pytest.mark.parametrize(
    ("rows", "step_tokens", "tokens"),
    [(4, 100, 100), (4, 256, 256), (4, 2048, 4 * 64), (1, 2048, 64), (6, 4, 6), (3, None, 3 * 64)],
)
def test_a_step_holds_several_prompts(model: ModelHandle, rows: int, step_tokens: int | None, tokens: int) -> None:
    """As many tokens as it may have, at most all of every row, and at least one of each."""
    made = prepared(model, NullDevice(), rows, step_tokens)
    every = made.entries.keys()
    assert made.shape.tokens == tokens
    assert max(key.capacity for key in every if key.program == "step") == tokens


def test_prompts_of_every_row_run_in_one_step(model: ModelHandle) -> None:
    device = NullDevice()
    made = prepared(model, device, 3, 2048)
    driver, replayed = ModelDriver(made), dict(zip(made.entries.keys(), device.recordings, strict=True))
    sequences = tuple(sequence_of(row, 50) for row in range(3))
    for sequence in sequences:
        driver.open(sequence)
    runs = tuple(PromptRun(sequence, 0, 50) for sequence in sequences)
    result = driver.collect(driver.submit(StepPlan((), runs, sequences)))
    assert result.tokens.shape == (3,)
    [key] = (key for key, recording in replayed.items() if recording.replays and key.program == "step")
    assert 150 <= key.capacity <= 192
