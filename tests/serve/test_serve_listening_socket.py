"""What a client that does not read may hold of a server, by the kernel's own account."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from poot_serve.limits.host import Listener
from poot_serve.listening_socket import SEND_BUFFER_BYTES, bound_writes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT is Linux's")


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_connections_inherit_the_bounds(listening):
    listener = Listener(*listening.getsockname())
    assert bound_writes(listener, 1.5)
    with socket.create_connection(listening.getsockname()) as client:
        taken, _ = listening.accept()
        with taken:
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1500
            assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * SEND_BUFFER_BYTES
            taken.setblocking(False)
            sent = 0
            with pytest.raises(BlockingIOError):
                while sent < 1 << 24:
                    sent += taken.send(bytes(65536))
            assert sent < 1 << 20
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


def test_only_the_listener_is_changed(listening, caplog):
    """A socket that is bound but does not listen, and one that listens elsewhere; then there is nothing to bound."""
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        before = len(os.listdir("/dev/fd"))
        assert bound_writes(Listener(*other.getsockname()), 1.0)
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        caplog.set_level("INFO")
        assert not bound_writes(Listener(*bound.getsockname()), 1.0)
        assert "sets no bounds" in caplog.text
        assert len(os.listdir("/dev/fd")) == before
