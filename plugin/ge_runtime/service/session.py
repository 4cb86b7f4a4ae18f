"""One connection of the device service: says who is there, and does what control messages ask.

A connection has a role, which its first message names: a `client` holds engines and arenas, an
`observer` looks at statistics, a `probe` wants a sign of life. A `run` belongs to one engine of a
client, and is `runs`' affair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Shapes
from ge_runtime.errors import EngineLost, OutOfMemory, RuntimeFault
from ge_runtime.service.channel import Channel, PeerGone, close_all
from ge_runtime.service.protocol import (
    VERSION,
    Broken,
    Json,
    fault_as_json,
    intermediates_as_json,
    signature_as_json,
)
from ge_runtime.service.runs import serve_runs
from ge_runtime.service.tenancy import MOST_ENGINES, Tenant

if TYPE_CHECKING:
    from ge_runtime.service.server import Server

_log = logging.getLogger(__name__)

_HELLO_S: Final = 10.0
"""Until a connection has said who it is."""

_CLOSE_S: Final = 5.0
"""Until the connection of an engine that is closed has noticed."""

_MOST_WEIGHT: Final = 1e6
_MOST_THREADS: Final = 1024

Value = TypeVar("Value")


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
    priority = _of(hello, "priority", int)
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
        attendant = _Attendant(server, tenant)
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


class _Attendant:
    """Does what one client asks for."""

    def __init__(self, server: Server, tenant: Tenant) -> None:
        self._server = server
        self._tenant = tenant
        self._does: Mapping[str, Callable[[Json, list[int]], Json]] = {
            "arena": self._arena,
            "forget": self._forget,
            "open": self._open,
            "bind": self._bind,
            "intermediates": self._intermediates,
            "cancel": self._cancel,
            "close": self._close,
        }

    def answer(self, message: Json, descriptors: list[int]) -> Json:
        """Do it; the result, or what was wrong. Takes the descriptors."""
        try:
            does = self._does.get(str(message.get("do")))
            if does is None:
                raise Broken(f"found {message.get('do')!r} to do, expected one of {[*self._does]}")
            return {"ok": does(message, descriptors)}
        except Broken as broken:
            _log.warning("%s (pid %d): refused: %s", self._tenant.name, self._tenant.pid, broken)
            return {"refused": str(broken)}
        except EngineLost as lost:
            self._server.end(f"the device is lost: {lost}", patience_s=0.0)
            return {"fault": fault_as_json(lost)}
        except RuntimeFault as fault:
            return {"fault": fault_as_json(fault)}
        except MemoryError as error:
            return {"fault": fault_as_json(OutOfMemory(f"the device service: {error}"))}
        except Exception as error:
            _log.exception("%s: a message failed", self._tenant.name)
            return {"fault": fault_as_json(error)}
        finally:
            close_all(descriptors)

    def _arena(self, message: Json, descriptors: list[int]) -> Json:
        if len(descriptors) != 1:
            raise Broken(f"found {len(descriptors)} descriptors with an arena, expected 1")
        number, nbytes = _of(message, "number", int), _of(message, "nbytes", int)
        self._tenant.arenas.add(number, descriptors[0], nbytes)
        return {}

    def _forget(self, message: Json, descriptors: list[int]) -> Json:
        self._tenant.arenas.remove(_of(message, "number", int))
        self._tenant.version += 1
        return {}

    def _open(self, message: Json, descriptors: list[int]) -> Json:
        if len(self._tenant.loans) >= MOST_ENGINES:
            raise Broken(f"found {MOST_ENGINES} open engines, expected no more")
        artifacts = [
            Artifact(Path(str(path)), str(engine), str(reason))
            for path, engine, reason in _triples(message.get("artifacts"))
        ]
        outputs = [str(name) for name in _of(message, "outputs", list)]
        threads = _of(message, "threads", int)
        if not 1 <= threads <= _MOST_THREADS:
            raise Broken(f"found {threads} threads, expected 1 to {_MOST_THREADS}")
        volume = self._server.library().borrow(artifacts, threads=threads, outputs=outputs)
        loan = self._server.tenants.lend(self._tenant, volume)
        shapes = volume.engine.shapes
        return {
            "engine": loan.number,
            "signature": signature_as_json(volume.engine.signature),
            "shapes": None if shapes is None else [dict(one) for one in shapes],
            "weights_bytes": volume.engine.weights_bytes(),
            "device_io_bytes": volume.engine.device_io_bytes(),
            "content": volume.content,
        }

    def _bind(self, message: Json, descriptors: list[int]) -> Json:
        loan = self._tenant.loan(message.get("engine"))
        largest = [_shapes(one) for one in _of(message, "largest", list)]
        with self._server.alone(self._tenant, loan.volume):
            self._server.library().prepare(loan.volume, largest)
        return {}

    def _intermediates(self, message: Json, descriptors: list[int]) -> Json:
        volume = self._tenant.loan(message.get("engine")).volume
        shapes = _shapes(message.get("shapes"))
        return {"intermediates": intermediates_as_json(self._server.intermediates(volume, shapes))}

    def _cancel(self, message: Json, descriptors: list[int]) -> Json:
        ticket = self._tenant.loan(message.get("engine")).ticket
        if ticket is not None:
            self._server.turns.cancel(ticket)
        return {}

    def _close(self, message: Json, descriptors: list[int]) -> Json:
        loan = self._tenant.loan(message.get("engine"))
        loan.hang_up()
        if not loan.busy.acquire(timeout=_CLOSE_S):
            raise Broken("found an engine that executes, expected it to be idle")
        with self._tenant.lock:
            del self._tenant.loans[loan.number]
        self._server.library().give_back(loan.volume)
        return {}


def _of(message: Json, name: str, kind: type[Value]) -> Value:
    """A field of this type. Raises Broken."""
    value = message.get(name)
    if type(value) is not kind:
        raise Broken(f"found {name} {value!r}, expected {kind.__name__}")
    return value


def _triples(value: object) -> Sequence[Sequence[Any]]:
    if (
        isinstance(value, list)
        and value
        and all(isinstance(one, list) and len(one) == 3 for one in value)
    ):
        return value
    raise Broken(f"found artifacts {value!r}, expected a list of path, engine and reason")


def _shapes(value: object) -> Shapes:
    if not isinstance(value, dict):
        raise Broken(f"found shapes {value!r}, expected an object")
    shapes = {}
    for name, dims in value.items():
        if not isinstance(dims, list) or not all(type(dim) is int and dim >= 0 for dim in dims):
            raise Broken(f"found shape {dims!r} for '{name}', expected sizes")
        shapes[name] = tuple(dims)
    return shapes
