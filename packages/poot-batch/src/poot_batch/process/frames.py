"""Frames between a server and its engine process: msgpack of tagged structs, each behind its length.

Token ids travel as little-endian int32 bytes; plain outputs of a step as arrays, one frame a step.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import msgspec
import numpy as np

from poot_batch.request import EngineConfig, EngineInfo, EngineStats, GenerateRequest, Output

HEADER = struct.Struct("<I")
# No frame is near this: a length above it means that the peer is not an engine.
MAX_FRAME = 64 * 2**20


class Start(msgspec.Struct, frozen=True, tag="start"):
    config: EngineConfig


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """A request whose prompt is empty; `prompt` holds the token ids. None: they are those of the Generate before."""

    request: GenerateRequest
    prompt: bytes | None


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    request_id: int


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    request_id: int
    tokens: int


class AskStats(msgspec.Struct, frozen=True, tag="ask_stats"):
    serial: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Exit. Requests that are still open get nothing more: the client ends their streams itself."""


ToEngine: TypeAlias = Start | Generate | Cancel | Grant | AskStats | Shutdown


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    phase: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine did not start, or gives up. `code` is that of the error raised inside."""

    code: str
    message: str


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The request waits no longer: it has a row. Sent before the step that it runs in, which may take long."""

    request_id: int


class Step(msgspec.Struct, frozen=True, tag="step"):
    """What one step delivers: a token for each of `ids` (int64) in `tokens` (int32), all else in `outputs`."""

    ids: bytes
    tokens: bytes
    outputs: tuple[Output, ...] = ()


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    serial: int
    stats: EngineStats


FromEngine: TypeAlias = Progress | Ready | Failed | Opened | Step | Stats

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(frame: ToEngine | FromEngine) -> bytes:
    payload = _encoder.encode(frame)
    return HEADER.pack(len(payload)) + payload


def decode_to_engine(payload: bytes | memoryview) -> ToEngine:
    return _to_engine.decode(payload)


def decode_from_engine(payload: bytes | memoryview) -> FromEngine:
    return _from_engine.decode(payload)


def pack_request(request: GenerateRequest, before: tuple[int, ...] | None = None) -> Generate:
    """`before` is the prompt of the request sent before this one: forks share it, and it is not sent again."""
    tokens = None if request.prompt is before else np.array(request.prompt, dtype="<i4").tobytes()
    return Generate(msgspec.structs.replace(request, prompt=()), tokens)


def unpack_request(frame: Generate, before: tuple[int, ...] = ()) -> GenerateRequest:
    """`before` is the prompt of the request that came before this one."""
    prompt = before if frame.prompt is None else tuple(np.frombuffer(frame.prompt, dtype="<i4").tolist())
    return msgspec.structs.replace(frame.request, prompt=prompt)


def pack_outputs(outputs: list[Output]) -> Step:
    """Outputs that say no more than one token go into the arrays, which are read first: one that follows another of its
    request does not."""
    ids: list[int] = []
    tokens: list[int] = []
    rest: list[Output] = []
    told: set[int] = set()
    for output in outputs:
        if _is_plain(output) and output.request_id not in told:
            ids.append(output.request_id)
            tokens.append(output.tokens[0])
        else:
            rest.append(output)
            told.add(output.request_id)
    return Step(np.array(ids, dtype="<i8").tobytes(), np.array(tokens, dtype="<i4").tobytes(), tuple(rest))


def unpack_outputs(frame: Step) -> list[Output]:
    ids = np.frombuffer(frame.ids, dtype="<i8").tolist()
    tokens = np.frombuffer(frame.tokens, dtype="<i4").tolist()
    plain = [Output(request_id=i, tokens=(token,)) for i, token in zip(ids, tokens, strict=True)]
    return [*plain, *frame.outputs]


def _is_plain(output: Output) -> bool:
    return (
        output.finish is None
        and output.text is None
        and output.logprobs is None
        and output.prompt_logprobs is None
        and len(output.tokens) == 1
        and output.prompt_tokens == 0
        and output.cached_tokens == 0
        and output.cache_miss is None
        and output.error_code is None
        and output.error_message is None
    )


class FrameReader:
    """Cuts a byte stream into payloads. Raises ValueError for a length above MAX_FRAME."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._data += data
        payloads, at = [], 0
        while len(self._data) - at >= HEADER.size:
            (length,) = HEADER.unpack_from(self._data, at)
            if length > MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            if len(self._data) - at - HEADER.size < length:
                break
            at += HEADER.size
            payloads.append(bytes(self._data[at : at + length]))
            at += length
        del self._data[:at]
        return payloads
