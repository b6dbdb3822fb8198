"""A world of one seed: clients, an engine over the fake device, and everything that may happen between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, cast

from poot_batch.engine import Engine
from poot_batch.errors import EngineDeadError, EngineError, EngineFaultError, InvariantError, RequestError
from poot_batch.faults import InjectedFaultError, armed
from poot_batch.kv import KvSpace
from poot_batch.process import frames
from poot_batch.process.stream import merged
from poot_batch.request import EngineInfo, GenerateRequest, Output
from poot_batch.simulation import view
from poot_batch.simulation.account import Account
from poot_batch.simulation.device import FakeDevice, Shape
from poot_batch.simulation.invariants import check, check_end
from poot_batch.simulation.model import ENDS, VOCABULARY, LetterTokenizer
from poot_batch.simulation.traffic import Traffic, draw_rates, draw_shape
from poot_executor.errors import DeviceError

if TYPE_CHECKING:
    from poot_models.text import Tokenizer

# Far above what any world needs: a world that takes more has somebody waiting for ever.
MOST_TURNS = 20_000

Trace = Callable[[str], None]


class World:
    """`run` plays it to its end and raises InvariantError for what must never be.

    What is owed to whom follows from what was asked, what the device was told and what was delivered; the engine's own
    state is only compared with it. A world is its engine's fault plan.
    """

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.seed, self.random, self._trace = seed, Random(seed), trace
        self.rates = draw_rates(self.random)
        self.shape = shape = draw_shape(self.random, self.rates.crowd > 0)
        self.now = 0.0
        self.turn = 0
        caching, default = self.random.random() > 0.05, self.random.choice((None, None, None, 5))
        self.account = Account(shape, caching, default)
        self.kv = KvSpace(shape.block, shape.pools, shape.tables, caching=caching)
        self.device = FakeDevice(shape, self._spoils, self._breaks, self._spends)
        self.engine = Engine(
            self.device,
            self.kv,
            _info(shape),
            cast("Tokenizer", LetterTokenizer()),
            capacity=shape.capacity,
            default_max_tokens=default,
            clock=lambda: self.now,
        )
        self.engine.on_open = self._opens
        self.traffic = Traffic(self.random, self.rates, shape.max_seq)
        # Of each KV group, what the device held when a digest was first findable; and all that it may ever hold there.
        self.meaning: list[dict[bytes, int]] = [{} for _ in shape.pools]
        self.truths: set[int] = set()
        # Blocks that somebody holds, as last counted.
        self.used = 0
        self.refused = self.faulted = self.lost = False
        # Requests that were given a row and not opened, and how many were opened before.
        self._held: list[tuple[int, int]] = []
        # A row could not be opened: it and others of its turn have left the line, unseen by the device.
        self.opening = False
        # The clients are another process.
        self._wired = self.random.random() < 0.2
        self._coming = 160 if self.rates.crowd else self.random.choice((1, 3, 5, 9))
        if trace is not None:
            trace(f"seed {seed}: {shape}")
            trace(f"{self.rates}")

    def run(self) -> None:
        with armed(self):
            while not self.lost and (self._coming > 0 or self._open or self.engine.busy):
                self.turn += 1
                if self.turn > MOST_TURNS:
                    raise InvariantError(f"requests {[*self.account.waiting]} wait, and others run, for ever")
                self._act()
        check_end(self)

    @property
    def _open(self) -> bool:
        return next(self.account.open(), None) is not None

    def reach(self, point: str) -> bool:
        """What fails here: a reservation finds no room although there is some, a call of the driver breaks."""
        if self.rates.fault and self.random.random() < self.rates.fault:
            self._break(point)
        # Only while somebody else has blocks, whose return would be the end of it.
        refusable = point == "kv.reserve" and bool(self.rates.refuse) and bool(self.account.holders)
        if refusable and self.random.random() < self.rates.refuse:
            self._say("  a reservation is refused")
            self.refused = True
            return True
        return False

    def _break(self, what: str) -> None:
        self._say(f"  {what} fails")
        self.faulted, self.opening = True, what in ("kv.reserve", "driver.open")
        self.device.lose()
        if self.random.random() < 0.1:
            raise DeviceError(what)
        raise InjectedFaultError(what)

    def _breaks(self) -> bool:
        """Whether a step breaks after it wrote."""
        if not self.rates.fault or self.random.random() >= self.rates.fault:
            return False
        self._say("  a step breaks half done")
        self.faulted = True
        self.device.lose()
        return True

    def _spoils(self, request_id: int, sampled: int) -> bool:
        return self.account.lives[request_id].spoilt_at == sampled

    def _spends(self, tokens: int) -> None:
        self.now += 0.004 + 0.002 * tokens

    def _act(self) -> None:
        chance, rates = self.random.random(), self.rates
        if self._coming > 0 and chance < rates.arrive:
            self._arrive()
        elif chance > 1 - rates.cancel and self._open:
            self._cancel()
        elif chance > 1 - rates.cancel - rates.read or not self.engine.busy:
            self._read()
        elif chance > 1 - rates.cancel - rates.read - rates.abandon:
            self._abandon(EngineDeadError("the server drains"))
            check(self)
        else:
            self._step()

    def _arrive(self) -> None:
        self.now += self.random.choice((0.0, 0.0, 0.5))
        for request in self.traffic.requests([*self.account.lives][-4:]):
            self._coming -= 1
            life = self.account.arrive(request)
            if self.rates.spoil and self.random.random() < self.rates.spoil:
                life.spoilt_at = self.random.randrange(4)
                life.causes.add("non_finite_logits")
            self.truths.update(life.alone.digests)
            if self._trace is not None:
                self._say(f"{request}")
            self.engine.submit(_sent_request(request) if self._wired else request)
            if self.random.random() < 0.1:
                self._submit_again(request)

    def _submit_again(self, request: GenerateRequest) -> None:
        try:
            self.engine.submit(request)
        except RequestError:
            return
        raise InvariantError(f"the id {request.id} was taken twice")

    def _cancel(self) -> None:
        life = self.random.choice([*self.account.open()])
        self._say(f"cancel {life.request.id}")
        life.causes.add("abort")
        self._take(self.engine.cancel(life.request.id))
        if life.finish is None:
            raise InvariantError(f"request {life.request.id} was cancelled and did not end")
        check(self)

    def _read(self) -> None:
        """The reader of a request that may be paused takes something."""
        slow = [life for life in self.account.open() if life.granted is not None]
        if not slow:
            if not self.engine.busy:
                self.now += 1.0
            return
        life, tokens = self.random.choice(slow), self.random.randrange(1, 9)
        self._say(f"grant {tokens} to {life.request.id}")
        assert life.granted is not None
        life.granted += tokens
        self.engine.grant(life.request.id, tokens)

    def _step(self) -> None:
        self.now += 0.001
        self.refused = self.faulted = self.opening = False
        for life in self.account.holders:
            assert life.row is not None
            life.read = self.device.rows[life.row].length
        able, opened, findable = self.account.first_in_line(), len(self.device.opened), self._findable()
        try:
            outputs = self.engine.step()
        except EngineFaultError as error:
            self._admitted(opened, findable)
            self._demand_cause(error)
            self._abandon(error)
        else:
            self._admitted(opened, findable)
            for output in outputs:
                if output.error_code == "engine_fault":
                    self._demand_cause(output.error_message)
            # Who came in before it may be reading what it needs.
            left = able is not None and able.row is None and not self.account.may_await(able)
            self._take(outputs)
            if able is not None and left and not (self.refused or self.faulted):
                raise InvariantError(f"request {able.request.id} was first in line, had room and was not admitted")
            if self.faulted and self.account.holders:
                raise InvariantError("a row survived the fault of a step")
        check(self)

    def _admitted(self, since: int, findable: set[int] | None) -> None:
        for n, sequence in enumerate(self.device.opened[since:]):
            self._hold(since + n)
            # Room for the first may have been made at the cost of what the next would have found.
            life = self.account.admit(sequence, findable if n == 0 else None)
            self._say(f"  {life.request.id} opens row {life.row}, {life.cached} cached; {sequence.cache_miss}")
        self._hold(len(self.device.opened))

    def _opens(self, request_id: int) -> None:
        """The engine says that this request has a row."""
        opened = self.device.opened
        if not opened or opened[-1].request.id != request_id:
            self._held.append((len(opened), request_id))

    def _hold(self, opened: int) -> None:
        """Take note of those who were held before the device opened one more than so many rows."""
        while self._held and self._held[0][0] <= opened:
            _, request_id = self._held.pop(0)
            self.account.hold(request_id, unseen=self.opening)
            self._say(f"  {request_id} is held")

    def _findable(self) -> set[int] | None:
        """The digests in the first KV group that can be found."""
        if not self.account.waiting:
            return None
        digests = self.device.digests[0]
        return {digests[block] for block in view.findable(self.kv)[0].values()}

    def _demand_cause(self, said: object) -> None:
        if self.device.complaint is not None:
            raise self.device.complaint
        if not self.faulted:
            raise InvariantError(f"the engine fails although nothing broke: {said}")
        for life in self.account.open() if self.opening else self.account.holders:
            life.causes.add("engine_fault")

    def _abandon(self, error: EngineError) -> None:
        self._say(f"abandon: {error}")
        for life in self.account.open():
            life.causes.add(error.code)
        self.lost = True
        self._take(self.engine.abandon(error))

    def _take(self, outputs: list[Output]) -> None:
        for output in _sent_outputs(outputs) if self._wired else outputs:
            life = self.account.lives[output.request_id]
            if self._trace is not None:
                self._say(f"  {output}")
            life.take(output)
            if output.finish is not None:
                self.account.end(life)
                self.traffic.said.append(life.request.prompt + tuple(life.tokens))

    def _say(self, what: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.turn:5} {self.now:8.3f}  {what}")


def _sent_request(request: GenerateRequest) -> GenerateRequest:
    """What arrives at an engine process."""
    frame = frames.decode_to_engine(frames.encode(frames.pack_request(request))[frames.HEADER.size :])
    assert isinstance(frame, frames.Generate)
    return frames.unpack_request(frame)


def _sent_outputs(outputs: list[Output]) -> list[Output]:
    """What arrives from an engine process of what a step delivers, to a reader who takes all of it at once."""
    frame = frames.decode_from_engine(frames.encode(frames.pack_outputs(outputs))[frames.HEADER.size :])
    assert isinstance(frame, frames.Step)
    waiting: dict[int, deque[Output]] = {}
    for output in frames.unpack_outputs(frame):
        waiting.setdefault(output.request_id, deque()).append(output)
    return [merged(given) for given in waiting.values()]


def _info(shape: Shape) -> EngineInfo:
    return EngineInfo(
        model="simulated", architecture="simulated", backend="simulated", device="simulated",
        rows=shape.rows, max_seq=shape.max_seq, vocab_size=VOCABULARY, eos_ids=ENDS,
        kv_block_size=shape.block, kv_blocks=sum(shape.pools), weight_bytes=0, kv_bytes=0, workspace_bytes=0,
        device_total_bytes=0, decode_dispatches=1, decode_activation_peak_bytes=0, prefill_dispatches=1,
        prefill_activation_peak_bytes=0,
    )  # fmt: skip
