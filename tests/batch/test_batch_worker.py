"""The engine process's loop and socket, in this process over a fake model."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator

import pytest

from poot_batch.process import frames
from poot_batch.process.worker import _OUTBOX_LIMIT, _TURN_SECONDS, _Loop, _Peer
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


def test_who_gets_a_row_is_told_before_its_first_step(harness, request_of, ends) -> None:
    """One row for two: the second one is opened when the first one has ended."""
    client, engine = ends
    h = harness(rows=1, says=lambda seed, position: 9)
    loop = _Loop(h.engine, _Peer(engine))
    send(client, *(frames.pack_request(request_of(number, max_tokens=2)) for number in (1, 2)))
    step = h.engine.step

    def until_done() -> list[Output]:
        outputs = step()
        if any(output.request_id == 2 and output.finish for output in outputs):
            send(client, frames.Shutdown())
        return outputs

    h.engine.step = until_done
    assert loop.run() == 0
    told: list[tuple[str, int]] = []
    for frame in received(client, engine):
        if isinstance(frame, frames.Opened):
            told.append(("opened", frame.request_id))
        elif isinstance(frame, frames.Step):
            told += [("output", output.request_id) for output in frames.unpack_outputs(frame)]
    assert told == [("opened", 1), ("output", 1), ("output", 1), ("opened", 2), ("output", 2), ("output", 2)]


def test_all_that_has_come_is_heard_before_the_next_step(harness, request_of, ends) -> None:
    """A large request of many frames, more than a socket holds at a time, and what others sent behind it."""
    client, engine = ends
    h = harness(max_seq=8192, blocks=2048, says=lambda seed, position: 9)
    engine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    data = b"".join(
        frames.encode(frame)
        for frame in (
            *(frames.pack_request(request_of(name, 4000)) for name in range(1, 101)),
            frames.Cancel(1),
            frames.AskStats(7),
            frames.Shutdown(),
        )
    )
    assert len(data) > 1_500_000
    peer = _Peer(engine)
    # The client sends more whenever the engine has made room.
    rest = memoryview(data)
    receive = peer.receive

    def after_the_client(timeout: float | None) -> frames.ToEngine | None:
        nonlocal rest
        client.setblocking(False)
        while rest:
            try:
                rest = rest[client.send(rest) :]
            except BlockingIOError:
                break
        client.settimeout(10)
        return receive(timeout)

    peer.receive = after_the_client
    assert _Loop(h.engine, peer, clock=lambda: 0.0).run() == 0
    assert h.driver.plans == []
    given = received(client, engine)
    assert [(o.request_id, o.finish) for o in outputs_of(given)] == [(1, "abort")]
    (stats,) = (frame.stats for frame in given if isinstance(frame, frames.Stats))
    assert (stats.requests_total, stats.requests_cancelled, stats.queue_depth) == (100, 1, 99)


def test_a_flood_does_not_hold_up_the_steps(harness, request_of, ends) -> None:
    """What a turn has no time for is heard in the next ones, in order."""
    client, engine = ends
    h = harness(says=lambda seed, position: 9)
    send(client, frames.pack_request(request_of(1, max_tokens=64 - 3)), *map(frames.AskStats, range(50)))
    send(client, frames.Shutdown())
    seconds = itertools.count(step=_TURN_SECONDS / 8)
    assert _Loop(h.engine, _Peer(engine), clock=lambda: next(seconds)).run() == 0
    stats = [frame for frame in received(client, engine) if isinstance(frame, frames.Stats)]
    assert [frame.serial for frame in stats] == list(range(50))
    # Eight frames a turn.
    assert [frame.stats.steps for frame in stats] == [(1 + n) // 8 for n in range(50)]


def test_a_prompt_comes_once_for_all_that_share_it(harness, request_of, ends) -> None:
    client, engine = ends
    h = harness()
    prompt, other = tuple(range(2, 12)), (5, 6)
    wanted = [request_of(1, prompt), request_of(2, prompt, fork_of=1), request_of(3, other), request_of(4, prompt)]
    before = None
    for request in wanted:
        send(client, frames.pack_request(request, before))
        before = request.prompt
    # Its leader may be gone, or refused: the prompt is known all the same.
    long = tuple(range(2, 52)) + tuple(range(2, 52))
    send(client, frames.pack_request(request_of(5, long)), frames.pack_request(request_of(6, long), long))
    send(client, frames.Shutdown())
    taken = []
    submit = h.engine.submit
    h.engine.submit = lambda request: (taken.append(request), submit(request))
    assert _Loop(h.engine, _Peer(engine)).run() == 0
    assert taken == [*wanted, request_of(5, long), request_of(6, long)]


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
        assert peer.receive(0) is None
    assert not peer.clogged
    assert [int(message.lstrip("x")) for message in messages] == list(range(sent))


def test_frames_that_come_in_pieces(ends) -> None:
    client, engine = ends
    peer, data = _Peer(engine), frames.encode(frames.Grant(5, 7))
    assert peer.receive(0) is None
    client.sendall(data[:3])
    assert peer.receive(None) is None
    client.sendall(data[3:] + data)
    assert [peer.receive(None), peer.receive(None), peer.receive(0)] == [frames.Grant(5, 7)] * 2 + [None]
    client.close()
    assert peer.receive(None) is None
    assert peer.gone
