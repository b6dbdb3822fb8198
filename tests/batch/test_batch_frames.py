"""Frames: round trips, cutting a byte stream, what is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_batch.process import frames
from poot_batch.request import EngineConfig, GenerateRequest, Output, SamplingParams, TokenLogprob
from poot_batch.request.info import EngineInfo, EngineStats, Histogram

INT32 = st.integers(0, 2**31 - 1)
REAL = st.floats(allow_nan=False, width=32)
TEXT = st.text(max_size=20)
SAMPLING = st.builds(
    SamplingParams,
    temperature=REAL,
    top_k=INT32,
    logit_bias=st.lists(st.tuples(INT32, REAL), max_size=4).map(tuple),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    logprobs=st.none() | st.integers(0, 20),
)
REQUEST = st.builds(
    GenerateRequest,
    id=st.integers(0, 2**63 - 1),
    prompt=st.lists(INT32, max_size=30).map(tuple),
    sampling=SAMPLING,
    max_tokens=st.none() | INT32,
    stop=st.lists(TEXT, max_size=3).map(tuple),
    stop_token_ids=st.lists(INT32, max_size=3).map(tuple),
    include_stop=st.booleans(),
    continues=st.booleans(),
    ignore_eos=st.booleans(),
    credit=st.none() | INT32,
    prompt_logprobs=st.none() | st.integers(0, 20),
    fork_of=st.none() | INT32,
    cache_salt=st.none() | TEXT,
)
LOGPROB = st.builds(TokenLogprob, INT32, REAL, st.lists(st.tuples(INT32, REAL), max_size=3).map(tuple))
OUTPUT = st.builds(
    Output,
    request_id=st.integers(0, 2**63 - 1),
    tokens=st.lists(INT32, max_size=2).map(tuple),
    text=st.none() | TEXT,
    logprobs=st.none() | st.lists(LOGPROB, max_size=2).map(tuple),
    finish=st.none() | st.sampled_from(["stop", "length", "error", "abort"]),
    prompt_tokens=st.just(0) | INT32,
    cached_tokens=st.just(0) | INT32,
    cache_miss=st.none() | TEXT,
    prompt_logprobs=st.none() | st.lists(LOGPROB, max_size=2).map(tuple),
    error_code=st.none() | TEXT,
    error_message=st.none() | TEXT,
)
STATS = st.builds(
    EngineStats,
    requests_total=INT32,
    requests_completed=INT32,
    step_wall_seconds=REAL,
    step_device_seconds=st.none() | REAL,
    queue_wait_ms=st.none() | st.builds(Histogram, st.lists(INT32, max_size=5).map(tuple), REAL, INT32),
)
COUNTS = [field.name for field in msgspec.structs.fields(EngineInfo) if field.type is int]
INFO = st.builds(
    EngineInfo,
    eos_ids=st.lists(INT32, max_size=3).map(tuple),
    start_seconds=st.dictionaries(TEXT, REAL, max_size=2),
    report=st.lists(TEXT, max_size=2).map(tuple),
    **dict.fromkeys(COUNTS, st.integers(0, 2**63)),
)
TO_ENGINE = st.one_of(
    st.builds(
        frames.Start,
        st.builds(EngineConfig, rows=INT32, max_seq=INT32, threads=st.none() | INT32, prefix_cache=st.booleans()),
    ),
    REQUEST.map(frames.pack_request),
    st.builds(frames.Cancel, INT32),
    st.builds(frames.Grant, INT32, INT32),
    st.builds(frames.AskStats, INT32),
    st.just(frames.Shutdown()),
)
FROM_ENGINE = st.one_of(
    st.builds(frames.Progress, TEXT, INT32, INT32),
    st.builds(frames.Ready, INFO),
    st.builds(frames.Failed, TEXT, TEXT),
    st.lists(OUTPUT, max_size=5).map(frames.pack_outputs),
    st.builds(frames.Stats, INT32, STATS),
)


def payload_of(data: bytes) -> bytes:
    (payload,) = frames.FrameReader().feed(data)
    return payload


@given(TO_ENGINE)
def test_every_frame_to_the_engine_comes_back(frame: frames.ToEngine) -> None:
    assert frames.decode_to_engine(payload_of(frames.encode(frame))) == frame


@given(FROM_ENGINE)
def test_every_frame_from_the_engine_comes_back(frame: frames.FromEngine) -> None:
    assert frames.decode_from_engine(payload_of(frames.encode(frame))) == frame


@given(REQUEST)
def test_a_request_comes_back(request: GenerateRequest) -> None:
    frame = frames.decode_to_engine(payload_of(frames.encode(frames.pack_request(request))))
    assert isinstance(frame, frames.Generate)
    assert frame.request.prompt == ()
    assert frames.unpack_request(frame) == request


def test_a_prompt_that_was_sent_just_before_is_not_sent_again() -> None:
    first = GenerateRequest(id=1, prompt=tuple(range(4000)))
    fork = msgspec.structs.replace(first, id=2, fork_of=1)
    data = frames.encode(frames.pack_request(fork, first.prompt))
    assert len(data) < 100
    frame = frames.decode_to_engine(payload_of(data))
    assert isinstance(frame, frames.Generate)
    assert frames.unpack_request(frame, first.prompt) == fork
    other = GenerateRequest(id=3, prompt=(7, 8))
    assert frames.unpack_request(frames.pack_request(other, first.prompt), first.prompt) == other


@given(st.lists(OUTPUT, max_size=8), st.integers(1, 3))
def test_a_steps_outputs_come_back(outputs: list[Output], requests: int) -> None:
    # Some requests have several outputs, whose order stays.
    outputs = [msgspec.structs.replace(o, request_id=n % requests) for n, o in enumerate(outputs)]
    frame = frames.pack_outputs(outputs)
    assert sorted(frames.unpack_outputs(frame), key=lambda o: o.request_id) == sorted(
        outputs, key=lambda o: o.request_id
    )


def test_an_output_of_one_token_takes_twelve_bytes() -> None:
    frame = frames.pack_outputs([Output(request_id=n, tokens=(n,)) for n in range(100)])
    assert (len(frame.ids), len(frame.tokens), frame.outputs) == (800, 400, ())


def test_a_stream_is_cut_the_same_wherever_it_is_split() -> None:
    given_ = [frames.Cancel(1), frames.pack_request(GenerateRequest(id=2, prompt=(5, 6))), frames.Shutdown()]
    data = b"".join(map(frames.encode, given_))
    for split in range(len(data) + 1):
        reader = frames.FrameReader()
        payloads = reader.feed(data[:split]) + reader.feed(data[split:])
        assert [frames.decode_to_engine(payload) for payload in payloads] == given_
    reader = frames.FrameReader()
    single = [payload for n in range(len(data)) for payload in reader.feed(data[n : n + 1])]
    assert [frames.decode_to_engine(payload) for payload in single] == given_


@given(st.integers(frames.MAX_FRAME + 1, 2**32 - 1))
def test_an_oversize_length_is_refused_before_its_bytes_come(length: int) -> None:
    with pytest.raises(ValueError, match=f"a frame of {length} bytes"):
        frames.FrameReader().feed(frames.HEADER.pack(length))


@given(st.binary(max_size=200))
def test_nonsense_is_no_frame(payload: bytes) -> None:
    for decode in (frames.decode_to_engine, frames.decode_from_engine):
        try:
            frame = decode(payload)
        except msgspec.MsgspecError:
            continue
        assert isinstance(frame, msgspec.Struct)


def test_arrays_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError):
        frames.unpack_outputs(frames.Step(b"\0" * 16, b"\0" * 4))
    with pytest.raises(ValueError):
        frames.unpack_outputs(frames.Step(b"\0" * 7, b"\0" * 4))
