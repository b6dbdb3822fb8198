"""From settings to a served model and back: start, listen, drain, exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TextIO

from poot_batch.errors import EngineError, StartError
from poot_batch.process.interface import EngineClient
from poot_batch.process.launch import Child
from poot_batch.process.supervisor import start_supervised
from poot_models.errors import ModelError, TemplateError
from poot_models.hub import HubId, fetch
from poot_models.text import ChatTemplate, TextModel, open_text
from poot_serve.ending import end_at_once
from poot_serve.errors import AddressError, SettingsError, StartUpError
from poot_serve.listen import allow_files, make_server, probe, until_open
from poot_serve.listening_socket import bound_writes
from poot_serve.logs import Outlet
from poot_serve.lower.conversation import no_template
from poot_serve.progress import Progress
from poot_serve.service import Service
from poot_serve.settings import Settings

_log = logging.getLogger("poot_serve")
STOP_SECONDS = 2.0
CANCEL_SECONDS = 5.0
ENGINE_CHECK_SECONDS = 0.5
EXIT_LOST = 1


def launch(settings: Settings, launch_engine: Callable[[], Child], out: TextIO | Outlet) -> int:
    """Serves until a signal ends it; returns the exit code. Raises StartUpError (SettingsError for a bad template).

    `launch_engine` starts the engine's process, and another in the place of one that was lost. How far the start has
    come is shown on `out`.
    """
    probe(settings.listener)
    return _run(_serve(settings, launch_engine, Progress(out)))


def _run(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:  # it has no build for Windows
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def fetched(settings: Settings) -> Settings:
    """The same with a model of the hub fetched, and its path in the id's place. Raises StartUpError."""
    if not isinstance(settings.model, HubId):
        return settings
    try:
        return replace(settings, model=fetch(settings.model))
    except ModelError as error:
        raise StartUpError(str(error)) from error


def load_text(settings: Settings) -> TextModel:
    """The model's tokenizer and chat template, the latter replaced by the command line's if it gives one.

    Raises StartUpError, or SettingsError for a template that does not compile.
    """
    assert not isinstance(settings.model, HubId)
    try:
        text = open_text(settings.model)
    except ModelError as error:
        raise StartUpError(str(error)) from error
    if settings.chat_template is None:
        return text
    try:
        template = ChatTemplate(settings.chat_template, special_tokens=text.special_tokens)
    except TemplateError as error:
        raise SettingsError(f"--chat-template: {error}") from error
    return replace(text, chat_template=template, template_problem=None)


async def _serve(settings: Settings, launch_engine: Callable[[], Child], progress: Progress) -> int:
    signals = _Signals()
    settings = await asyncio.to_thread(fetched, settings)
    service = await _start(settings, launch_engine, progress)
    probe(settings.listener)
    signals.may_drain()
    allow_files(settings.max_connections)
    server = make_server(service)
    serving = asyncio.create_task(server.serve())
    await until_open(settings.listener, serving)
    bound_writes(settings.listener, settings.write_timeout_seconds)
    info = service.engine.info
    _log.info(
        "serving %s on %s (%s on %s, %d rows of %d positions)",
        settings.model_name, settings.listener.url, info.backend, info.device, info.rows, info.max_seq,
    )  # fmt: skip
    lost = asyncio.create_task(_engine_lost(service.engine))
    stopped = asyncio.create_task(signals.first.wait())
    await asyncio.wait({serving, lost, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        raise AddressError(f"the listener on {settings.listener.url} ended by itself")
    code = 0 if stopped.done() else EXIT_LOST
    if code == EXIT_LOST:
        _log.error("the engine is gone; giving up")
    await _drain(service, settings.drain_timeout_seconds if code == 0 else 0)
    server.stop()  # type: ignore[no-untyped-call]
    # Granian waits without limit for clients that neither send nor read.
    await asyncio.wait({serving}, timeout=STOP_SECONDS)
    await _close(service)
    return code


async def _start(settings: Settings, launch_engine: Callable[[], Child], progress: Progress) -> Service:
    """Starts the engine and loads the text side at once. Raises StartUpError."""
    began = time.monotonic()
    loading = asyncio.create_task(asyncio.to_thread(load_text, settings))
    starting = asyncio.create_task(start_supervised(settings.engine_config(), progress=progress, launch=launch_engine))
    await asyncio.wait({loading, starting}, return_when=asyncio.FIRST_EXCEPTION)
    progress.clear()
    if loading.done() and (error := loading.exception()) is not None:
        starting.cancel()
        await asyncio.wait({starting}, timeout=CANCEL_SECONDS)
        raise error
    try:
        engine = await starting
    except StartError as error:
        raise StartUpError(str(error)) from error
    _log.info("ready after %.1f s", time.monotonic() - began)
    for line in engine.info.notes:
        _log.info("%s", line)
    for line in engine.info.report:
        _log.debug("%s", line)
    text = await loading
    if text.chat_template is None:
        _log.warning("chats will be refused, completions served: %s", no_template(text))
    # A tokenizer is some hundred thousand objects that live for ever: no collection need look at them again.
    gc.freeze()
    return Service(engine, text, settings)


async def _engine_lost(engine: EngineClient) -> None:
    """Returns when the engine is dead for good."""
    while engine.state != "dead":
        await asyncio.sleep(ENGINE_CHECK_SECONDS)


async def _drain(service: Service, seconds: int) -> None:
    """Refuses new requests while those that were taken end, for `seconds`; then they are cancelled.

    Some seconds more are for the errors that tell their clients so. Whoever does not read them is cut.
    """
    service.drain()
    _log.info("draining for at most %d s", seconds)
    try:
        async with asyncio.timeout(seconds + CANCEL_SECONDS):
            await service.engine.drain(float(seconds))
            await service.idle()
    except TimeoutError:
        _log.warning("some answers could not be delivered in time")
    except EngineError as error:
        _log.warning("the engine could not drain: %s", error)


async def _close(service: Service) -> None:
    service.close()
    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            await service.engine.close()
    except (TimeoutError, EngineError) as error:
        _log.warning("the engine did not end in order: %s", str(error) or "no answer")


class _Signals:
    """SIGTERM and SIGINT: the first one drains a server that serves, any other ends the process at once.

    The engine process ends by itself when this one is gone.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self._drains = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._received, number)
            except NotImplementedError:  # Windows' event loops
                signal.signal(number, lambda number, _: loop.call_soon_threadsafe(self._received, number))

    def may_drain(self) -> None:
        self._drains = True

    def _received(self, number: int) -> None:
        if self._drains and not self.first.is_set():
            self.first.set()
            return
        end_at_once(number)
