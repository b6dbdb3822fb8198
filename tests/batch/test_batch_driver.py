"""What the driver sends to the device, and what it settles on before it allocates. No device but the null one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from poot_batch.build import build_engine
from poot_batch.driver import ModelDriver, prepare_model, startup
from poot_batch.driver.step_block import score_targets, step_block
from poot_batch.kv import KvSpace
from poot_batch.request import EngineConfig, GenerateRequest, SamplingParams
from poot_batch.sampling import features_of, open_block
from poot_batch.schedule import PromptRun, Sequence, StepPlan
from poot_executor.backends.null.device import NullDevice
from poot_executor.errors import CapacityError
from poot_executor.ir import Graph
from poot_executor.ops import RowLayout
from poot_executor.programs import FULL, LOGPROBS, PENALTIES, RowTableShape
from poot_executor.runtime import Compiled, EntryKey, compile_graphs
from poot_models import ModelHandle, load
from poot_models.blocks import StepShape


def sequence_of(row: int, prompt: tuple[int, ...] = (5, 6, 7), **fields: object) -> Sequence:
    request = GenerateRequest(id=row, prompt=prompt, **fields)
    sequence = Sequence(request, 9, request.sampling.seed or 0, 0.0, row=row)
    sequence.reservation = KvSpace(16, (8,), (4,)).reserve(len(prompt) + 9)
    return sequence


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> ModelHandle:
    return load(smollm2_path)


def test_a_step_block_by_hand() -> None:
    decode = (sequence_of(2), sequence_of(0))
    prompt = sequence_of(3, (50, 51, 52, 53, 54))
    block = step_block(StepPlan(decode, (PromptRun(prompt, 1, 3),), decode), rows=4)
    header, runs = [5, 3, 0, 0], [2, -1, 1, 0, 0, -1, 1, 0, 3, 1, 3, 1, 0, 0, 0, 0]
    assert block.tolist() == [*header, *runs, 0, 0, 51, 52, 53]
    assert block.dtype == np.int32
    # Without prompts there is nothing behind the runs.
    assert step_block(StepPlan(decode, (), decode), rows=4).tolist() == [2, 2, 0, 0, *runs[:8], *[0] * 8]


def test_a_scored_run_and_its_targets_by_hand() -> None:
    prompt = sequence_of(3, (50, 51, 52, 53, 54))
    run = PromptRun(prompt, 1, 3)
    assert step_block(StepPlan((), (), (), run), rows=2).tolist() == [3, 1, 0, 0, 3, 1, 3, 1, 0, 0, 0, 0, 51, 52, 53]
    assert score_targets(run).tolist() == [52, 53, 54]
    assert score_targets(PromptRun(prompt, 3, 2)).tolist() == [54, 0]
    assert score_targets(PromptRun(prompt, 4, 1)).tolist() == [0]
    assert score_targets(run).dtype == np.int32


def test_the_device_reads_the_step_as_it_was_meant() -> None:
    torch = pytest.importorskip("torch")
    from poot_executor.ops.rows import UnpackStep

    decode, prompt = (sequence_of(2), sequence_of(0)), sequence_of(3, (50, 51, 52, 53, 54))
    block = step_block(StepPlan(decode, (PromptRun(prompt, 1, 3),), decode), rows=4)
    ints = torch.zeros(4, RowLayout.INTS, dtype=torch.int32)
    ints[:, RowLayout.LENGTH] = torch.tensor([4, 0, 7, 1])
    history = torch.arange(40, dtype=torch.int32).reshape(4, 10)
    ids, positions, rows, _, ints, _ = UnpackStep(5).reference(torch.from_numpy(block), ints, history)
    assert ids.tolist() == [27, 4, 51, 52, 53]
    assert positions.tolist() == [7, 4, 1, 2, 3]
    assert rows.tolist() == [2, 0, 3, 3, 3]
    assert ints[:, RowLayout.LENGTH].tolist() == [5, 0, 8, 4]


def test_an_open_block_by_hand() -> None:
    sampling = SamplingParams(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.25, presence_penalty=0.5, frequency_penalty=-0.5,
        repetition_penalty=1.5, logit_bias=((9, 2.0), (4, -1.0)), seed=-2,
    )  # fmt: skip
    sequence = sequence_of(3, sampling=sampling, min_tokens=2)
    shape = RowTableShape(4, 64, 5, (4,))
    block = open_block(sequence, shape)
    assert len(block) == shape.open_block
    # Row; length, seed (2**64 - 2), top_k, prompt, least length, biases, adapter.
    assert block[:9].tolist() == [3, 0, -2, -1, 7, 3, 5, 2, 0]
    assert block[9:15].view(np.float32).tolist() == pytest.approx([0.5, 0.9, 0.25, 0.5, -0.5, 1.5])
    assert block[15:20].tolist() == [9, 4, 0, 0, 0]
    assert block[20:25].view(np.float32).tolist() == [2.0, -1.0, 0.0, 0.0, 0.0]
    assert block[25:26].tolist() == [0]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63 + 5, 2**64 - 1, -1, -(2**63)])
def test_seeds_keep_all_their_bits(seed: int) -> None:
    block = open_block(sequence_of(0, sampling=SamplingParams(seed=seed)), RowTableShape(4, 64, 5, (4,)))
    low, high = block[2:4].view(np.uint32).tolist()
    assert low + (high << 32) == seed % 2**64


@pytest.mark.parametrize(
    ("fields", "features"),
    [
        ({"sampling": SamplingParams(temperature=0.0)}, set()),
        ({"sampling": SamplingParams(temperature=1e-6)}, set()),
        ({"sampling": SamplingParams()}, {FULL}),
        ({"sampling": SamplingParams(temperature=0.0, presence_penalty=0.1)}, {PENALTIES}),
        ({"sampling": SamplingParams(temperature=0.0, repetition_penalty=1.1)}, {PENALTIES}),
        ({"sampling": SamplingParams(temperature=0.0, logit_bias=((1, 1.0),))}, {PENALTIES}),
        ({"sampling": SamplingParams(temperature=0.0), "min_tokens": 1}, {PENALTIES}),
        ({"sampling": SamplingParams(temperature=0.0, logprobs=0)}, {LOGPROBS}),
        ({"sampling": SamplingParams(logprobs=3, frequency_penalty=1.0)}, {FULL, PENALTIES, LOGPROBS}),
    ],
)
def test_rows_pay_for_what_they_ask(fields: dict[str, object], features: set[str]) -> None:
    assert features_of(sequence_of(0, **fields)) == features


def test_a_model_too_large_is_refused_before_anything_is_allocated(model: ModelHandle) -> None:
    device = NullDevice(capacity=50_000_000)
    with pytest.raises(CapacityError, match="null") as raised:
        prepare_model(model, device, rows=2, max_seq=256, ends=(2,), step_tokens=16)
    assert raised.value.shortfall > 0
    assert device.account.total == 0


def test_pools_of_another_size_change_only_the_states(model: ModelHandle) -> None:
    """What the fit's answer is compiled to is what compiling its graphs anew would make."""
    device = NullDevice()
    prepared = prepare_model(model, device, rows=3, max_seq=64, ends=(2,), step_tokens=16)
    assert prepared.shape.pool_blocks == (3 * 64 // 16,)
    anew = compile_graphs(device, startup._graphs(model, device, prepared.shape, (2,)))
    found = prepared.entries.compiled
    assert (found.forms, found.states, found.arena, found.staging) == (
        anew.forms,
        anew.states,
        anew.arena,
        anew.staging,
    )
    for key, entry in anew.entries.items():
        same = found.entries[key]
        assert (same.graph, same.arena) == (entry.graph, entry.arena)
        assert [choice and choice.site for choice in same.choices] == [
            choice and choice.site for choice in entry.choices
        ]


def test_a_model_is_compiled_once_where_it_fits(model: ModelHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(device: NullDevice, graphs: dict[EntryKey, Graph]) -> Compiled:
        calls.append(len(graphs))
        return compile_graphs(device, graphs)

    monkeypatch.setattr(startup, "compile_graphs", counted)
    prepared = prepare_model(model, NullDevice(), rows=3, max_seq=64, ends=(2,), step_tokens=16)
    assert calls == [len(prepared.entries.keys())]


def test_a_driver_that_has_its_own_figure_is_quoted(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Metered(NullDevice):
        def driver_bytes(self) -> int:
            return self.account.total + 3 * 2**30

    monkeypatch.setattr("poot_batch.build.open_device", lambda name, threads: Metered())
    engine, _ = build_engine(EngineConfig(model=str(smollm2_path), rows=1, max_seq=16))
    assert "(context, libraries, rounding 3.00 GiB)" in engine.info.notes[-2]


def test_rows_are_halved_until_they_fit(model: ModelHandle) -> None:
    whole = prepare_model(model, NullDevice(), rows=8, max_seq=128, ends=(2,), step_tokens=16)
    spare = 2 * whole.fit.kv_bytes // 8
    small = NullDevice(capacity=whole.fit.demand.fixed + spare)
    fitted = prepare_model(model, small, rows=8, max_seq=128, ends=(2,), step_tokens=16)
    assert whole.fit.rows == 8
    # Rows cost little, so all stay, but their pool holds two full sequences.
    assert fitted.fit.blocks[0] in (2 * 128 // 16, 2 * 128 // 16 + 1)
    assert any("KV pools hold" in reason for reason in fitted.fit.reasons)
    assert ModelDriver(fitted).device_bytes() <= small.capacity() + small.account.total


def plan_of(*sequences: Sequence) -> StepPlan:
    return StepPlan(sequences, (), sequences)


def test_rows_run_in_the_smallest_entries_that_hold_them(model: ModelHandle) -> None:
    prepared = prepare_model(model, NullDevice(), rows=6, max_seq=64, ends=(2,), step_tokens=16)
    every = prepared.entries.keys()
    keys = [key for key in every if key.program == "sample"]
    assert sorted({key.capacity for key in keys}) == [1, 2, 4, 6]
    assert len(keys) == 4 * 8
    driver, device = ModelDriver(prepared), prepared.device
    assert isinstance(device, NullDevice)
    replayed = {key: device.recordings[index] for index, key in enumerate(every)}
    sequences = [sequence_of(row, sampling=SamplingParams(temperature=row % 2)) for row in range(6)]
    for sequence in sequences:
        driver.open(sequence)
    for count in (1, 2, 3, 5, 6):
        driver.submit(plan_of(*sequences[:count]))
    used = {key: recording.replays for key, recording in replayed.items() if recording.replays}
    assert {key.capacity: n for key, n in used.items() if key.program == "head"} == {1: 1, 2: 1, 4: 1, 6: 2}
    assert {(key.capacity, key.features): n for key, n in used.items() if key.program == "sample"} == {
        (1, frozenset()): 1, (2, frozenset({FULL})): 1, (4, frozenset({FULL})): 1, (6, frozenset({FULL})): 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (64, [56, 64, 80, 96, 112]),
        (72, [56, 64, 72, 80, 96, 112]),
        (90, [56, 64, 72, 80, 88, 96, 112]),
        (300, [56, 64, 72, 80, 88, 96, 104, 112]),
    ],
)
def test_steps_have_more_sizes_as_far_as_all_rows_may_decode(rows: int, sizes: list[int]) -> None:
    found = startup.ladder(NullDevice(), StepShape(2000, rows, 64, 16, (), ()))
    assert [size for size in found if 50 < size < 120] == sizes
    assert found[:6] == (1, 2, 4, 8, 16, 24)
    assert found[-3:] == (1792, 1920, 2000)
    assert list(found) == sorted(set(found))
    assert (248 in found, 264 in found) == (rows > 240, False)


def test_heads_of_many_rows_have_more_sizes_than_sampling(model: ModelHandle) -> None:
    prepared = prepare_model(model, NullDevice(), rows=200, max_seq=64, ends=(2,), step_tokens=16)
    every = prepared.entries.keys()
    capacities = {name: sorted({key.capacity for key in every if key.program == name}) for name in ("head", "sample")}
    assert capacities["head"] == [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 200]
    assert capacities["sample"] == [1, 2, 4, 8, 16, 32, 64, 128, 200]
    driver, device = ModelDriver(prepared), prepared.device
    assert isinstance(device, NullDevice)
    replayed = {key: device.recordings[index] for index, key in enumerate(every)}
    sequences = [sequence_of(row, sampling=SamplingParams(temperature=0.0)) for row in range(130)]
    for sequence in sequences:
        driver.open(sequence)
    for count in (70, 130):
        driver.submit(plan_of(*sequences[:count]))
    used = [str(key) for key, found in replayed.items() if found.replays and key.program in ("head", "sample")]
    assert sorted(used) == ["head[192]", "head[96]", "sample[128]", "sample[200]"]


@pytest.mark.parametrize(("tokens", "capacity"), [(16, 16), (200, 64)])
def test_a_scored_chunk_runs_alone_and_samples_at_its_end(model: ModelHandle, tokens: int, capacity: int) -> None:
    device = NullDevice()
    driver = ModelDriver(prepare_model(model, device, rows=2, max_seq=512, ends=(2,), step_tokens=tokens))
    assert driver.score_capacity == capacity
    sequence = sequence_of(1, tuple(range(2, 11)), prompt_logprobs=3)
    driver.open(sequence)
    first = driver.collect(driver.submit(StepPlan((), (), (), PromptRun(sequence, 0, 5))))
    assert first.tokens.shape == first.flags.shape == (0,)
    last = driver.collect(driver.submit(StepPlan((), (), (sequence,), PromptRun(sequence, 5, 4))))
    assert last.tokens.shape == last.flags.shape == (1,)
    for result, count in ((first, 5), (last, 4)):
        assert result.score is not None
        assert result.score.chosen.shape == (count,)
        assert result.score.top_ids.shape == result.score.top_values.shape == (count, 20)
        assert (result.score.chosen.dtype, result.score.top_ids.dtype) == (np.float32, np.int32)


class ListeningDevice(NullDevice):
    """Remembers what it is sent."""

    sent: list[list[int]]

    def write(self, allocation: object, offset: int, data: np.ndarray) -> None:
        self.sent.append(data.tolist())


def test_what_the_device_still_holds_is_not_sent_again(model: ModelHandle) -> None:
    device = ListeningDevice()
    device.sent = []
    driver = ModelDriver(prepare_model(model, device, rows=2, max_seq=64, ends=(2,), step_tokens=16))
    first, second = sequence_of(0), sequence_of(1)
    for sequence in (first, second):
        driver.open(sequence)
    sent = []
    for plan in (plan_of(first), plan_of(first), plan_of(second), plan_of(second), plan_of(second, first)):
        device.sent.clear()
        driver.submit(plan)
        sent.append([data if len(data) < 3 else data[4:12] for data in device.sent])
    runs = [[0, -1, 1, 0, 0, 0, 0, 0], [1, -1, 1, 0, 0, 0, 0, 0], [1, -1, 1, 0, 0, -1, 1, 0]]
    assert sent == [[runs[0], [0], [0]], [], [runs[1], [1], [1]], [], [runs[2], [1, 0], [1, 0]]]


def test_the_model_itself_bounds_the_length(model: ModelHandle) -> None:
    prepared = prepare_model(model, NullDevice(), rows=1, max_seq=10**6, ends=(2,), step_tokens=4)
    assert prepared.fit.max_seq == model.max_positions == 8192
    assert prepared.fit.blocks == (8192 // 16,)


def test_building_says_what_was_settled_on(smollm2_path: Path) -> None:
    phases: list[str] = []
    engine, text = build_engine(
        EngineConfig(model=str(smollm2_path), backend="null", rows=1, max_seq=16),
        lambda phase, done, total: phases.append(phase),
    )
    info = engine.info
    assert (info.backend, info.rows, info.max_seq, info.kv_blocks, info.vocab_size) == ("null", 1, 16, 1, 49152)
    assert set(info.eos_ids) == set(text.tokenizer.eog_ids)
    assert set(info.start_seconds) == {"model", "device", "text", "fit", "weights", "entries"}
    assert list(dict.fromkeys(phases)) == ["model", "device", "weights", "entries"]
    memory, start = info.notes[-2:]
    assert re.fullmatch(r"\d+ entries; weights 0\.\d\d GiB, .*; account 0\.\d\d GiB of 64\.00 GiB found free", memory)
    assert re.fullmatch(r"start: model \d+\.\d s, .*, entries \d+\.\d s", start)
    assert info.weight_bytes + info.kv_bytes + info.workspace_bytes == engine.stats().device_bytes
