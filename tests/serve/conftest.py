"""A real Granian server over a scripted engine and a tiny but real tokenizer."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import tokenizers
import uvloop

from poot_batch.errors import EngineDeadError, EngineDrainingError, EngineRestartingError
from poot_batch.request import EngineInfo, EngineStats, GenerateRequest, Output, Times, TokenLogprob, validate
from poot_models.text import Detokenizer, StopMatcher, TextModel, Tokenizer, load_text
from poot_serve.limits.host import Listener
from poot_serve.service import Service
from poot_serve.settings import Settings

TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "<|im_end|>\n{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<no_think>{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["hello world the quick brown fox", "the answer is forty two", "END of the text"] * 20
HOLD = "hold"


def build_text(directory: Path) -> TextModel:
    """A byte-level BPE of some 300 tokens, read by the product's own loader from files it writes."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS, trainer)
    bpe.save(str(directory / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return load_text(
        SimpleNamespace(format="safetensors", path=directory, metadata={"vocab_size": bpe.get_vocab_size()})
    )


@dataclass
class Script:
    """What the engine answers: `steps` of token ids (HOLD waits for cancellation), then `finish`.

    `score_chunk`: how many prompt log-probabilities it gives at a time. `queued`: the request never gets a row.
    """

    steps: Sequence[Any] = ()
    finish: str = "stop"
    error_code: str | None = None
    cached: int = 0
    miss: str | None = None
    times: Times | None = None
    score_chunk: int = 3
    queued: bool = False


@dataclass
class FakeStream:
    engine: FakeEngine
    request: GenerateRequest
    script: Script
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    opened: bool = False
    running: bool = False

    @property
    def request_id(self) -> int:
        return self.request.id

    def cancel(self) -> None:
        self.cancelled.set()

    async def __aiter__(self) -> AsyncIterator[Output]:
        self._run(True)
        try:
            async for output in self._outputs():
                if output.finish is not None:
                    self._run(False)
                yield output
        finally:
            self._run(False)

    def _run(self, running: bool) -> None:
        self.engine.running += running - self.running
        self.running = running

    async def _outputs(self) -> AsyncIterator[Output]:
        engine, request, script = self.engine, self.request, self.script
        self.opened = not script.queued
        detokenizer, matcher = Detokenizer(engine.tokenizer), StopMatcher(request.stop)
        counts = {"prompt_tokens": len(request.prompt), "cached_tokens": script.cached, "cache_miss": script.miss}
        counts["times"] = script.times
        sent = 0
        for scores in engine.prompt_logprobs(request, script.score_chunk):
            await asyncio.sleep(0)
            yield Output(request_id=request.id, prompt_logprobs=scores, **counts)
        if request.max_tokens == 0:
            yield Output(request_id=request.id, finish="length", **counts)
            return
        for step in script.steps:
            if step == HOLD:
                await self.cancelled.wait()
            if self.cancelled.is_set():
                engine.cancelled.set()
                yield Output(request_id=request.id, finish="abort", **counts)
                return
            await asyncio.sleep(0)
            engine.steps += 1
            tokens = tuple(step)[: (request.max_tokens or 10**9) - sent]
            sent += len(tokens)
            text, stopped = matcher.push(detokenizer.push(tokens))
            finish = "stop" if stopped else "length" if sent == request.max_tokens else None
            if finish == "length":
                text += matcher.finish()
            yield Output(
                request_id=request.id,
                tokens=tokens,
                text=text if request.stop else None,
                logprobs=engine.logprobs(tokens, request.sampling.logprobs),
                finish=finish,
                **counts,
            )
            if finish is not None:
                return
        rest = matcher.finish() if request.stop else None
        fault = {"error_code": script.error_code, "error_message": "the device failed"} if script.error_code else {}
        yield Output(request_id=request.id, text=rest, finish=script.finish, **fault, **counts)


@dataclass
class FakeEngine:
    tokenizer: Tokenizer
    script: Script = field(default_factory=Script)
    scripts: list[Script] = field(default_factory=list)
    state: str = "serving"
    running: int = 0
    steps: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)
    submitted: list[GenerateRequest] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    next_id: int = 0

    def __post_init__(self) -> None:
        self.info = self.plan = EngineInfo(
            model="tiny", architecture="llama", backend="cpu", device="test", rows=4, max_seq=512,
            vocab_size=self.tokenizer.vocab_size, eos_ids=(2,), kv_block_size=16, kv_blocks=64, weight_bytes=1000,
            kv_bytes=500, workspace_bytes=10, device_total_bytes=9000, decode_dispatches=7,
            decode_activation_peak_bytes=70, prefill_dispatches=8, prefill_activation_peak_bytes=80,
        )  # fmt: skip

    def next_request_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def logprobs(self, tokens: Sequence[int], wanted: int | None) -> tuple[TokenLogprob, ...] | None:
        """-0.5 for the chosen token, and then ever less likely ones: 10, 11, 12, ..."""
        if wanted is None:
            return None
        top = tuple((10 + rank, -1.0 - rank) for rank in range(wanted))
        return tuple(TokenLogprob(token, -0.5, top) for token in tokens)

    def prompt_logprobs(self, request: GenerateRequest, chunk: int) -> list[tuple[TokenLogprob, ...]]:
        """-0.25 for the prompt's second token, -0.5 for its third and so on, with alternatives like those of tokens."""
        if request.prompt_logprobs is None:
            return []
        top = tuple((10 + rank, -1.0 - rank) for rank in range(request.prompt_logprobs))
        scores = [TokenLogprob(token, -0.25 * at, top) for at, token in enumerate(request.prompt)][1:]
        return [tuple(scores[at : at + chunk]) for at in range(0, len(scores), chunk)]

    def submit(self, request: GenerateRequest) -> FakeStream:
        if self.state == "dead":
            raise EngineDeadError("the engine is gone")
        if self.state == "draining":
            raise EngineDrainingError("the engine drains")
        if self.state != "serving":
            raise EngineRestartingError("the engine may come back")
        validate(request, self.info)
        self.submitted.append(request)
        scripts = self.scripts or [self.script]
        stream = FakeStream(self, request, scripts[len(self.streams) % len(scripts)])
        self.streams.append(stream)
        return stream

    async def stats(self) -> EngineStats:
        if self.state == "dead":
            raise EngineDeadError("the engine is gone")
        return EngineStats(
            requests_total=3, prompt_tokens=40, kv_blocks_used=16, prefix_hit_tokens=1, prefix_query_tokens=4
        )

    async def drain(self, timeout_seconds: float) -> None:
        self.state = "draining"
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.running:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            for stream in self.streams:
                stream.cancel()

    async def close(self) -> None:
        self.state = "dead"


@dataclass
class Served:
    """A running server. `answer` sets what the engine says next."""

    port: int
    engine: FakeEngine
    service: Service
    client: httpx.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, text: str | None = None, **fields: Any) -> None:
        """The engine's next answers: `text`, one step a token, or `steps`."""
        if text is not None:
            fields["steps"] = [[token] for token in self.engine.tokenizer.encode(text, add_special=False)]
        self.engine.script, self.engine.scripts = Script(**fields), []
        self.engine.streams.clear()
        self.engine.cancelled.clear()

    def answers(self, *texts: str) -> None:
        """The engine's next answers, one for each request in turn."""
        scripts = []
        for text in texts:
            self.answer(text)
            scripts.append(self.engine.script)
        self.engine.scripts = scripts

    def raw(self, data: bytes, *, half_close: bool = False) -> bytes:
        """What the server sends back, until it closes or has sent a whole small answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as sock:
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            received = b""
            while not _whole(received):
                part = sock.recv(65536)
                if not part:
                    break
                received += part
            return received


def _whole(data: bytes) -> bool:
    head, found, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(found and lengths) and len(body) >= int(lengths[0].split(b":")[1])


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return build_text(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(text: TextModel) -> FakeEngine:
    return FakeEngine(text.tokenizer)


@contextmanager
def running(text: TextModel, **fields: Any) -> Iterator[Served]:
    """A server on a free port, with `fields` of Settings."""
    from poot_serve.listen import make_server, until_open

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    listener, model = Listener("127.0.0.1", port), Path("/models/org/tiny.gguf")
    fields = {"model": model, "model_name": "tiny", "listener": listener, "keep_alive_seconds": 0.15, **fields}
    settings = Settings(**fields)
    engine = FakeEngine(text.tokenizer)
    service = Service(engine, text, settings)
    loop = uvloop.new_event_loop()
    server = make_server(service)
    opened = threading.Event()

    async def serve() -> None:
        serving = asyncio.ensure_future(server.serve())
        await until_open(settings.listener, serving)
        opened.set()
        await serving

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert opened.wait(10)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            yield Served(port, engine, service, client)
    finally:
        loop.call_soon_threadsafe(server.stop)
        thread.join(10)
        service.close()
        loop.close()


@pytest.fixture(scope="session")
def _running(text: TextModel) -> Iterator[Served]:
    with running(text) as served:
        yield served


@pytest.fixture
def serving(text: TextModel) -> Iterator[Callable[..., Served]]:
    """Starts servers of a test's own, with fields of Settings."""
    with ExitStack() as stack:
        yield lambda **fields: stack.enter_context(running(text, **fields))


@pytest.fixture
def served(_running: Served) -> Served:
    """The session's server, as new."""
    engine = _running.engine
    engine.script, engine.state, engine.info, engine.steps = Script(), "serving", engine.plan, 0
    engine.scripts = []
    engine.submitted.clear()
    engine.streams.clear()
    engine.cancelled.clear()
    _running.service.draining = False
    return _running


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Fails unless a condition of another thread comes true within five seconds."""

    def check(condition: Callable[[], bool]) -> None:
        for _ in range(500):
            if condition():
                return
            threading.Event().wait(0.01)
        raise AssertionError("the condition did not come true")

    return check


@pytest.fixture
def hold() -> str:
    """A step of a script that waits until the request is cancelled."""
    return HOLD
