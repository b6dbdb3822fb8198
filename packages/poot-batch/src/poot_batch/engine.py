"""The engine: admit, plan, submit; while that runs read the step before, commit, deliver."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable

from poot_batch.counters import Counters
from poot_batch.delivery import Committer
from poot_batch.driver.interface import Driver, Ticket
from poot_batch.errors import EngineError, EngineFaultError, RequestError
from poot_batch.faults import reach
from poot_batch.kv import KvSpace
from poot_batch.request import EngineInfo, EngineStats, GenerateRequest, Output, most_tokens, validate
from poot_batch.schedule import PromptBudget, Scheduler, Sequence, StepPlan, StepResult
from poot_executor.errors import DeviceError
from poot_models.text import Tokenizer


class Engine:
    """The loop over one driver. Not thread-safe: one thread submits and steps.

    Every request that `submit` accepts ends exactly once, with an output that has `finish` set. `capacity` bounds the
    tokens of a step, `prompt_step_ms` its time while rows wait for their next token; `default_max_tokens` is what a
    request gets that names no number, if its row has that many left.
    """

    def __init__(
        self,
        driver: Driver,
        kv: KvSpace,
        info: EngineInfo,
        tokenizer: Tokenizer | None,
        *,
        capacity: int,
        default_max_tokens: int | None = None,
        prompt_step_ms: float = 150.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.info = info
        self._driver, self._kv, self._clock = driver, kv, clock
        self._default_max_tokens = default_max_tokens
        budget = PromptBudget(prompt_step_ms, capacity)
        self._scheduler = Scheduler(info.rows, kv, budget, capacity, driver.score_capacity)
        self._committer = Committer(frozenset(info.eos_ids), tokenizer, self._scheduler.finish)
        self._sequences: dict[int, Sequence] = {}
        # Steps submitted and not collected, with the time of submission.
        self._inflight: deque[tuple[Ticket, float]] = deque()
        self._collected = 0.0
        self._counters = Counters()
        self._seeds = random.SystemRandom()
        # Told the id of every request that is given a row, before its first step.
        self.on_open: Callable[[int], None] | None = None
        self._faults = 0
        self._stuck = False

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request. Raises RequestError and its kin; then nothing of it is kept."""
        if request.id in self._sequences:
            raise RequestError(f"request id {request.id} is in use")
        validate(request, self.info)
        if request.prompt_logprobs is not None and not self._driver.score_capacity:
            raise RequestError("this engine gives no log-probabilities of prompts", param="prompt_logprobs")
        seed = request.sampling.seed if request.sampling.seed is not None else self._seeds.getrandbits(64)
        most = most_tokens(request, self.info, self._default_max_tokens)
        sequence = Sequence(request, most, seed, self._clock())
        if request.fork_of is not None and self._kv.caching:
            sequence.leader = self._sequences.get(request.fork_of)
        self._committer.open(sequence)
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)
        self._counters.requests += 1
        self._stuck = False

    def cancel(self, request_id: int) -> list[Output]:
        """End a request at once: its row and blocks are free for the next step. No output for an unknown id."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return []
        self._counters.cancelled += 1
        output = Output(
            request_id=request_id,
            finish="abort",
            prompt_tokens=sequence.prompt_length,
            cached_tokens=sequence.cached,
            cache_miss=sequence.cache_miss,
            times=sequence.times(self._clock()),
        )
        return [self._end(sequence, output)]

    def grant(self, request_id: int, tokens: int) -> None:
        """Let a request run `tokens` further. Unknown ids and requests without credit are left alone."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and tokens > 0:
            sequence.grant(tokens)
            self._stuck = False

    @property
    def busy(self) -> bool:
        """Whether a call of `step` may do something now. Not so when all rows wait for their clients' credit."""
        return bool(self._inflight) or (bool(self._sequences) and not self._stuck)

    def step(self) -> list[Output]:
        """One turn of the loop. A failing step ends the requests that hold blocks; a second one in a row is raised.

        Raises EngineFaultError when the device is or seems lost; `abandon` then ends what is still open.
        """
        began = self._clock()
        outputs: list[Output] = []
        try:
            for sequence in self._scheduler.admit():
                if sequence.reservation is not None:
                    self._counters.admitted(sequence)
                    reach("driver.open")
                    self._driver.open(sequence)
                if sequence.opened is None:
                    self._given_row(sequence, began)
            plan = self._scheduler.plan()
            # Without a plan nothing changes until a submission, a grant or the end of a row, which all clear this.
            self._stuck = plan is None and not self._inflight
            if plan is not None:
                # Before the submission: a driver that cannot overlap does all of the step's work in it.
                submitted = self._clock()
                reach("driver.submit")
                self._inflight.append((self._driver.submit(plan), submitted))
            if self._inflight and (plan is None or len(self._inflight) >= self._driver.depth):
                outputs = self._collect()
        except Exception as error:
            outputs = self._fault(error)
        self._counters.wall_seconds += self._clock() - began
        return outputs

    def abandon(self, error: EngineError) -> list[Output]:
        """End every open request with an error; steps in flight are dropped."""
        self._inflight.clear()
        return [self._failed(sequence, error) for sequence in tuple(self._sequences.values())]

    def stats(self) -> EngineStats:
        if not self._scheduler.running:
            self._counters.batch = 0
        return self._counters.stats(
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            blocks=self._kv.used,
            device_bytes=self._driver.device_bytes(),
        )

    def close(self) -> None:
        self._driver.close()

    def _given_row(self, sequence: Sequence, now: float) -> None:
        sequence.opened = now
        self._counters.waited((now - sequence.arrived) * 1000)
        if self.on_open is not None:
            self.on_open(sequence.request.id)

    def _collect(self) -> list[Output]:
        ticket, submitted = self._inflight.popleft()
        reach("driver.collect")
        plan, result = ticket.plan, self._driver.collect(ticket)
        # With two steps in flight, the later one starts when the earlier one is done.
        began, self._collected = max(submitted, self._collected), self._clock()
        if plan.score is None:  # which takes longer for its tokens
            self._scheduler.budget.measured(plan.prompt_tokens, (self._collected - began) * 1000)
        counters = self._counters
        counters.steps += 1
        counters.busy_seconds += self._collected - began
        counters.batch = plan.runs
        counters.prompt_tokens += plan.prompt_tokens
        self._publish(plan, result)
        outputs = self._committer.commit(plan, result, self._collected)
        for output in outputs:
            counters.completion_tokens += len(output.tokens)
            if output.finish is not None:
                del self._sequences[output.request_id]
                if output.finish == "error":
                    counters.errored += 1
                else:
                    counters.completed += 1
        self._faults = 0
        return outputs

    def _publish(self, plan: StepPlan, result: StepResult) -> None:
        """Keep the sampled tokens, and make findable the blocks that this step completed, unless it ran into numbers
        that are not finite. Before the commit, which may give the blocks back."""
        doubtful = [plan.sampling[n] for n in result.flags.nonzero()[0]]
        if plan.score is not None and result.score is not None and not result.score.finite:
            doubtful.append(plan.score.sequence)
        for sequence in doubtful:
            if not sequence.finished and sequence.reservation is not None:
                self._kv.retract(sequence.reservation)
        for sequence, positions in plan.fills:
            if not sequence.finished and sequence.reservation is not None:
                self._kv.publish(sequence.reservation, sequence.tokens, positions)
        for sequence, token in zip(plan.sampling, result.tokens.tolist(), strict=True):
            sequence.tokens.append(token)

    def _fault(self, error: Exception) -> list[Output]:
        """End what the failed step may have spoilt: everything that holds blocks, or held some when it failed.

        After an error of the device itself nothing that this process does on it can be trusted: that one is final.
        """
        self._faults += 1
        self._inflight.clear()
        fault = EngineFaultError(f"the engine failed on a step: {error}")
        if self._faults > 1 or isinstance(error, DeviceError):
            raise fault from error
        for sequence in self._sequences.values():
            # Held since this turn, and not told.
            if sequence.row >= 0 and sequence.reservation is None and sequence.opened is None:
                self._given_row(sequence, self._clock())
        spoilt = [sequence for sequence in self._sequences.values() if sequence.reservation is not None]
        return [self._failed(sequence, fault) for sequence in spoilt]

    def _failed(self, sequence: Sequence, error: EngineError) -> Output:
        self._counters.errored += 1
        output = Output(
            request_id=sequence.request.id,
            finish="error",
            prompt_tokens=sequence.prompt_length,
            cached_tokens=sequence.cached,
            cache_miss=sequence.cache_miss,
            times=sequence.times(self._clock()),
            error_code=error.code,
            error_message=str(error),
        )
        return self._end(sequence, output)

    def _end(self, sequence: Sequence, output: Output) -> Output:
        # A commit that failed half-way may have freed this one already.
        if not sequence.finished:
            self._scheduler.finish(sequence)
        self._committer.close(sequence)
        del self._sequences[sequence.request.id]
        self._stuck = False
        return output
