"""The engine process's loop and socket, in this process over a fake model."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from poot_batch.process import frames
from poot_batch.process.worker import _OUTBOX_LIMIT, _Loop, _Peer
from poot_batch.request import Output
from poot_executor.errors import DeviceError


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end, and the engine's."""
    client, engine = socket.socketpair()
    client.settimeout(10)
    with client, engine:
        yield client, engine


def send(client: socket.socket, *given: frames.ToEngine) -> None:
    client.sendall(b"".join(map(frames.encode, given)))


def received(client: socket.socket, engine: socket.socket) -> list[frames.FromEngine]:
    """Everything that the engine's end has sent; it is closed first."""
    engine.close()
    reader, payloads = frames.FrameReader(), []
    while data := client.recv(1 << 20):
        payloads += reader.feed(data)
    return [frames.decode_from_engine(payload) for payload in payloads]


def outputs_of(given: list[frames.FromEngine]) -> list[Output]:
    return [output for frame in given if isinstance(frame, frames.Step) for output in frames.unpack_outputs(frame)]


def test_a_shutdown_and_the_stats_before_it(harness, request_of, ends) -> None:
    client, engine = ends
    h = harness(says=lambda seed, position: 9)
    send(client, frames.pack_request(request_of(1)), frames.AskStats(7), frames.Shutdown())
    assert _Loop(h.engine, _Peer(engine)).run() == 0
    (stats,) = (frame for frame in received(client, engine) if isinstance(frame, frames.Stats))
    assert (stats.serial, stats.stats.requests_total, stats.stats.queue_depth) == (7, 1, 1)


def test_steps_go_on_between_frames(harness, request_of, ends) -> None:
    client, engine = ends
    h = harness(says=lambda seed, position: 9)
    peer = _Peer(engine)
    loop = _Loop(h.engine, peer)
    send(client, frames.pack_request(request_of(1, max_tokens=3)), frames.Cancel(99), frames.Grant(1, 5))
    steps = iter(range(4))
    step = h.engine.step

    def until_done() -> list[Output]:
        if next(steps) == 2:
            send(client, frames.Shutdown())
        return step()

    h.engine.step = until_done
    assert loop.run() == 0
    outputs = outputs_of(received(client, engine))
    assert [output.tokens for output in outputs] == [(9,)] * 3
    assert outputs[-1].finish == "length"


def test_a_refused_request_ends_with_its_error(harness, request_of, ends) -> None:
    client, engine = ends
    h = harness()
    send(client, frames.pack_request(request_of(1, 64)), frames.pack_request(request_of(2, ())), frames.Shutdown())
    assert _Loop(h.engine, _Peer(engine)).run() == 0
    outputs = outputs_of(received(client, engine))
    assert [(o.request_id, o.finish, o.error_code) for o in outputs] == [
        (1, "error", "context_length_exceeded"),
        (2, "error", "invalid_request"),
    ]


def test_a_lost_device_ends_all_requests_and_the_process(harness, request_of, ends) -> None:
    client, engine = ends
    h = harness(rows=1, fails={"submit": {1, 2}})
    send(client, *(frames.pack_request(request_of(name)) for name in (1, 2, 3)))
    assert _Loop(h.engine, _Peer(engine)).run() == 1
    given = received(client, engine)
    assert [(o.request_id, o.finish, o.error_code) for o in outputs_of(given)] == [
        (name, "error", "engine_fault") for name in (1, 2, 3)
    ]
    assert isinstance(given[-1], frames.Failed)
    assert (given[-1].code, "submit 2" in given[-1].message) == ("engine_fault", True)


class LostDriver:
    """A driver whose device fails when a step is collected, for good."""

    def __init__(self, driver) -> None:
        self._driver = driver
        self.submitted = 0

    def __getattr__(self, name: str):
        return getattr(self._driver, name)

    def submit(self, plan):
        self.submitted += 1
        return self._driver.submit(plan)

    def collect(self, ticket):
        raise DeviceError("the CUDA device failed: an illegal memory access was encountered")


def test_a_device_error_is_final_at_once(harness, request_of, ends) -> None:
    client, engine = ends
    h = harness(rows=1)
    lost = h.engine._driver = LostDriver(h.driver)
    send(client, *(frames.pack_request(request_of(name)) for name in (1, 2, 3)))
    assert _Loop(h.engine, _Peer(engine)).run() == 1
    given = received(client, engine)
    # Those that wait for a row too: nothing on this context works any more.
    assert [(o.request_id, o.finish, o.error_code) for o in outputs_of(given)] == [
        (name, "error", "engine_fault") for name in (1, 2, 3)
    ]
    assert lost.submitted == 1
    assert isinstance(given[-1], frames.Failed)
    assert "illegal memory access" in given[-1].message


def test_a_client_that_is_gone_ends_the_loop(harness, request_of, ends) -> None:
    client, engine = ends
    h = harness(says=lambda seed, position: 9)
    send(client, frames.pack_request(request_of(1)))
    client.close()
    assert _Loop(h.engine, _Peer(engine)).run() == 1


def test_a_slow_client_loses_nothing_and_stops_the_steps(ends) -> None:
    client, engine = ends
    peer = _Peer(engine)
    sent = 0
    while not peer.clogged:
        peer.send(frames.Failed("code", "x" * 100_000 + str(sent)))
        sent += 1
    assert sent > _OUTBOX_LIMIT // 200_000
    reader, messages = frames.FrameReader(), []
    while len(messages) < sent:
        messages += [frames.decode_from_engine(payload).message for payload in reader.feed(client.recv(1 << 20))]
        assert peer.receive(0) == []
    assert not peer.clogged
    assert [int(message.lstrip("x")) for message in messages] == list(range(sent))


def test_frames_that_come_in_pieces(ends) -> None:
    client, engine = ends
    peer, data = _Peer(engine), frames.encode(frames.Grant(5, 7))
    assert peer.receive(0) == []
    client.sendall(data[:3])
    assert peer.receive(None) == []
    client.sendall(data[3:])
    assert peer.receive(None) == [frames.Grant(5, 7)]
    client.close()
    assert peer.receive(None) == []
    assert peer.gone
