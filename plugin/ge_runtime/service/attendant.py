"""What a client may ask of the device service besides executions: its engines and its arenas."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Limited, Shapes
from ge_runtime.errors import EngineLost, OutOfMemory, RuntimeFault, shown
from ge_runtime.service.channel import close_all
from ge_runtime.service.content import seen_as
from ge_runtime.service.protocol import (
    Broken,
    Json,
    fault_as_json,
    intermediates_as_json,
    signature_as_json,
)
from ge_runtime.service.tenancy import MOST_ENGINES, Tenant

if TYPE_CHECKING:
    from ge_runtime.service.server import Server

_log = logging.getLogger(__name__)

_CLOSE_S: Final = 3.0
"""Until the connection of an engine that is closed has noticed."""

_MOST_THREADS: Final = 1024
_MOST_SHAPES: Final = 10_000
"""That an engine is prepared for at once: each is compared with all others."""

Value = TypeVar("Value")


def field_of(message: Json, name: str, kind: type[Value]) -> Value:
    """A field of this type. Raises Broken."""
    value = message.get(name)
    if type(value) is not kind:
        raise Broken(f"found {name} {value!r}, expected {kind.__name__}")
    return value


class Attendant:
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
        do = str(message.get("do"))
        try:
            does = self._does.get(do)
            if does is None:
                raise Broken(f"found {do!r} to do, expected one of {[*self._does]}")
            return {"ok": does(message, descriptors)}
        except Broken as broken:
            _log.warning("%s: refused: %s", self._tenant, broken)
            return {"refused": str(broken)}
        except EngineLost as lost:
            self._server.end(f"the device is lost, {self._tenant} was told: {lost}", patience_s=0.0)
            return {"fault": fault_as_json(lost)}
        except RuntimeFault as fault:
            _log.warning("%s: '%s' failed: %.2000s", self._tenant, do, fault)
            return {"fault": fault_as_json(fault)}
        except MemoryError as error:
            _log.warning("%s: '%s' failed: %.2000s", self._tenant, do, error)
            return {"fault": fault_as_json(OutOfMemory(f"the device service: {error}"))}
        except Exception as error:
            _log.exception("%s: '%s' failed", self._tenant, do)
            return {"fault": fault_as_json(error)}
        finally:
            close_all(descriptors)

    def _arena(self, message: Json, descriptors: list[int]) -> Json:
        if len(descriptors) != 1:
            raise Broken(f"found {len(descriptors)} descriptors with an arena, expected 1")
        number, nbytes = field_of(message, "number", int), field_of(message, "nbytes", int)
        self._tenant.arenas.add(number, descriptors[0], nbytes)
        return {}

    def _forget(self, message: Json, descriptors: list[int]) -> Json:
        try:
            self._tenant.arenas.remove(field_of(message, "number", int))
        finally:
            self._tenant.version += 1
        return {}

    def _open(self, message: Json, descriptors: list[int]) -> Json:
        if len(self._tenant.loans) >= MOST_ENGINES:
            raise Broken(f"found {MOST_ENGINES} open engines, expected no more")
        artifacts = [
            Artifact(Path(str(path)), str(engine), str(reason))
            for path, engine, reason in _triples(message.get("artifacts"))
        ]
        outputs = [str(name) for name in field_of(message, "outputs", list)]
        threads = field_of(message, "threads", int)
        if not 1 <= threads <= _MOST_THREADS:
            raise Broken(f"found {threads} threads, expected 1 to {_MOST_THREADS}")
        seen = [seen_as(artifact.path) for artifact in artifacts]
        volume = self._server.library().borrow(artifacts, threads=threads, outputs=outputs)
        name = shown(*(artifact.path for artifact in artifacts))
        loan = self._server.tenants.lend(self._tenant, name, volume)
        _log.info("%s has %s, content %.12s", self._tenant, name, volume.content)
        engine = volume.engine
        shapes = engine.shapes
        return {
            "engine": loan.number,
            "signature": signature_as_json(volume.engine.signature),
            "shapes": None if shapes is None else [dict(one) for one in shapes],
            "weights_bytes": volume.engine.weights_bytes(),
            "device_io_bytes": volume.engine.device_io_bytes(),
            "unplanned": list(engine.unplanned) if isinstance(engine, Limited) else [],
            "content": volume.content,
            "seen": seen,
        }

    def _bind(self, message: Json, descriptors: list[int]) -> Json:
        loan = self._tenant.loan(message.get("engine"))
        largest = [_shapes(one) for one in field_of(message, "largest", list)]
        if len(largest) > _MOST_SHAPES:
            raise Broken(f"found {len(largest)} shapes to prepare for, expected {_MOST_SHAPES}")
        with self._server.alone(self._tenant, loan):
            self._server.library().prepare(loan.volume, largest)
        return {}

    def _intermediates(self, message: Json, descriptors: list[int]) -> Json:
        volume = self._tenant.loan(message.get("engine")).volume
        shapes = _shapes(message.get("shapes"))
        return {"intermediates": intermediates_as_json(volume.intermediates(shapes))}

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
