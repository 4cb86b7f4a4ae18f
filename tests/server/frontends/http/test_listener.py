"""The HTTP port: opened, served, drained. A test makes the connections by hand."""

import asyncio
import errno
import logging

import pytest
from server.support.http import MemoryTransport

from reference_server.core.errors import Code, ServerError
from reference_server.frontends.http.listener import HttpListener
from reference_server.frontends.http.status_codes import OK


class Port:
    """The server of `create_server`, with its arguments."""

    def __init__(self, fault=None):
        self.asked = None
        self.is_closed = False
        self._fault = fault

    async def create_server(self, factory, address, port, **more):
        if self._fault is not None:
            raise self._fault
        self.asked = address, port, more
        self._factory = factory
        return self

    def close(self):
        self.is_closed = True

    def connect(self):
        """Return the listener's side of a connection, and its transport."""
        connection, transport = self._factory(), MemoryTransport()
        connection.connection_made(transport)
        return connection, transport


def on_port(**more):
    """A listener that answers every request alike."""
    return HttpListener("Service", "127.0.0.1", 8123, lambda request: request.reply(OK), **more)


def opened(scenario, *, port=None, **more):
    """Run `scenario(listener, port)` on a loop whose port is in memory."""
    port = port or Port()

    async def run():
        asyncio.get_running_loop().create_server = port.create_server
        listener = on_port(**more)
        await listener.open()
        return await scenario(listener, port)

    return asyncio.run(run())


async def nothing(listener, port):
    return None


@pytest.mark.parametrize(("reuse", "passed"), [(False, None), (True, True)])
def test_it_listens_on_the_given_address(reuse, passed, caplog):
    port = Port()
    with caplog.at_level(logging.INFO, "reference_server"):
        opened(nothing, port=port, reuse_port=reuse)
    address, number, more = port.asked
    assert (address, number, more["reuse_port"]) == ("127.0.0.1", 8123, passed)
    assert caplog.messages == ["Started Service at 127.0.0.1:8123"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "Socket '127.0.0.1:8123' already in use "),
        (
            OSError(errno.EACCES, "not yours"),
            f"cannot listen on '127.0.0.1:8123': [Errno {errno.EACCES}] not yours",
        ),
    ],
)
def test_a_port_in_use(fault, said):
    with pytest.raises(ServerError) as caught:
        opened(nothing, port=Port(fault))
    assert (caught.value.code, caught.value.message) == (Code.UNAVAILABLE, said)


def test_it_is_drained_when_the_last_connection_is_closed():
    async def scenario(listener, port):
        connections = [port.connect()[0] for _ in range(2)]
        drained = asyncio.ensure_future(listener.drained())
        for connection in connections:
            await asyncio.sleep(0)
            assert not drained.done()
            connection.connection_lost(None)
        await drained

    opened(scenario)


def test_idle_connections_close_when_it_stops_accepting():
    async def scenario(listener, port):
        _, transport = port.connect()
        listener.stop_accepting()
        return transport

    assert opened(scenario).is_closing()


def test_a_late_connection_is_closed_without_a_byte():
    async def scenario(listener, port):
        listener.stop_accepting()
        connection, transport = port.connect()
        connection.connection_lost(None)
        await listener.drained()
        return transport

    transport = opened(scenario)
    assert transport.is_aborted
    assert transport.sent == b""


def test_the_number_of_connections_is_limited():
    reported = []

    async def scenario(listener, port):
        (first, _), (_, second), (third, refused) = (port.connect() for _ in range(3))
        assert refused.is_aborted
        assert refused.sent == b""
        assert not second.is_closing()
        third.connection_lost(None)
        first.connection_lost(None)
        return port.connect()[1]

    later = opened(
        scenario, most_connections=2, report=lambda reason, particulars: reported.append(reason)
    )
    assert not later.is_closing()
    assert reported == ["many"]
