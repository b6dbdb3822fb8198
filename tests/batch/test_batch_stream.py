"""One request's outputs as an asyncio iterator, without an engine."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_batch.process.stream import Stream, merged
from poot_batch.request import Output, TokenLogprob

PART = st.tuples(st.lists(st.integers(0, 9), max_size=3), st.none() | st.text(max_size=3), st.booleans())


class Requests:
    """Notes what a stream asks for."""

    def __init__(self) -> None:
        self.granted: list[int] = []
        self.cancelled: list[int] = []

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)

    def grant(self, request_id: int, tokens: int) -> None:
        self.granted.append(tokens)


def plain(token: int) -> Output:
    return Output(request_id=1, tokens=(token,))


END = Output(request_id=1, finish="length", prompt_tokens=3)


@given(st.lists(PART, min_size=1, max_size=6), st.sampled_from([None, "stop", "error"]))
def test_merging_keeps_everything(parts: list[tuple[list[int], str | None, bool]], finish: str | None) -> None:
    outputs = []
    for index, (tokens, text, logged) in enumerate(parts):
        logprobs = tuple(TokenLogprob(token, -1.0) for token in tokens) if logged else None
        outputs.append(
            Output(
                request_id=1,
                tokens=tuple(tokens),
                text=text,
                logprobs=logprobs,
                prompt_logprobs=(TokenLogprob(index, -2.0),) if logged else None,
                cache_miss="not seen before" if index == 0 else None,
                finish=finish if index == len(parts) - 1 else None,
                prompt_tokens=7 if index in (0, len(parts) - 1) else 0,
                error_code="engine_fault" if finish == "error" and index == len(parts) - 1 else None,
            )
        )
    waiting = deque(outputs)
    whole = merged(waiting)
    assert not waiting
    assert whole.tokens == tuple(token for tokens, _, _ in parts for token in tokens)
    texts = [text for _, text, _ in parts if text is not None]
    assert whole.text == ("".join(texts) if texts else None)
    logged = [entry.token for output in outputs for entry in output.logprobs or ()]
    assert [entry.token for entry in whole.logprobs or ()] == logged
    scored = [entry.token for output in outputs for entry in output.prompt_logprobs or ()]
    assert [entry.token for entry in whole.prompt_logprobs or ()] == scored
    assert whole.cache_miss == "not seen before"
    assert (whole.logprobs is None) == all(output.logprobs is None for output in outputs)
    assert (whole.finish, whole.prompt_tokens) == (finish, 7)
    assert whole.error_code == ("engine_fault" if finish == "error" else None)


def test_what_waits_together_is_given_as_one() -> None:
    async def main() -> list[Output]:
        stream = Stream(1, 64, Requests())
        for token in range(5):
            stream.put(plain(token))
        stream.put(END)
        return [output async for output in stream]

    (output,) = asyncio.run(main())
    assert (output.tokens, output.finish) == ((0, 1, 2, 3, 4), "length")


def test_a_reader_that_is_cancelled_while_it_waits_may_come_back() -> None:
    async def main() -> list[Output]:
        stream = Stream(1, 64, Requests())

        async def read() -> list[Output]:
            return [output async for output in stream]

        reader = asyncio.create_task(read())
        await asyncio.sleep(0)
        stream.put(plain(4))
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        stream.put(END)
        given = await read()
        assert await read() == []
        return given

    given = asyncio.run(main())
    assert [token for output in given for token in output.tokens] == [4]
    assert given[-1].finish == "length"


def test_a_reader_that_breaks_off_misses_nothing_later() -> None:
    async def main() -> tuple[list[int], list[int]]:
        stream, early, late = Stream(1, 64, Requests()), [], []
        stream.put(plain(1))
        async for output in stream:
            early += output.tokens
            stream.put(plain(2))
            break
        stream.put(END)
        async for output in stream:
            late += output.tokens
        return early, late

    assert asyncio.run(main()) == ([1], [2])


def test_two_readers_both_end() -> None:
    async def main() -> list[list[Output]]:
        stream = Stream(1, 64, Requests())

        async def read() -> list[Output]:
            return [output async for output in stream]

        readers = [asyncio.create_task(read()) for _ in range(2)]
        await asyncio.sleep(0)
        stream.put(END)
        return await asyncio.wait_for(asyncio.gather(*readers), 5)

    assert sorted(map(len, asyncio.run(main()))) == [0, 1]


@pytest.mark.parametrize(
    ("credit", "grants"), [(64, [32, 32, 32]), (1, [1] * 100), (10, [5] * 20), (1000, [32, 32, 32])]
)
def test_credit_is_granted_as_tokens_are_taken(credit: int, grants: list[int]) -> None:
    async def main() -> Requests:
        requests = Requests()
        stream = Stream(1, credit, requests)
        iterator = aiter(stream)
        for token in range(100):
            stream.put(plain(token))
            await anext(iterator)
        stream.put(END)
        assert [output.finish async for output in iterator] == ["length"]
        return requests

    assert asyncio.run(main()).granted == grants


def test_nothing_is_granted_for_what_nobody_takes() -> None:
    async def main() -> Requests:
        requests = Requests()
        stream = Stream(1, 8, requests)
        for token in range(8):
            stream.put(plain(token))
        stream.cancel()
        return requests

    requests = asyncio.run(main())
    assert (requests.granted, requests.cancelled) == ([], [1])
