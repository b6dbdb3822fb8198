"""One client of the wire fuzzer: does what its case says on a connection of its own, and judges what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

from wire_answers import Answer, WireFault, cut_answers, judge
from wire_cases import Case, HalfClose, Leave, Limits, Pause, Send

# How long anything may take: an answer, the server's close after the client's, and its close of a silent connection.
ANSWER_SECONDS, CLOSE_SECONDS, HEAD_SECONDS = 60.0, 15.0, 40.0
# Without a sign of the server for so long, a client whose request may be no whole one says that it sends no more.
QUIET_SECONDS = 0.5
SLACK_SECONDS = 3.0
SMALL_BUFFER = 4096


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.data = b""
        self.closed = False
        self._news = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, port: int, *, deaf: bool) -> Connection:
        sock = socket.socket()
        sock.setblocking(False)
        if deaf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            made = cls(*await asyncio.open_connection(sock=sock, limit=SMALL_BUFFER if deaf else 1 << 20))
        except BaseException:
            sock.close()
            raise
        if not deaf:
            made.listen()
        return made

    def listen(self) -> None:
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        parts = [self.data]
        with contextlib.suppress(ConnectionError):
            while part := await self._reader.read(1 << 18):
                parts.append(part)
                if len(parts) > 64:
                    parts = [b"".join(parts)]
                self.data = b"".join(parts)
                self._news.set()
        self.closed = True
        self._news.set()

    async def news(self, seconds: float) -> bool:
        """Whether something came, or the end, within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    async def until_closed(self, seconds: float, what: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not self.closed:
                    await self.news(seconds)
        except TimeoutError:
            raise WireFault(f"{what} for {seconds:g} seconds; so far {self.data[-200:]!r}") from None

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self.writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1):
                await self.writer.wait_closed()
        self.writer.transport.abort()


async def run_case(case: Case, limits: Limits) -> str | None:
    """What was wrong, or None."""
    connection = await Connection.open(limits.port, deaf=case.deaf)
    try:
        if await _sent(connection, case):
            await _answered(connection, case, limits)
    except WireFault as fault:
        return str(fault)
    except ValueError as error:
        return f"an answer that cannot be read: {error}"
    finally:
        await connection.close()
    return None


async def _sent(connection: Connection, case: Case) -> bool:
    """Whether the client is still there. A server may close before it has all: it has said why, or will be judged."""
    for action in case.actions:
        match action:
            case Send(data):
                try:
                    connection.writer.write(data)
                    if not case.deaf:
                        async with asyncio.timeout(CLOSE_SECONDS):
                            await connection.writer.drain()
                except ConnectionError:
                    return True
                except TimeoutError:
                    raise WireFault(
                        f"nothing was read for {CLOSE_SECONDS:g} seconds, nor the connection closed"
                    ) from None
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case HalfClose():
                with contextlib.suppress(OSError):
                    connection.writer.write_eof()
            case Leave(reset):
                if reset:
                    connection.reset()
                return False
    return True


async def _answered(connection: Connection, case: Case, limits: Limits) -> None:
    if case.deaf:
        await asyncio.sleep(limits.write_seconds + SLACK_SECONDS)
        connection.listen()
        await connection.until_closed(CLOSE_SECONDS, "a client that read nothing was not given up")
        return
    if case.silent:
        await connection.until_closed(HEAD_SECONDS, "a head that did not come was waited for")
    elif case.answers is not None:
        await _whole(connection, case.answers)
    elif not any(isinstance(action, HalfClose) for action in case.actions):
        await _quiet(connection)
    if case.answers is None and not case.silent:
        with contextlib.suppress(OSError):
            connection.writer.write_eof()
        await connection.until_closed(CLOSE_SECONDS, "a connection whose client sends no more stayed open")
    answers, rest = cut_answers(connection.data, closed=connection.closed)
    for answer in answers:
        judge(answer)
    _check(case, answers, rest)


def _check(case: Case, answers: list[Answer], rest: bytes) -> None:
    if case.answers is not None and len(answers) != case.answers:
        raise WireFault(f"{len(answers)} whole answers of {case.answers}, then {rest[:300]!r}")
    for answer in answers if case.well else ():
        if answer.status != 200:
            raise WireFault(f"a good request was answered with {answer.status}: {answer.body[:500]!r}")


async def _whole(connection: Connection, count: int) -> None:
    """Waits for `count` whole answers, or the end."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            while not connection.closed:
                if len(cut_answers(connection.data, closed=False)[0]) >= count:
                    return
                await connection.news(ANSWER_SECONDS)
    except TimeoutError:
        raise WireFault(f"no answer for {ANSWER_SECONDS:g} seconds; so far {connection.data[-200:]!r}") from None


async def _quiet(connection: Connection) -> None:
    """Waits until nothing comes any more, or the end."""
    while not connection.closed and await connection.news(QUIET_SECONDS):
        pass
