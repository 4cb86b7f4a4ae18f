"""One connection of the device service, from its first message on: says who is there.

A connection has a role, which its first message names: a `client` holds engines and arenas, an
`observer` looks at statistics, a `probe` wants a sign of life. A `run` belongs to one engine of a
client, and is `runs`' affair.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ge_runtime.config import kind_of
from ge_runtime.errors import OutOfMemory, RuntimeFault
from ge_runtime.service.attendant import Attendant, field_of
from ge_runtime.service.channel import Channel, PeerGone, Starved, close_all
from ge_runtime.service.naming import client_name
from ge_runtime.service.protocol import VERSION, Broken, Json, fault_as_json
from ge_runtime.service.runs import serve_runs
from ge_runtime.service.visible import VARIABLES

if TYPE_CHECKING:
    from ge_runtime.service.server import Server

_log = logging.getLogger(__name__)

_HELLO_S: Final = 10.0
"""Until a connection has said who it is."""

_MOST_WEIGHT: Final = 1e6


def serve(server: Server, channel: Channel, pid: int) -> None:
    """Serve one connection until it ends. Raises nothing."""
    visitor = _Visitor(f"a connection of pid {pid}")
    try:
        _greet(server, channel, pid, visitor)
    except PeerGone:
        pass
    except Broken as broken:
        _log.warning("%s is closed: %s", visitor, broken)
    except Exception:
        _log.exception("%s is closed", visitor)


class _Visitor:
    """Who is at the other end of a connection, as far as it is known."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


def _greet(server: Server, channel: Channel, pid: int, visitor: _Visitor) -> None:
    until = server.clock.now() + _HELLO_S

    def patience() -> None:
        if server.clock.now() > until:
            raise Broken(f"it has said nothing for {_HELLO_S:g} s")

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
            _attend(server, channel, hello, pid, visitor)
        elif role == "run":
            _run(server, channel, hello, visitor)
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
        _log.warning("%s is closed: %s", visitor, error)


def _observe(server: Server, channel: Channel) -> None:
    while True:
        channel.send_json({"ok": server.stats()})
        _, descriptors = channel.receive_json()
        close_all(descriptors)


def _run(server: Server, channel: Channel, hello: Json, visitor: _Visitor) -> None:
    tenant = server.tenants.join(hello.get("client"))
    visitor.name = f"a connection of {tenant}"
    try:
        loan = tenant.loan(hello.get("engine"))
        visitor.name += f" for {loan.name}"
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


def _attend(server: Server, channel: Channel, hello: Json, pid: int, visitor: _Visitor) -> None:
    name, weight = client_name(hello.get("name")), hello.get("weight", 1.0)
    priority = field_of(hello, "priority", int)
    if not isinstance(weight, int | float) or not 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:
        raise Broken(f"found weight {weight!r}, expected a number above 0")
    means = hello.get("means", server.means)
    if means != server.means:
        variable = VARIABLES.get(kind_of(server.device), "the environment")
        raise Broken(
            f"found {server.device} to mean the machine's device {means!r}, expected "
            f"{server.means!r} as where this service was started: {variable} differs, and "
            "XDG_RUNTIME_DIR can give each a service of its own"
        )
    tenant = server.tenants.enter(name, pid, float(weight), priority)
    visitor.name = f"the connection of {tenant}"
    _log.info("%s has come", tenant)
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
            try:
                message, descriptors = channel.receive_json()
            except Starved as starved:
                _log.warning("%s: %s", tenant, starved)
                short = OutOfMemory(f"the device service: {starved}")
                channel.send_json({"fault": fault_as_json(short)})
            else:
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
