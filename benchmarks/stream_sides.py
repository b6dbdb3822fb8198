"""The two sides that serve.py compares, each of which runs rounds of requests: an engine in-process, and a server."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import psutil
from live_server import LiveServer
from startup import COMMAND
from stream_load import READY, Ask, Told

from poot_batch.request import EngineConfig, EngineInfo

CLIENTS_PER_PROCESS = 32
# A chat's prompt is its message: so its ids are known.
TEMPLATE = "{{ messages[0].content }}"
ENGINE, LOAD = (str(Path(__file__).with_name(name)) for name in ("stream_engine.py", "stream_load.py"))

Asks = Sequence[Sequence[Ask]]  # of every client


@dataclass(frozen=True)
class Round:
    """What came of some requests. `rate`: tokens a second, from the first request to the end of the last answer.
    `first`: median seconds to a first token. `cores`: what each process used, by its name."""

    rate: float
    first: float
    events_a_token: float
    cores: Mapping[str, float]
    faults: Sequence[str]

    @classmethod
    def of(cls, parts: Sequence[Told], cores: Callable[[float], Mapping[str, float]]) -> Round:
        """Of what processes did together, and the cores over so many seconds."""
        seconds = max(told.ended for told in parts) - min(told.began for told in parts)
        tokens, events = sum(told.tokens for told in parts), sum(told.events for told in parts)
        firsts = [first for told in parts for first in told.firsts]
        return cls(
            tokens / seconds,
            statistics.median(firsts) if firsts else float("nan"),
            events / max(tokens, 1),
            cores(seconds),
            [fault for told in parts for fault in told.faults],
        )


class Peer:
    """A script of this folder that is spoken to in lines. It ends with its standard input."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def hear(self) -> bytes:
        """The next line; without one this process ends too, for the other has said why."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self._process.args)} ended with code {self._process.wait()}")
        return line.strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()


class InProcess:
    """The engine alone. Open it with a `with` block."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._peer = Peer(ENGINE)

    def __enter__(self) -> Self:
        self._peer.__enter__()
        self._peer.tell(msgspec.json.encode(self._config))
        info = msgspec.json.decode(self._peer.hear(), type=EngineInfo)
        print(f"{info.architecture} on {info.backend} ({info.device}), {info.rows} rows of {info.max_seq}", flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._peer.__exit__(kind, error, trace)

    def run(self, asks: Asks) -> Round:
        self._peer.tell(msgspec.json.encode(asks))
        told = msgspec.json.decode(self._peer.hear(), type=Told)
        return Round.of([told], lambda seconds: {"engine": told.cpu_seconds / seconds})


class OverHttp:
    """poot-serve, and as many processes of clients as keep each of them idle for most of the time."""

    def __init__(self, config: EngineConfig, clients: int) -> None:
        """`clients`: at once, at most."""
        most = str(2 * clients)
        flags = (
            "--backend", config.backend, "--rows", str(config.rows), "--max-seq", str(config.max_seq),
            "--default-max-tokens", str(config.default_max_tokens), "--chat-template", TEMPLATE,
            "--max-pending-requests", most, "--max-receiving-requests", most, "--max-queue-wait-secs", "600",
        )  # fmt: skip
        self._server = LiveServer.of(Path(config.model), *flags, program=COMMAND)

    def __enter__(self) -> Self:
        try:
            self._server.ready()
        except BaseException:
            self._server.__exit__(None, None, None)
            raise
        self._watched = {"server": psutil.Process(self._server.process.pid), "engine": self._server.engine()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, error, trace)

    def run(self, asks: Asks) -> Round:
        before = self._cpu_seconds()
        parts = _streamed(self._server.port, asks)
        used = {name: after - before[name] for name, after in self._cpu_seconds().items()}
        busiest = max(told.cpu_seconds / (told.ended - told.began) for told in parts)
        return Round.of(
            parts, lambda seconds: {name: spent / seconds for name, spent in used.items()} | {"clients": busiest}
        )

    def _cpu_seconds(self) -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in self._watched.items()}
        return {name: float(found.user + found.system) for name, found in times.items()}


def _streamed(port: int, asks: Asks) -> list[Told]:
    count = -(-len(asks) // CLIENTS_PER_PROCESS)
    with ExitStack() as running:
        peers = [running.enter_context(Peer(LOAD, str(port))) for _ in range(count)]
        for index, peer in enumerate(peers):
            peer.tell(msgspec.json.encode(asks[index::count]))
        for peer in peers:
            if peer.hear().decode() != READY:
                raise RuntimeError("a process of clients is not ready")
        for peer in peers:
            peer.tell(b"go")
        return [msgspec.json.decode(peer.hear(), type=Told) for peer in peers]
