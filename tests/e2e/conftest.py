"""The real console script over the demonstration model, started once for all tests that leave it running."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import openai
import pytest

# Several servers run at once: on the processor none of them takes all of a device.
FLAGS = ("--backend", "cpu", "--max-seq", "1024")
TIMEOUT = 60.0


@pytest.fixture(scope="session")
def live() -> ModuleType:
    """benchmarks/live_server.py, which starts and watches servers."""
    path = Path(__file__).parents[2] / "benchmarks" / "live_server.py"
    spec = importlib.util.spec_from_file_location("live_server", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def model(live: ModuleType) -> Path:
    return live.demonstration_model()


@pytest.fixture(scope="session")
def server(live: ModuleType, model: Path) -> Iterator[Any]:
    """A LiveServer that all tests share and none ends."""
    with live.LiveServer.of(model, *FLAGS) as started:
        yield started.ready()


@pytest.fixture
def start(live: ModuleType, model: Path) -> Iterator[Callable[..., Any]]:
    """(*flags) -> a LiveServer of its own for a test that ends it, serving."""
    with ExitStack() as started:
        yield lambda *flags: started.enter_context(live.LiveServer.of(model, *FLAGS, *flags)).ready()


@pytest.fixture
def http(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
        yield client


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    """The official client. Without retries: they would hide a wrong status."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT) as made:
        yield made


@pytest.fixture
def served_model(server: Any, model: Path) -> str:
    return model.stem


@pytest.fixture
def chat(http: httpx.Client) -> Callable[..., dict[str, Any]]:
    """(text or messages, **fields) -> the answer of a buffered greedy chat."""

    def ask(said: str | list[Any], **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        body = {"messages": messages, "temperature": 0, "max_tokens": 8, **fields}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


@pytest.fixture
def events(http: httpx.Client) -> Callable[..., list[Any]]:
    """(path, **fields) -> the data of a stream's events, decoded, after the framing is checked to the byte."""

    def read(path: str, **fields: Any) -> list[Any]:
        body = {"temperature": 0, "max_tokens": 8, "stream": True, **fields}
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
        blocks = answer.content.decode("utf-8").split("\n\n")
        assert blocks.pop() == "" and blocks[-1] == "data: [DONE]"
        data = [block for block in blocks[:-1] if not block.startswith(":")]
        assert all(block.startswith("data: ") and "\n" not in block for block in data)
        return [json.loads(block.removeprefix("data: ")) for block in data]

    return read


@pytest.fixture(scope="session")
def tie() -> float:
    """Log-probabilities closer than this may swap when the batch's size changes the order of additions."""
    return 0.05
