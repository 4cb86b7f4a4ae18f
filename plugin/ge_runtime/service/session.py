"""One connection of the device service, from its first message on: says who is there.

A connection has a role, which its first message names: a `client` holds engines and arenas, an
`observer` looks at statistics, a `probe` wants a sign of life. A `run` belongs to one engine of a
client, and is `runs`' affair.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ge_runtime.errors import RuntimeFault
from ge_runtime.service.attendant import Attendant, field_of
from ge_runtime.service.channel import Channel, PeerGone, close_all
from ge_runtime.service.protocol import VERSION, Broken, Json, fault_as_json
from ge_runtime.service.runs import serve_runs

if TYPE_CHECKING:
    from ge_runtime.service.server import Server

_log = logging.getLogger(__name__)

_HELLO_S: Final = 10.0
"""Until a connection has said who it is."""

_MOST_WEIGHT: Final = 1e6


def serve(server: Server, channel: Channel, pid: int) -> None:
    """Serve one connection until it ends. Raises nothing."""
    try:
        _greet(server, channel, pid)
    except PeerGone:
        pass
    except Broken as broken:
        _log.warning("a connection of pid %d is closed: %s", pid, broken)
    except Exception:
        _log.exception("a connection of pid %d is closed", pid)


def _greet(server: Server, channel: Channel, pid: int) -> None:
    until = server.clock.now() + _HELLO_S

    def patience() -> None:
        if server.clock.now() > until:
            raise PeerGone("it says nothing")

    try:
        hello, descriptors = channel.receive_json(patience)
        close_all(descriptors)
        channel.tick(0)
        role = hello.get("role")
        if role == "probe":
            channel.send_json({"ok": {"version": VERSION}})
        elif role == "observer":
            _observe(server, channel)
        elif role == "client":
            _attend(server, channel, hello, pid)
        elif role == "run":
            _run(server, channel, hello)
        else:
            raise Broken(f"found role {role!r}, expected client, run, observer or probe")
    except Broken as broken:
        channel.send_json({"refused": str(broken)})
        raise
    except PeerGone:
        raise
    except Exception as error:  # or whoever waits for an answer would ask again and again
        channel.send_json({"fault": fault_as_json(error)})
        if not isinstance(error, RuntimeFault):
            raise


def _observe(server: Server, channel: Channel) -> None:
    while True:
        channel.send_json({"ok": server.stats()})
        _, descriptors = channel.receive_json()
        close_all(descriptors)


def _run(server: Server, channel: Channel, hello: Json) -> None:
    tenant = server.tenants.join(hello.get("client"))
    try:
        loan = tenant.loan(hello.get("engine"))
        if not loan.busy.acquire(blocking=False):
            raise Broken("found a second connection to an engine, expected one")
        try:
            loan.hang_up = channel.hush
            if tenant.leaving:  # before there was anything to hang up
                raise PeerGone("its client has left")
            channel.send_json({"ok": {}})
            serve_runs(server, channel, tenant, loan)
        finally:
            loan.busy.release()
    finally:
        server.tenants.leave(tenant)


def _attend(server: Server, channel: Channel, hello: Json, pid: int) -> None:
    name, weight = str(hello.get("name"))[:256], hello.get("weight", 1.0)
    priority = field_of(hello, "priority", int)
    if not isinstance(weight, int | float) or not 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:
        raise Broken(f"found weight {weight!r}, expected a number above 0")
    tenant = server.tenants.enter(name, pid, float(weight), priority)
    _log.info("%s (pid %d) has come", name, pid)
    try:
        place = server.place()  # may take long; the service has a client meanwhile
        welcome = {
            "version": VERSION,
            "client": tenant.token,
            "kind": place.kind,
            "hardware": place.hardware,
        }
        channel.send_json({"ok": welcome})
        attendant = Attendant(server, tenant)
        while True:
            message, descriptors = channel.receive_json()
            channel.send_json(attendant.answer(message, descriptors))
    finally:
        tenant.leaving = True
        with tenant.lock:
            loans = list(tenant.loans.values())
        for loan in loans:
            if (ticket := loan.ticket) is not None:
                server.turns.cancel(ticket)
            loan.hang_up()
        server.tenants.leave(tenant)
