"""Streamed and buffered answers from the same outputs, at every split of the tokens into outputs."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_batch.request import Output, TokenLogprob
from poot_serve.emit.answer import Asked, Heading
from poot_serve.emit.chat import ChatAnswer
from poot_serve.emit.completions import CompletionAnswer
from poot_serve.emit.echo import Echo
from poot_serve.emit.logprobs import finite, token_label
from poot_serve.emit.sse import event
from poot_serve.emit.transcript import Transcript
from poot_serve.errors import GenerationError, UnavailableError
from poot_serve.protocol.usage import Usage

HEADING = Heading("id-1", 5, "tiny", "fp")
steps = st.lists(st.lists(st.integers(0, 310), max_size=4), max_size=12)


def outputs(steps: list[list[int]], *, logprobs: bool = False) -> list[Output]:
    """One output a step, the last one with a finish reason; ids of 300 and more are outside the vocabulary."""
    made = [
        Output(
            request_id=1,
            tokens=tuple(step),
            logprobs=tuple(TokenLogprob(token, -1.0, ((token, -1.0), (5, -2.0))) for token in step)
            if logprobs
            else None,
        )
        for step in [*steps, []]
    ]
    made[-1] = msgspec.structs.replace(made[-1], finish="stop", prompt_tokens=3)
    return made


@given(steps=steps, logprobs=st.booleans(), chat=st.booleans())
def test_deltas_add_up_to_the_buffered_answer(text, steps, logprobs, chat):
    shape = ChatAnswer if chat else CompletionAnswer

    def fresh():
        answer = shape(HEADING, text.tokenizer, Asked(logprobs=logprobs))
        return answer, Transcript(text.tokenizer, engine_text=False, continues=not chat)

    answer, transcript = fresh()
    chunks = [
        msgspec.json.decode(event(chunk)[6:])["choices"][0]
        for output in outputs(steps, logprobs=logprobs)
        for chunk in answer.chunks(0, transcript.push(output))
    ]
    answer, transcript = fresh()
    pieces = [transcript.push(output) for output in outputs(steps, logprobs=logprobs)]
    written, _ = fresh()
    spelt, _ = fresh()
    for piece in pieces:
        assert written.events(0, piece) == b"".join(event(chunk) for chunk in spelt.chunks(0, piece))
    usage = Usage.of(transcript.prompt_tokens, transcript.completion_tokens, 0)
    whole = msgspec.json.decode(msgspec.json.encode(answer.whole([pieces], usage, None)))
    choice = whole["choices"][0]
    expected = text.tokenizer.decode([token for step in steps for token in step])
    if chat:
        assert (
            "".join(chunk["delta"].get("content", "") for chunk in chunks) == choice["message"]["content"] == expected
        )
        assert [chunk["delta"].get("role") for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    else:
        assert "".join(chunk["text"] for chunk in chunks) == choice["text"] == expected
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert whole["usage"]["completion_tokens"] == sum(map(len, steps)) and whole["usage"]["prompt_tokens"] == 3
    if not logprobs:
        assert choice["logprobs"] is None and all(chunk["logprobs"] is None for chunk in chunks)
        return
    for name in choice["logprobs"]:
        streamed = [item for chunk in chunks if chunk["logprobs"] for item in chunk["logprobs"][name]]
        assert streamed == choice["logprobs"][name]


def test_text_of_the_engine_is_taken_as_it_is(text):
    transcript = Transcript(text.tokenizer, engine_text=True, continues=False)
    given_texts = [Output(request_id=1, tokens=(40, 41), text="ab"), Output(request_id=1, tokens=(42,), finish="stop")]
    assert [transcript.push(output).text for output in given_texts] == ["ab", ""]
    assert transcript.completion_tokens == 3


@pytest.mark.parametrize("echoed", [False, True])
def test_the_end_tokens_entry_is_shown_behind_an_echo_alone(text, echoed):
    echo = Echo("ab", (40, 41)) if echoed else None
    transcript = Transcript(text.tokenizer, engine_text=False, continues=True, echo=echo)
    chosen, end = TokenLogprob(41, -2.0), TokenLogprob(2, -0.5)
    piece = transcript.push(Output(request_id=1, finish="stop", prompt_logprobs=(chosen,), end_logprob=end))
    assert piece.logprobs == ((chosen, end) if echoed else ())
    assert transcript.completion_tokens == 0


def test_a_character_that_never_ends_is_one_replacement_character(text):
    transcript = Transcript(text.tokenizer, engine_text=False, continues=False)
    first, second, *_ = text.tokenizer.encode("é", add_special=False)
    assert transcript.push(Output(request_id=1, tokens=(first,))).empty
    assert transcript.push(Output(request_id=1, tokens=(), finish="length")).text == "\ufffd"
    assert text.tokenizer.decode([first, second]) == "é"


def test_bad_endings(text):
    transcript = Transcript(text.tokenizer, engine_text=False, continues=False)
    with pytest.raises(GenerationError, match="boom") as caught:
        transcript.push(Output(request_id=1, finish="error", error_code="engine_dead", error_message="boom"))
    assert caught.value.engine_code == "engine_dead"
    with pytest.raises(UnavailableError):
        transcript.push(Output(request_id=1, finish="abort"))


@pytest.mark.parametrize(
    ("logprob", "shown"), [(-0.5, -0.5), (1e-9, 0.0), (-math.inf, -9999.0), (math.nan, -9999.0), (-1e5, -9999.0)]
)
def test_logprobs_are_numbers_json_has(logprob, shown):
    assert finite(logprob) == shown


def test_token_labels_are_distinct_for_distinct_bytes():
    assert token_label(b" the") == " the" and token_label("é".encode()) == "é"
    assert token_label(b"\xe2\x82") == "bytes:\\xe2\\x82" != token_label(b"\xe2\x83")
