"""`LLM`: the engine inside a Python program."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from poot_batch.build import Progress, build_engine
from poot_batch.errors import EngineDeadError, EngineError, EngineFaultError, RequestError
from poot_batch.request import (
    EngineConfig,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerateRequest,
    Output,
    SamplingParams,
    TokenLogprob,
)
from poot_models.text import ChatTemplate, Detokenizer, TextModel, open_text

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to an answer. `finish` is set on the last one."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. The end token is not part of `tokens`."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishReason
    prompt_tokens: int


class LLM:
    """A model in this process, on the same loop as the server's.

    `rows` and `max_seq` are wishes that the memory fit may lower; `info` says what was settled on. Threads may share
    an LLM: whoever waits for an answer runs the loop for all. Raises ModelError or ExecutorError at construction.

    >>> with LLM("model.gguf") as llm:  # doctest: +SKIP
    ...     print(llm.chat([{"role": "user", "content": "Hello"}], max_tokens=32).text)
    """

    def __init__(
        self,
        model: str | Path,
        *,
        backend: str = "auto",
        rows: int = 4,
        max_seq: int = 4096,
        threads: int | None = None,
        chat_template: str | None = None,
        progress: Progress = lambda phase, done, total: None,
    ) -> None:
        config = EngineConfig(model=str(model), backend=backend, rows=rows, max_seq=max_seq, threads=threads)
        self._engine = build_engine(config, progress)
        self.text: TextModel = open_text(model)
        self._template = self.text.chat_template
        if chat_template is not None:
            self._template = ChatTemplate(chat_template, special_tokens=self.text.special_tokens)
        self._lock = threading.Lock()
        self._boxes: dict[int, deque[Output]] = {}
        self._last_id = 0
        self._death: EngineError | None = None

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def stats(self) -> EngineStats:
        """Counters and gauges as of the last step."""
        with self._lock:
            return self._engine.stats()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling: SamplingParams | None = None, **options: Any
    ) -> list[Completion]:
        """Complete one prompt or several (text, or token ids), in the order given, batched.

        `options` are fields of GenerateRequest: max_tokens, min_tokens, stop, stop_token_ids, ignore_eos.
        Raises RequestError (nothing is run then), EngineFaultError when the engine fails on a prompt.
        """
        requests = [
            self._request(self._encode(prompt), sampling, options, continues=True) for prompt in _prompts(prompts)
        ]
        self._submit(requests)
        try:
            return [_complete(request, list(self._deltas(request))) for request in requests]
        finally:
            self._forget(requests)

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None, **options: Any) -> Iterator[Delta]:
        """Complete one prompt, delta by delta. Leaving the iterator cancels the request."""
        return self._stream(self._request(self._encode(prompt), sampling, options, continues=True))

    def chat(self, messages: Sequence[Message], sampling: SamplingParams | None = None, **options: Any) -> Completion:
        """Answer a conversation through the model's chat template. Raises TextError for what the template refuses."""
        request = self._request(self._render(messages), sampling, options, continues=False)
        self._submit([request])
        try:
            return _complete(request, list(self._deltas(request)))
        finally:
            self._forget([request])

    def stream_chat(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None, **options: Any
    ) -> Iterator[Delta]:
        """`chat`, delta by delta. Leaving the iterator cancels the request."""
        return self._stream(self._request(self._render(messages), sampling, options, continues=False))

    def close(self) -> None:
        """End every open request and give the device back."""
        with self._lock:
            if self._death is None:
                self._death = EngineDeadError("this LLM is closed")
                self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self.text.tokenizer.encode(prompt))
        return tuple(prompt)

    def _render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        if self._template is None:
            reason = self.text.template_problem or "it has none"
            raise RequestError(f"the model has no usable chat template: {reason}; give LLM(chat_template=...)")
        tokenizer = self.text.tokenizer
        guarded = [
            {key: tokenizer.guard(value) if isinstance(value, str) else value for key, value in message.items()}
            for message in messages
        ]
        return tuple(tokenizer.encode(self._template.render(guarded), parse_special=True))

    def _request(
        self, prompt: tuple[int, ...], sampling: SamplingParams | None, options: dict[str, Any], *, continues: bool
    ) -> GenerateRequest:
        known = {"max_tokens", "min_tokens", "stop", "stop_token_ids", "include_stop", "ignore_eos"}
        unknown = sorted(set(options) - known)
        if unknown:
            raise TypeError(f"unknown option {unknown[0]!r}; options are {', '.join(sorted(known))}")
        stop = options.get("stop") or ()
        with self._lock:
            self._last_id += 1
            number = self._last_id
        return GenerateRequest(
            id=number,
            prompt=prompt,
            sampling=sampling or SamplingParams(),
            continues=continues,
            **{**options, "stop": (stop,) if isinstance(stop, str) else tuple(stop)},
        )

    def _submit(self, requests: list[GenerateRequest]) -> None:
        """All of them, or none."""
        with self._lock:
            if self._death is not None:
                raise self._death
            for index, request in enumerate(requests):
                try:
                    self._engine.submit(request)
                except RequestError:
                    for earlier in requests[:index]:
                        self._engine.cancel(earlier.id)
                        del self._boxes[earlier.id]
                    raise
                self._boxes[request.id] = deque()

    def _forget(self, requests: list[GenerateRequest]) -> None:
        """Cancel what has not ended and drop what nobody will read."""
        with self._lock:
            for request in requests:
                if self._boxes.pop(request.id, None) is not None and self._death is None:
                    self._engine.cancel(request.id)

    def _stream(self, request: GenerateRequest) -> Iterator[Delta]:
        self._submit([request])
        try:
            yield from self._deltas(request)
        finally:
            self._forget([request])

    def _deltas(self, request: GenerateRequest) -> Iterator[Delta]:
        detokenizer = None if request.stop else Detokenizer(self.text.tokenizer, continues=request.continues)
        while True:
            output = self._next(request.id)
            if output.finish == "error":
                raise EngineFaultError(output.error_message or "the engine failed on this request")
            text = output.text or ""
            if detokenizer is not None:
                text = detokenizer.push(output.tokens) + (detokenizer.finish() if output.finish else "")
            yield Delta(text, output.tokens, output.logprobs or (), output.finish)
            if output.finish is not None:
                return

    def _next(self, request_id: int) -> Output:
        """The next output of a request, running the loop until there is one."""
        while True:
            with self._lock:
                box = self._boxes.get(request_id)
                if box:
                    return box.popleft()
                if box is None or self._death is not None:
                    raise self._death or EngineDeadError("the request is no longer open")
                try:
                    outputs = self._engine.step()
                except EngineError as error:
                    self._death = error
                    outputs = self._engine.abandon(error)
                for output in outputs:
                    if output.request_id in self._boxes:
                        self._boxes[output.request_id].append(output)


def _prompts(given: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several as a list: a sequence of whole numbers is one."""
    if isinstance(given, str):
        return [given]
    items: list[Any] = list(given)
    if items and all(isinstance(item, int) for item in items):
        return [items]
    return items


def _complete(request: GenerateRequest, deltas: list[Delta]) -> Completion:
    last = deltas[-1].finish
    assert last is not None
    return Completion(
        "".join(delta.text for delta in deltas),
        tuple(token for delta in deltas for token in delta.tokens),
        tuple(entry for delta in deltas for entry in delta.logprobs),
        last,
        len(request.prompt),
    )
