"""Starting an engine process and waiting until it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from poot_batch.errors import StartError
from poot_batch.process import frames
from poot_batch.process.client import EXIT_SECONDS, ProcessEngine
from poot_batch.process.incoming import Incoming
from poot_batch.process.launch import Child, end_of, launch_engine
from poot_batch.process.totals import Totals
from poot_batch.process.watch import Patience
from poot_batch.request import EngineConfig, EngineInfo

ProgressCallback = Callable[[str, int, int], None]


async def start_engine(
    config: EngineConfig,
    *,
    progress: ProgressCallback | None = None,
    launch: Callable[[], Child] | None = None,
    patience: Patience | None = None,
    totals: Totals | None = None,
) -> ProcessEngine:
    """Start an engine process and wait until its model is prepared, however long that takes.

    `launch` starts the process, which may have been told `config` already; `patience` says when it counts as lost, and
    `totals` counts on from an engine before. Raises StartError with the engine's own code and message. When the wait is
    cancelled, the process is ended.
    """
    child = (launch or launch_engine)()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(sock=child.channel)
        if child.config is None:
            writer.write(frames.encode(frames.Start(config)))
        elif child.config != config:
            raise ValueError(f"the engine process was told to start with {child.config}, not with {config}")
        incoming = Incoming(reader)
        info = await _until_ready(incoming, child, progress)
    except BaseException:
        child.kill()
        if writer is None:
            child.channel.close()
        else:
            writer.close()
        await asyncio.to_thread(child.wait, EXIT_SECONDS)
        child.lifeline.close()
        raise
    return ProcessEngine(child, incoming, writer, info, patience=patience or Patience(), totals=totals or Totals())


async def _until_ready(incoming: Incoming, child: Child, progress: ProgressCallback | None) -> EngineInfo:
    while True:
        try:
            frame = await incoming.next()
        except (ValueError, msgspec.MsgspecError) as error:
            raise StartError(f"the engine process speaks nonsense: {error}") from error
        match frame:
            case None:
                code = await asyncio.to_thread(child.wait, EXIT_SECONDS)
                raise StartError(f"the engine process {end_of(code)} before it was ready")
            case frames.Progress(phase, done, total):
                if progress is not None:
                    progress(phase, done, total)
            case frames.Failed(code, message):
                raise StartError(message, reason_code=code)
            case frames.Ready(info):
                return info
            case _:
                raise StartError(f"the engine process spoke out of turn: {type(frame).__name__}")
