"""Commit: what a step's tokens mean for their requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from poot_batch.delivery.text import RowText
from poot_batch.errors import NonFiniteLogitsError, RequestError
from poot_batch.request import FinishReason, Output, TokenLogprob
from poot_batch.schedule import PromptRun, ScoreResult, Sequence, StepPlan, StepResult
from poot_models.text import Tokenizer


class Committer:
    """Turns step results into outputs. `finish(sequence)` is called once for each sequence that ends here.

    End tokens (of the model, and the request's stop_token_ids) end a row and are not delivered, but for their
    log-probability; with include_stop, stop_token_ids that are none of the model's are. Neither they nor stop strings
    end a row within its first min_tokens. The tokens of a sequence that ended while the step was in flight are dropped.

    Log-probabilities of a prompt go out chunk by chunk, before the row's first token; without any token to come, the
    last of them end the row.
    """

    def __init__(self, ends: frozenset[int], tokenizer: Tokenizer | None, finish: Callable[[Sequence], None]) -> None:
        self._ends, self._tokenizer, self._finish = ends, tokenizer, finish
        self._texts: dict[Sequence, RowText] = {}

    def open(self, sequence: Sequence) -> None:
        """Prepare for a sequence's tokens. Raises RequestError for stop strings when the engine has no tokenizer."""
        request = sequence.request
        sequence.stops = frozenset(request.stop_token_ids) | (frozenset() if request.ignore_eos else self._ends)
        if request.stop:
            if self._tokenizer is None:
                raise RequestError("this engine has no tokenizer, so it takes no stop strings", param="stop")
            self._texts[sequence] = RowText(request, self._tokenizer)

    def close(self, sequence: Sequence) -> None:
        """Forget a sequence that ended elsewhere."""
        self._texts.pop(sequence, None)

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Output]:
        """The outputs of a step that was collected `now`, on the clock of `Sequence.arrived`."""
        tokens, flags = result.tokens.tolist(), result.flags.tolist()
        outputs = []
        if plan.score is not None and not plan.score.sequence.finished:
            assert result.score is not None
            outputs.append(self._score(plan.score, result.score, now))
        for n, sequence in enumerate(plan.sampling):
            if sequence.finished:
                continue
            token, count = tokens[n], sequence.committed
            # Most rows of most steps: no first and no last token, nothing but the token to tell.
            if (
                0 < count < sequence.max_tokens - 1
                and not flags[n]
                and token not in sequence.stops
                and sequence not in self._texts
                and (result.chosen is None or sequence.request.sampling.logprobs is None)
            ):
                sequence.committed = count + 1
                outputs.append(Output(request_id=sequence.request.id, tokens=(token,)))
            else:
                outputs.append(self._commit(sequence, token, result, n, now))
        return outputs

    def _commit(self, sequence: Sequence, token: int, result: StepResult, n: int, now: float) -> Output:
        request, text = sequence.request, self._texts.get(sequence)
        if result.flags[n]:
            error = NonFiniteLogitsError("the model's logits for this request are not finite")
            return self._end(sequence, "error", now, error=error)
        sequence.committed += 1
        if sequence.committed == 1:
            sequence.answered = now
        top = request.sampling.logprobs
        entry = None if top is None else _logprob(result, n, token, top)
        stops = token in sequence.stops and sequence.committed > request.min_tokens
        if stops and (token in self._ends or not request.include_stop):
            return self._end(sequence, "stop", now, text=text.finish()[0] if text else None, end_logprob=entry)
        said, finish = self._advance(sequence, text, token, stops=stops)
        logprobs = None if entry is None else (entry,)
        if finish is not None:
            return self._end(sequence, finish, now, tokens=(token,), text=said, logprobs=logprobs)
        # Log-probabilities of the prompt came before, and with them what a first output says.
        first = sequence.committed == 1 and request.prompt_logprobs is None
        return Output(
            request_id=request.id,
            tokens=(token,),
            text=said,
            logprobs=logprobs,
            prompt_tokens=sequence.prompt_length if first else 0,
            cached_tokens=sequence.cached if first else 0,
            cache_miss=sequence.cache_miss if first else None,
        )

    def _score(self, run: PromptRun, score: ScoreResult, now: float) -> Output:
        """A chunk's log-probabilities, of the tokens that follow its positions. Nothing follows the prompt's last."""
        sequence = run.sequence
        top, length = sequence.request.prompt_logprobs, sequence.prompt_length
        assert top is not None
        tokens = sequence.request.prompt[run.first + 1 : run.first + run.count + 1]
        found = slice(len(tokens))
        chosen, ids, values = score.chosen[found], score.top_ids[found, :top], score.top_values[found, :top]
        if not (np.isfinite(chosen).all() and np.isfinite(values).all()):
            error = NonFiniteLogitsError("the model's log-probabilities of this prompt are not finite")
            return self._end(sequence, "error", now, error=error)
        entries = tuple(_entry(*each) for each in zip(tokens, chosen, ids, values, strict=True))
        if run.samples and not sequence.max_tokens:
            return self._end(sequence, "length", now, prompt_logprobs=entries)
        return Output(
            request_id=sequence.request.id,
            prompt_logprobs=entries,
            prompt_tokens=length if run.first == 0 else 0,
            cache_miss=sequence.cache_miss if run.first == 0 else None,
        )

    def _advance(
        self, sequence: Sequence, text: RowText | None, token: int, *, stops: bool
    ) -> tuple[str | None, FinishReason | None]:
        """Text of a row, and whether it ends, after one more token to deliver; `stops` if that ends it anyhow."""
        full = sequence.committed >= sequence.max_tokens
        if text is None:
            return None, "stop" if stops else "length" if full else None
        said, stopped = text.push(token, may_stop=sequence.committed > sequence.request.min_tokens)
        if not stopped and (stops or full):
            rest, stopped = text.finish()
            said += rest
        return said, "stop" if stops or stopped else "length" if full else None

    def _end(
        self,
        sequence: Sequence,
        finish: FinishReason,
        now: float,
        *,
        tokens: tuple[int, ...] = (),
        text: str | None = None,
        logprobs: tuple[TokenLogprob, ...] | None = None,
        prompt_logprobs: tuple[TokenLogprob, ...] | None = None,
        end_logprob: TokenLogprob | None = None,
        error: NonFiniteLogitsError | None = None,
    ) -> Output:
        self._finish(sequence)
        self.close(sequence)
        return Output(
            request_id=sequence.request.id,
            tokens=tokens,
            text=text,
            logprobs=logprobs,
            finish=finish,
            prompt_tokens=sequence.prompt_length,
            cached_tokens=sequence.cached,
            cache_miss=sequence.cache_miss,
            prompt_logprobs=prompt_logprobs,
            end_logprob=end_logprob,
            times=sequence.times(now),
            error_code=error.code if error else None,
            error_message=str(error) if error else None,
        )


def _logprob(result: StepResult, n: int, token: int, top: int) -> TokenLogprob:
    assert result.chosen is not None and result.top_ids is not None and result.top_values is not None
    return _entry(token, result.chosen[n], result.top_ids[n, :top], result.top_values[n, :top])


def _entry(token: int, chosen: np.float32, ids: npt.NDArray[np.int32], values: npt.NDArray[np.float32]) -> TokenLogprob:
    return TokenLogprob(token, float(chosen), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
