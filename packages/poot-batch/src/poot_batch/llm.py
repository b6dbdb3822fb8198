"""`LLM`: the engine inside a Python program."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from poot_batch.build import Progress
from poot_batch.errors import EngineDeadError, EngineFaultError, NonFiniteLogitsError, RequestError
from poot_batch.inputs import Message, Prompt, guarded, message_list, of_several, prompt_list, token_ids
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
from poot_batch.thread import Box, EngineThread
from poot_models.text import ChatTemplate, Detokenizer, TextModel


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to an answer. `finish` is set on the last one.

    `prompt_logprobs`, if asked for, are those of the prompt's next tokens; they come before the answer's first token.
    `cached_tokens` and `cache_miss` (see `Completion`) are set on the last one.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishReason | None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0
    cache_miss: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. The end token is not part of `tokens`, nor the prompt's first token of `prompt_logprobs`.

    `cached_tokens` of the prompt's came from the prefix cache; where that is less than its full blocks before the last
    token, `cache_miss` says why, for people.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishReason
    prompt_tokens: int
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0
    cache_miss: str | None = None


class LLM:
    """A model in this process, on the same loop as the server's, which runs on a thread of its own.

    `rows` and `max_seq` are wishes that the memory fit may lower; `info` says what was settled on. Without
    `prefix_cache` every prompt is computed whole. `default_max_tokens` is what a request gets that names no number
    (None: the rest of its row). Threads may share an LLM. Raises ModelError, ExecutorError or StartError at
    construction.

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
        prefix_cache: bool = True,
        default_max_tokens: int | None = None,
        chat_template: str | None = None,
        progress: Progress = lambda phase, done, total: None,
    ) -> None:
        config = EngineConfig(
            model=str(model),
            backend=backend,
            rows=rows,
            max_seq=max_seq,
            threads=threads,
            prefix_cache=prefix_cache,
            default_max_tokens=default_max_tokens,
        )
        self._engine = EngineThread(config, progress)
        # An LLM that is dropped without `close` ends its thread too.
        self._finalizer = weakref.finalize(self, self._engine.close)
        self._ids = itertools.count(1)
        self._template = self.text.chat_template
        if chat_template is not None:
            self._template = ChatTemplate(chat_template, special_tokens=self.text.special_tokens)

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def text(self) -> TextModel:
        """The model's tokenizer and chat template."""
        return self._engine.text

    def stats(self) -> EngineStats:
        """Counters and gauges as of the last step."""
        return self._engine.stats()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling: SamplingParams | None = None, **options: Any
    ) -> list[Completion]:
        """Complete one prompt or several (text, or token ids), in the order given, batched.

        `options` are fields of GenerateRequest: max_tokens, min_tokens, stop, stop_token_ids, include_stop,
        ignore_eos, prompt_logprobs, cache_salt. Raises RequestError, which says of which prompt it is (nothing is run
        then), EngineFaultError when the engine fails on a prompt.
        """
        given, requests = prompt_list(prompts), []
        for at, prompt in enumerate(given):
            with of_several(at, len(given)):
                requests.append(self._request(self._encode(prompt), sampling, options, continues=True))
        return self._complete(requests)

    def score(self, prompts: Prompt | Sequence[Prompt], *, top: int = 0) -> list[list[TokenLogprob]]:
        """How likely the model finds each prompt: log-probabilities of all its tokens but the first, given those
        before, with the `top` likeliest tokens in each place. Nothing is generated. Raises as `generate` does."""
        found = self.generate(prompts, prompt_logprobs=top, max_tokens=0)
        return [list(completion.prompt_logprobs) for completion in found]

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None, **options: Any) -> Iterator[Delta]:
        """Complete one prompt, delta by delta. The request is submitted by the first `next`; leaving the iterator
        cancels it."""
        return self._stream(self._request(self._encode(prompt), sampling, options, continues=True))

    def chat(self, messages: Sequence[Message], sampling: SamplingParams | None = None, **options: Any) -> Completion:
        """Answer a conversation through the model's chat template. A message has a "role" and a "content" (or
        "tool_calls"), and what else the template reads. Raises RequestError for what is none, TextError for what the
        template refuses."""
        return self._complete([self._request(self._render(messages), sampling, options, continues=False)])[0]

    def stream_chat(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None, **options: Any
    ) -> Iterator[Delta]:
        """`chat`, delta by delta, as `stream`."""
        return self._stream(self._request(self._render(messages), sampling, options, continues=False))

    def close(self) -> None:
        """End every open request and give the device back."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self.text.tokenizer.encode(prompt))
        return token_ids(prompt)

    def _render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        if self._template is None:
            reason = self.text.template_problem or "it has none"
            raise RequestError(f"the model has no usable chat template: {reason}; give LLM(chat_template=...)")
        tokenizer = self.text.tokenizer
        plain = [guarded(message, tokenizer.guard) for message in message_list(messages)]
        return tuple(tokenizer.encode(self._template.render(plain), parse_special=True))

    def _request(
        self, prompt: tuple[int, ...], sampling: SamplingParams | None, options: dict[str, Any], *, continues: bool
    ) -> GenerateRequest:
        known = {
            "max_tokens", "min_tokens", "stop", "stop_token_ids", "include_stop", "ignore_eos", "prompt_logprobs",
            "cache_salt",
        }  # fmt: skip
        unknown = sorted(set(options) - known)
        if unknown:
            raise TypeError(f"unknown option {unknown[0]!r}; options are {', '.join(sorted(known))}")
        stop = options.get("stop") or ()
        fields = {
            **options,
            # Any list of them is taken; what is none is refused with the rest.
            "stop": (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Iterable) else stop,
            "id": next(self._ids),
            "prompt": (),
            "sampling": sampling or SamplingParams(),
            "continues": continues,
        }
        try:
            request = msgspec.convert(msgspec.to_builtins(fields), GenerateRequest)
        except (TypeError, msgspec.ValidationError) as error:
            raise RequestError(str(error)) from error
        return msgspec.structs.replace(request, prompt=prompt)

    def _complete(self, requests: list[GenerateRequest]) -> list[Completion]:
        boxes = self._engine.submit(requests)
        try:
            return [
                _completion(request, list(self._deltas(request, box)))
                for request, box in zip(requests, boxes, strict=True)
            ]
        except BaseException:
            self._engine.cancel(requests)
            raise

    def _stream(self, request: GenerateRequest) -> Iterator[Delta]:
        (box,) = self._engine.submit([request])
        try:
            yield from self._deltas(request, box)
        except BaseException:
            self._engine.cancel([request])
            raise

    def _deltas(self, request: GenerateRequest, box: Box) -> Iterator[Delta]:
        detokenizer = None if request.stop else Detokenizer(self.text.tokenizer, continues=request.continues)
        while True:
            output = box.get()
            if output.finish == "error":
                raise _error_of(output)
            text = output.text or ""
            if detokenizer is not None:
                text = detokenizer.push(output.tokens) + (detokenizer.finish() if output.finish else "")
            ended = output.finish is not None
            yield Delta(
                text,
                output.tokens,
                output.logprobs or (),
                output.finish,
                output.prompt_logprobs or (),
                cached_tokens=output.cached_tokens if ended else 0,
                cache_miss=output.cache_miss if ended else None,
            )
            if ended:
                return


def _error_of(output: Output) -> Exception:
    classes = (NonFiniteLogitsError, EngineDeadError)
    kind = next((kind for kind in classes if kind.code == output.error_code), EngineFaultError)
    return kind(output.error_message or "the engine failed on this request")


def _completion(request: GenerateRequest, deltas: list[Delta]) -> Completion:
    last = deltas[-1]
    assert last.finish is not None
    return Completion(
        "".join(delta.text for delta in deltas),
        tuple(token for delta in deltas for token in delta.tokens),
        tuple(entry for delta in deltas for entry in delta.logprobs),
        last.finish,
        len(request.prompt),
        tuple(entry for delta in deltas for entry in delta.prompt_logprobs),
        last.cached_tokens,
        last.cache_miss,
    )
