"""`LLM` with the packaged model, and the numbers of its engine: batches, chunks, seeds, biases."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from poot_batch import LLM, RequestError, SamplingParams
from poot_batch.driver import ModelDriver, prepare_model
from poot_batch.engine import Engine
from poot_batch.errors import ContextLengthError, EngineDeadError, EngineFaultError, StartError
from poot_batch.kv import KvSpace
from poot_batch.llm import Completion
from poot_batch.process.start import start_engine
from poot_batch.process.stream import Stream
from poot_batch.request import EngineConfig, EngineInfo, GenerateRequest, Output
from poot_executor.devices import open_device
from poot_models import load

GREEDY = SamplingParams(temperature=0.0)
WITH_GAP = SamplingParams(temperature=0.0, logprobs=2)
ROWS, MAX_SEQ, LENGTH = 9, 192, 12
# Two tokens whose log-probabilities are closer than this may change places with the order of additions.
TIE = 0.05
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "Once upon a time there was a small dragon who",
    "1, 2, 3, 4,",
    "The quick brown fox jumps over the lazy dog. " * 4,
    "She opened the door and",
    "In mathematics, a prime number is",
]


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(smollm2_path, backend="cpu", rows=ROWS, max_seq=MAX_SEQ) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[Completion]:
    """Each prompt by itself."""
    return [llm.generate(prompt, WITH_GAP, max_tokens=LENGTH)[0] for prompt in PROMPTS]


@pytest.fixture(autouse=True)
def idle_afterwards(llm: LLM) -> Iterator[None]:
    yield
    stats = llm.stats()
    assert (stats.inflight, stats.queue_depth, stats.batch_size, stats.kv_blocks_used) == (0, 0, 0, 0)


def assert_same_greedy(reference: Completion, tokens: tuple[int, ...]) -> None:
    """Equal up to the first position where the reference's two best are a tie."""
    for index, (ours, theirs) in enumerate(zip(reference.tokens, tokens, strict=False)):
        if ours != theirs:
            best, second = reference.logprobs[index].top[:2]
            assert best[1] - second[1] < TIE, f"token {index}: {ours} and {theirs}"
            return
    assert len(tokens) == len(reference.tokens)


def test_greedy_text_is_the_same_in_a_batch(llm: LLM, alone: list[Completion]) -> None:
    together = llm.generate(PROMPTS, GREEDY, max_tokens=LENGTH)
    for one, many in zip(alone, together, strict=True):
        assert_same_greedy(one, many.tokens)
        assert many.prompt_tokens == one.prompt_tokens
    assert "Paris" in together[0].text


def test_greedy_text_is_the_same_in_small_chunks(
    smollm2_path: Path, info_of: Callable[..., EngineInfo], alone: list[Completion]
) -> None:
    model = load(smollm2_path)
    ends = tuple(sorted(model.text.tokenizer.eog_ids))
    prepared = prepare_model(model, open_device("cpu"), rows=8, max_seq=MAX_SEQ, ends=ends, step_tokens=11)
    shape = prepared.shape
    assert shape.tokens == 11
    kv = KvSpace(shape.block, prepared.fit.blocks, shape.tables)
    info = info_of(rows=8, max_seq=MAX_SEQ, vocab_size=model.vocab_size, eos_ids=ends)
    engine = Engine(ModelDriver(prepared), kv, info, None, capacity=shape.tokens)
    tokenizer = model.text.tokenizer
    said: dict[int, list[int]] = {}
    for index, prompt in enumerate(PROMPTS):
        said[index] = []
        engine.submit(
            GenerateRequest(id=index, prompt=tuple(tokenizer.encode(prompt)), sampling=GREEDY, max_tokens=LENGTH)
        )
    while engine.busy:
        for output in engine.step():
            said[output.request_id] += output.tokens
    for index, one in enumerate(alone):
        assert_same_greedy(one, tuple(said[index]))


def test_the_engine_process_says_the_same(smollm2_path: Path, llm: LLM, alone: list[Completion]) -> None:
    drawn = SamplingParams(temperature=0.8, seed=5)
    (expected,) = llm.generate(PROMPTS[1], drawn, max_tokens=LENGTH)
    encode = llm.text.tokenizer.encode

    async def read(stream: Stream) -> list[Output]:
        return [output async for output in stream]

    async def main() -> list[list[Output]]:
        engine = await start_engine(EngineConfig(model=str(smollm2_path), backend="cpu", rows=4, max_seq=MAX_SEQ))
        try:
            asked = [(PROMPTS[0], WITH_GAP), (PROMPTS[1], drawn), (PROMPTS[2], GREEDY)]
            streams = [
                engine.submit(
                    GenerateRequest(
                        id=engine.next_request_id(),
                        prompt=tuple(encode(prompt)),
                        sampling=sampling,
                        max_tokens=LENGTH,
                        stop=("never",),
                        continues=True,
                    )
                )
                for prompt, sampling in asked
            ]
            return list(await asyncio.gather(*map(read, streams)))
        finally:
            await engine.close()

    answers = asyncio.run(asyncio.wait_for(main(), 120))
    tokens = [tuple(token for output in outputs for token in output.tokens) for outputs in answers]
    assert_same_greedy(alone[0], tokens[0])
    assert_same_greedy(alone[2], tokens[2])
    assert tokens[1] == expected.tokens
    assert "".join(output.text or "" for output in answers[1]) == expected.text
    assert [entry.token for output in answers[0] for entry in output.logprobs or ()] == list(tokens[0])


def test_a_seed_gives_the_same_draws_alone_and_in_a_batch(llm: LLM) -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=1234)
    first, again = (llm.generate(PROMPTS[3], sampling, max_tokens=20)[0] for _ in range(2))
    assert first.tokens == again.tokens
    together = llm.generate(PROMPTS[:8], sampling, max_tokens=20)
    assert together[3].tokens == first.tokens
    other = llm.generate(PROMPTS[3], SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=99), max_tokens=20)
    assert other[0].tokens != first.tokens


def test_without_a_seed_draws_differ(llm: LLM) -> None:
    answers = llm.generate([PROMPTS[3]] * 4, SamplingParams(temperature=1.0), max_tokens=12)
    assert len({answer.tokens for answer in answers}) > 1


def test_top_k_one_is_greedy(llm: LLM, alone: list[Completion]) -> None:
    (drawn,) = llm.generate(PROMPTS[0], SamplingParams(temperature=1.0, top_k=1, seed=3), max_tokens=LENGTH)
    assert_same_greedy(alone[0], drawn.tokens)


def test_biases_force_and_ban_tokens(llm: LLM, alone: list[Completion]) -> None:
    (forced,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0.0, logit_bias=((100, 100.0),)), max_tokens=4)
    assert forced.tokens == (100,) * 4
    favourite = alone[0].tokens[0]
    (banned,) = llm.generate(
        PROMPTS[0], SamplingParams(temperature=0.0, logit_bias=((favourite, -100.0),)), max_tokens=LENGTH
    )
    assert favourite not in banned.tokens


def test_penalties_end_a_repetition(llm: LLM) -> None:
    prompt = "one one one one one one one one one"
    (plain,) = llm.generate(prompt, GREEDY, max_tokens=12)
    word = max(set(plain.tokens), key=plain.tokens.count)
    assert plain.tokens.count(word) > 5
    for sampling in (
        SamplingParams(temperature=0.0, frequency_penalty=2.0),
        SamplingParams(temperature=0.0, repetition_penalty=2.0),
    ):
        (penalised,) = llm.generate(prompt, sampling, max_tokens=12)
        assert penalised.tokens.count(word) < plain.tokens.count(word)


def test_min_tokens_suppress_the_end(llm: LLM) -> None:
    end = llm.info.eos_ids[0]
    eager = SamplingParams(temperature=0.0, logit_bias=((end, 100.0),))
    (ended,) = llm.generate(PROMPTS[0], eager, max_tokens=8)
    assert (ended.tokens, ended.finish) == ((), "stop")
    (late,) = llm.generate(PROMPTS[0], eager, max_tokens=8, min_tokens=3)
    assert (len(late.tokens), late.finish) == (3, "stop")
    (never,) = llm.generate(PROMPTS[0], eager, max_tokens=5, ignore_eos=True)
    assert (never.tokens, never.finish) == ((end,) * 5, "length")


def test_stop_strings_and_stop_tokens(llm: LLM, alone: list[Completion]) -> None:
    whole = alone[4]
    at = whole.text.index(",") if "," in whole.text else 2
    stop = whole.text[at : at + 3]
    (cut,) = llm.generate(PROMPTS[4], GREEDY, max_tokens=LENGTH, stop=stop)
    assert (cut.text, cut.finish) == (whole.text[: whole.text.index(stop)], "stop")
    (kept,) = llm.generate(PROMPTS[4], GREEDY, max_tokens=LENGTH, stop=[stop], include_stop=True)
    assert kept.text == cut.text + stop
    (ended,) = llm.generate(PROMPTS[4], GREEDY, max_tokens=LENGTH, stop_token_ids=[whole.tokens[3]])
    assert ended.tokens == whole.tokens[: whole.tokens.index(whole.tokens[3])]


def test_log_probabilities_are_ordered_and_agree_with_the_choice(alone: list[Completion]) -> None:
    for completion in alone:
        assert len(completion.logprobs) == len(completion.tokens)
        for token, entry in zip(completion.tokens, completion.logprobs, strict=True):
            (best, first), (_, second) = entry.top
            assert entry.token == token == best
            assert entry.logprob == pytest.approx(first, abs=1e-4)
            assert 0.0 >= first >= second


def test_a_scored_prompt_is_as_likely_as_when_it_was_generated(llm: LLM, alone: list[Completion]) -> None:
    """Prompt and answer scored together, over the border of a chunk and beside other rows."""
    whole = [(*llm.text.tokenizer.encode(prompt), *found.tokens) for prompt, found in zip(PROMPTS, alone, strict=True)]
    assert min(map(len, whole)) < 64 < 2 * max(map(len, whole))
    for tokens, scores, found in zip(whole, llm.score(whole, top=2), alone, strict=True):
        assert tuple(entry.token for entry in scores) == tokens[1:]
        answer = scores[len(scores) - LENGTH :]
        assert [entry.logprob for entry in answer] == pytest.approx([e.logprob for e in found.logprobs], abs=1e-3)
        for entry, generated in zip(answer, found.logprobs, strict=True):
            assert [value for _, value in entry.top] == pytest.approx([v for _, v in generated.top], abs=1e-3)


def test_an_answer_comes_with_its_prompts_scores(llm: LLM, alone: list[Completion]) -> None:
    (scores,) = llm.score(PROMPTS[0])
    (found,) = llm.generate(PROMPTS[0], GREEDY, max_tokens=LENGTH, prompt_logprobs=0)
    assert found.prompt_logprobs == tuple(scores)
    assert found.tokens == alone[0].tokens
    deltas = list(llm.stream(PROMPTS[0], GREEDY, max_tokens=LENGTH, prompt_logprobs=0))
    assert tuple(entry for delta in deltas for entry in delta.prompt_logprobs) == tuple(scores)
    assert deltas[0].prompt_logprobs
    assert "".join(delta.text for delta in deltas) == alone[0].text


def test_a_prompt_to_score_may_fill_a_row(llm: LLM) -> None:
    tokens = (llm.text.tokenizer.encode(PROMPTS[5]) * 9)[:MAX_SEQ]
    (scores,) = llm.score([tokens])
    assert [entry.token for entry in scores] == tokens[1:]
    # What follows the last position changes nothing before it.
    (shorter,) = llm.score([tokens[:-1]])
    assert [e.logprob for e in scores[:-1]] == pytest.approx([e.logprob for e in shorter], abs=1e-3)
    with pytest.raises(ContextLengthError):
        llm.score([[*tokens, 5]])


def test_a_completion_says_what_the_cache_saved(llm: LLM) -> None:
    tokens = [7, *range(100, 140)]
    first, again, apart = (
        llm.generate(tokens, GREEDY, max_tokens=2, cache_salt=salt)[0] for salt in ("one", "one", "two")
    )
    block = llm.info.kv_block_size
    assert (first.cached_tokens, first.cache_miss) == (0, "not seen before")
    assert (again.cached_tokens, again.cache_miss) == (len(tokens) // block * block, None)
    assert (apart.cached_tokens, apart.cache_miss) == (0, "not seen before")
    deltas = list(llm.stream(tokens, GREEDY, max_tokens=3, cache_salt="one"))
    assert [delta.cached_tokens for delta in deltas] == [0, 0, again.cached_tokens]


def test_what_an_llm_is_set_to(smollm2_path: Path) -> None:
    with LLM(smollm2_path, backend="null", rows=1, max_seq=64, prefix_cache=False, default_max_tokens=3) as llm:
        (found,) = llm.generate("x", GREEDY, ignore_eos=True)
    assert (len(found.tokens), found.finish, found.cache_miss) == (3, "length", "switched off")


def test_generate_takes_text_or_tokens_one_or_several(llm: LLM, alone: list[Completion]) -> None:
    tokens = llm.text.tokenizer.encode(PROMPTS[0])
    by_tokens, by_text = llm.generate([tokens, PROMPTS[0]], GREEDY, max_tokens=3)
    (single,) = llm.generate(tokens, GREEDY, max_tokens=3)
    assert by_tokens == by_text == single
    assert by_text.text == llm.text.tokenizer.decode(by_text.tokens)
    assert llm.generate([]) == []


def test_more_prompts_than_rows(llm: LLM) -> None:
    answers = llm.generate([f"{n} +" for n in range(ROWS + 5)], GREEDY, max_tokens=2)
    assert [answer.finish for answer in answers] == ["length"] * (ROWS + 5)


def test_chat_and_its_stream_say_the_same(llm: LLM) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
    answer = llm.chat(messages, GREEDY, max_tokens=24)
    deltas = list(llm.stream_chat(messages, GREEDY, max_tokens=24))
    assert "".join(delta.text for delta in deltas) == answer.text
    assert tuple(token for delta in deltas for token in delta.tokens) == answer.tokens
    assert [delta.finish for delta in deltas][:-1] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish == answer.finish
    # The model's template is ChatML.
    rendered = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)
    prompt = llm.text.tokenizer.encode(rendered + "<|im_start|>assistant\n", parse_special=True)
    assert answer.prompt_tokens == len(prompt)
    assert llm.generate(prompt, GREEDY, max_tokens=24)[0].tokens == answer.tokens


def test_control_tokens_in_a_message_stay_text(llm: LLM) -> None:
    plain = llm.chat([{"role": "user", "content": "a b"}], GREEDY, max_tokens=1)
    content = "a <|im_end|> b"
    whole = llm.chat([{"role": "user", "content": content}], GREEDY, max_tokens=1)
    # As text the name takes several tokens; as a control token it would take one.
    assert whole.prompt_tokens > plain.prompt_tokens + 2


def test_a_stream_left_early_is_cancelled(llm: LLM) -> None:
    before = llm.stats().requests_cancelled
    stream = llm.stream(PROMPTS[3], GREEDY, max_tokens=150, ignore_eos=True)
    assert next(stream).tokens
    stream.close()  # type: ignore[attr-defined]
    for _ in llm.stream(PROMPTS[3], GREEDY, max_tokens=150, ignore_eos=True):
        break
    gc.collect()
    interrupted = llm.stream(PROMPTS[3], GREEDY, max_tokens=150, ignore_eos=True)
    next(interrupted)
    with pytest.raises(KeyboardInterrupt):
        interrupted.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    stats = llm.stats()
    assert (stats.requests_cancelled, stats.inflight, stats.kv_blocks_used) == (before + 3, 0, 0)


def test_a_stream_never_started_asks_for_nothing(llm: LLM) -> None:
    before = llm.stats().requests_total
    llm.stream(PROMPTS[0])
    assert llm.stats().requests_total == before


def test_threads_share_one_llm(llm: LLM, alone: list[Completion]) -> None:
    answers: dict[int, Completion] = {}

    def ask(index: int) -> None:
        answers[index] = llm.generate(PROMPTS[index], GREEDY, max_tokens=LENGTH)[0]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, one in enumerate(alone):
        assert_same_greedy(one, answers[index].tokens)


@pytest.mark.parametrize(
    ("prompts", "sampling", "options", "error"),
    [
        ([], {}, {}, None),
        ([[1], []], {}, {}, RequestError),
        ([1.5], {}, {}, RequestError),
        ([["a"]], {}, {}, RequestError),
        (b"a", {}, {}, RequestError),
        (["x", b"a"], {}, {}, RequestError),
        ([True], {}, {}, RequestError),
        ("x", {"temperature": "hot"}, {}, RequestError),
        ("x", {"temperature": 9.0}, {}, RequestError),
        ("x", {"logit_bias": {5: 1.0}}, {}, RequestError),
        ("x", {"seed": 2**64}, {}, RequestError),
        ("x", {"top_k": 1.5}, {}, RequestError),
        ("x", {}, {"max_tokens": "5"}, RequestError),
        ("x", {}, {"max_tokens": 0}, RequestError),
        ("x", {}, {"max_tokens": 10**9}, ContextLengthError),
        ("x", {}, {"max_tokens": 10**30}, RequestError),
        ("x", {}, {"stop": [5]}, RequestError),
        ("x", {}, {"stop_token_ids": [10**6]}, RequestError),
        ("x", {}, {"maxtokens": 5}, TypeError),
        (["fine", [1] * 1000], {}, {}, ContextLengthError),
        (None, {}, {}, RequestError),
        (5, {}, {}, RequestError),
        ("x", {}, {"cache_salt": 5}, RequestError),
    ],
)
def test_bad_requests_are_refused_and_leave_nothing(
    llm: LLM, prompts: object, sampling: dict[str, object], options: dict[str, object], error: type[Exception] | None
) -> None:
    before = llm.stats().requests_total
    if error is None:
        assert llm.generate(prompts, SamplingParams(**sampling), **options) == []
    else:
        with pytest.raises(error):
            llm.generate(prompts, SamplingParams(**sampling), **options)
    assert llm.stats().requests_total == before


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ("hi", "list of messages"),
        ([], "list of messages"),
        (None, "list of messages"),
        ({"role": "user", "content": "hi"}, "list of messages"),
        (["hi"], "message 0 must be a mapping"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "message 1 has no role"),
        ([{"role": 5, "content": "a"}], "message 0 has no role"),
        ([{"role": "user"}], "message 0 has no content"),
        ([{"role": "user", "content": 5}], "message 0 has a content that is no text, but int"),
    ],
)
def test_what_is_no_conversation_is_refused(llm: LLM, messages: object, told: str) -> None:
    for call in (llm.chat, llm.stream_chat):
        with pytest.raises(RequestError, match=told) as raised:
            call(messages)
        assert raised.value.param == "messages"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([], "prompt 2: "),
        ([10**6], "prompt 2: "),
        ([1] * 100_000, "prompt 2: "),
        (b"a", "prompt 2: a prompt is text or a sequence of token ids: bytes must be decoded first"),
        ([1, True], "prompt 2: a prompt is text or a sequence of token ids: a bool is no token id"),
        (1.5, "prompt 2: a prompt is text or a sequence of token ids: "),
    ],
)
def test_which_of_several_prompts_is_wrong(llm: LLM, wrong: object, told: str) -> None:
    with pytest.raises(RequestError) as alone:
        llm.generate([wrong], max_tokens=5)
    with pytest.raises(RequestError) as raised:
        llm.generate(["x", [1, 2], wrong, "y"], max_tokens=5)
    assert str(raised.value).startswith(told)
    assert str(raised.value) == f"prompt 2: {alone.value}"
    assert (type(raised.value), raised.value.param) == (type(alone.value), alone.value.param)


@pytest.mark.parametrize("prompts", [None, 5, [None], [1.5], {"a": 1}, {"a", "b"}])
def test_what_is_no_prompt_is_refused_in_type(llm: LLM, prompts: object) -> None:
    for call in (llm.score, llm.generate):
        with pytest.raises(RequestError) as raised:
            call(prompts)
        assert raised.value.param == "prompt"


@pytest.mark.parametrize("stop", [5, [5], b"x"])
def test_a_stop_that_is_no_text_is_refused_in_type(llm: LLM, stop: object) -> None:
    with pytest.raises(RequestError):
        llm.generate("x", stop=stop, max_tokens=1)


def test_a_closed_llm(smollm2_path: Path) -> None:
    llm = LLM(smollm2_path, backend="null", rows=1, max_seq=64)
    stream = llm.stream("x", GREEDY, ignore_eos=True)
    next(stream)
    reader: list[str | None] = []
    thread = threading.Thread(target=lambda: reader.extend(c.finish for c in llm.generate("y", GREEDY)))
    thread.start()
    thread.join()
    assert reader == ["stop"]
    llm.close()
    llm.close()
    for call in (llm.stats, lambda: llm.generate("x"), lambda: next(llm.stream("x"))):
        with pytest.raises(EngineDeadError, match="closed"):
            call()


def test_an_llm_that_is_dropped_ends_its_thread(smollm2_path: Path) -> None:
    names = [thread.name for thread in threading.enumerate()]
    llm = LLM(smollm2_path, backend="null", rows=1, max_seq=64)
    assert len(threading.enumerate()) == len(names) + 1
    del llm
    gc.collect()
    assert [thread.name for thread in threading.enumerate()] == names


def test_an_llm_that_cannot_start_leaves_no_thread(smollm2_path: Path) -> None:
    before = threading.active_count()
    for rows in (0, "4", 2.5, True):
        with pytest.raises(StartError, match="rows"):
            LLM(smollm2_path, rows=rows)
    assert threading.active_count() <= before


def test_an_engine_that_fails_tells_those_who_wait(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ModelDriver, plan: object) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(ModelDriver, "submit", broken)
    with LLM(smollm2_path, backend="null", rows=1, max_seq=64) as llm:
        # The first fault spares those who wait for a row; the second ends the engine.
        with pytest.raises(EngineFaultError, match="no device"):
            llm.generate(["a", "b", "c"], GREEDY)
        for _ in range(2):
            with pytest.raises(EngineFaultError):
                llm.generate("a", GREEDY)
