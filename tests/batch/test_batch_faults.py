"""Faults at the named points of the engine, over a real model on the CPU, and of the engine process's socket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from poot_batch import faults
from poot_batch.driver import ModelDriver, Prepared, prepare_model
from poot_batch.engine import Engine
from poot_batch.errors import EngineFaultError
from poot_batch.faults import CountedFaults, InjectedFaultError, armed
from poot_batch.kv import KvSpace
from poot_batch.process import frames
from poot_batch.process.worker import _Loop, _Peer
from poot_batch.request import EngineInfo, GenerateRequest, Output, SamplingParams
from poot_executor.devices import open_device
from poot_executor.errors import DeviceError
from poot_models import load

ROWS, MAX_SEQ = 2, 64
LENGTHS = {1: 3, 2: 5, 3: 2}
DRIVER = ("driver.open", "driver.submit", "driver.collect")


@pytest.fixture(scope="module")
def prepared(smollm2_path: Path) -> Iterator[Prepared]:
    device = open_device("cpu", threads=1)
    found = prepare_model(load(smollm2_path), device, rows=ROWS, max_seq=MAX_SEQ, ends=())
    yield found
    device.close()


@pytest.fixture
def engine(prepared: Prepared, info_of: Callable[..., EngineInfo]) -> Engine:
    shape = prepared.shape
    kv = KvSpace(shape.block, prepared.fit.blocks, shape.tables)
    info = info_of(rows=ROWS, max_seq=MAX_SEQ, vocab_size=prepared.model.vocab_size, eos_ids=())
    return Engine(ModelDriver(prepared), kv, info, None, capacity=shape.tokens)


class Clients:
    """Three requests for two rows, and what each of them got."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outputs: dict[int, list[Output]] = {name: [] for name in LENGTHS}
        for name, length in LENGTHS.items():
            prompt = tuple(range(100 * name, 100 * name + 20))
            engine.submit(
                GenerateRequest(id=name, prompt=prompt, max_tokens=length, sampling=SamplingParams(temperature=0.0))
            )

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            assert self.finish(output.request_id) is None
            self.outputs[output.request_id].append(output)

    def run(self) -> None:
        while self.engine.busy:
            self.take(self.engine.step())

    def finish(self, name: int) -> str | None:
        return self.outputs[name][-1].finish if self.outputs[name] else None

    def tokens(self, name: int) -> list[int]:
        return [token for output in self.outputs[name] for token in output.tokens]

    def assert_over(self, finishes: list[str]) -> None:
        """Everybody ended so, once, was counted so, and gave everything back."""
        assert [self.finish(name) for name in LENGTHS] == finishes
        stats = self.engine.stats()
        assert (stats.inflight, stats.queue_depth, stats.batch_size, stats.kv_blocks_used) == (0, 0, 0, 0)
        assert (stats.requests_completed, stats.requests_errored) == (finishes.count("length"), finishes.count("error"))
        for name in LENGTHS:
            if self.finish(name) == "error":
                assert self.outputs[name][-1].error_code == "engine_fault"


@pytest.fixture(scope="module")
def undisturbed(prepared: Prepared, info_of: Callable[..., EngineInfo]) -> dict[int, list[int]]:
    shape = prepared.shape
    info = info_of(rows=ROWS, max_seq=MAX_SEQ, vocab_size=prepared.model.vocab_size, eos_ids=())
    kv = KvSpace(shape.block, prepared.fit.blocks, shape.tables)
    clients = Clients(Engine(ModelDriver(prepared), kv, info, None, capacity=shape.tokens))
    clients.run()
    clients.assert_over(["length", "length", "length"])
    return {name: clients.tokens(name) for name in LENGTHS}


@pytest.mark.parametrize(
    ("point", "visit", "ends"),
    [
        ("driver.open", 1, ["error", "error", "length"]),
        ("driver.open", 2, ["error", "error", "length"]),
        ("driver.open", 3, ["length", "error", "error"]),
        ("driver.submit", 1, ["error", "error", "length"]),
        ("driver.submit", 3, ["error", "error", "length"]),
        ("driver.collect", 1, ["error", "error", "length"]),
        ("driver.collect", 4, ["length", "error", "error"]),
    ],
)
def test_one_fault_ends_the_rows_and_the_engine_goes_on(
    engine: Engine, undisturbed: dict[int, list[int]], point: str, visit: int, ends: list[str]
) -> None:
    plan = CountedFaults({point: {visit}})
    with armed(plan):
        clients = Clients(engine)
        clients.run()
    assert plan.failed == [point]
    clients.assert_over(ends)
    for name, finish in zip(LENGTHS, ends, strict=True):
        said, right = clients.tokens(name), undisturbed[name]
        assert said == (right if finish == "length" else right[: len(said)])
    # And it is as good as new.
    again = Clients(engine)
    again.run()
    assert {name: again.tokens(name) for name in LENGTHS} == undisturbed


@pytest.mark.parametrize("point", DRIVER)
def test_two_faults_in_a_row_end_the_engine(engine: Engine, point: str) -> None:
    with armed(CountedFaults({point: {1, 2}})):
        clients = Clients(engine)
        with pytest.raises(EngineFaultError, match=point) as raised:
            clients.run()
        clients.take(engine.abandon(raised.value))
    clients.assert_over(["error", "error", "error"])


@pytest.mark.parametrize("point", DRIVER)
def test_an_error_of_the_device_is_final_at_once(engine: Engine, point: str) -> None:
    with armed(CountedFaults({point: {1}}, DeviceError)):
        clients = Clients(engine)
        with pytest.raises(EngineFaultError, match=point) as raised:
            clients.run()
        clients.take(engine.abandon(raised.value))
    clients.assert_over(["error", "error", "error"])


def test_a_refused_reservation_only_waits(engine: Engine, undisturbed: dict[int, list[int]]) -> None:
    # The first request is in when the others are refused, and the third goes in before the second.
    plan = CountedFaults({"kv.reserve": {2, 3, 4}})
    with armed(plan):
        clients = Clients(engine)
        clients.run()
    assert plan.failed == ["kv.reserve"] * 3
    clients.assert_over(["length", "length", "length"])
    assert {name: clients.tokens(name) for name in LENGTHS} == undisturbed


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end, and the engine's."""
    client, engine = socket.socketpair()
    client.settimeout(10)
    with client, engine:
        yield client, engine


def served(harness, request_of, ends: tuple[socket.socket, socket.socket], plan: CountedFaults):
    """An engine process's loop over the fake model, told to answer one request and shut down: its exit code, tokens."""
    client, engine = ends
    h = harness(says=lambda seed, position: 9)
    peer = _Peer(engine)
    step = h.engine.step

    def stepped() -> list[Output]:
        outputs = step()
        if not h.engine.busy:
            client.sendall(frames.encode(frames.Shutdown()))
        return outputs

    h.engine.step = stepped
    client.sendall(frames.encode(frames.pack_request(request_of(1, max_tokens=4))))
    with armed(plan):
        code = _Loop(h.engine, peer).run()
    engine.close()
    reader, payloads = frames.FrameReader(), []
    while data := client.recv(1 << 20):
        payloads += reader.feed(data)
    given = [frames.decode_from_engine(payload) for payload in payloads]
    outputs = [output for frame in given if isinstance(frame, frames.Step) for output in frames.unpack_outputs(frame)]
    return code, [token for output in outputs for token in output.tokens]


def test_a_socket_that_is_full_for_a_moment_loses_nothing(harness, request_of, ends) -> None:
    plan = CountedFaults({"worker.send": {1, 2, 4}}, BlockingIOError)
    assert served(harness, request_of, ends, plan) == (0, [9, 9, 9, 9])
    assert plan.failed == ["worker.send"] * 3


def test_a_broken_socket_ends_the_process(harness, request_of, ends) -> None:
    # After the frame that says that the request has a row, and two of tokens.
    plan = CountedFaults({"worker.send": {4}}, BrokenPipeError)
    assert served(harness, request_of, ends, plan) == (1, [9, 9])


def test_points_are_off_unless_armed() -> None:
    assert not any(faults.reach(point) for point in faults.POINTS)
    plan = CountedFaults({point: {1} for point in faults.POINTS})
    with armed(plan), pytest.raises(ValueError, match="armed already"), armed(plan):
        pass
    with pytest.raises(InjectedFaultError), armed(plan):
        faults.reach("driver.open")
    assert not faults.reach("driver.open")
    with pytest.raises(ValueError, match=r"driver\.nothing"):
        CountedFaults({"driver.nothing": {1}})
