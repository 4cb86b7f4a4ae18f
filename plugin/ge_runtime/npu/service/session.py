"""One connection of the device service, from its first message to its end.

The first message has the role of the connection: a `client` opens engines and announces arenas, a
`run` executes on one engine of a client, an `observer` requests statistics, and a `probe` checks
that the service is alive and requests the device's condition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from ge_runtime.config import Resident, kind_of
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Limited, Shapes
from ge_runtime.errors import EngineLost, OutOfMemory, RuntimeFault, shown
from ge_runtime.npu.service.channel import Channel, DescriptorsExhausted, PeerGone, close_all
from ge_runtime.npu.service.execution_loop import ServerExecutions
from ge_runtime.npu.service.messages import VISIBLE_DEVICES_VARIABLES, handles_of, resident_of
from ge_runtime.npu.service.model_cache import CachedModel
from ge_runtime.npu.service.protocol import (
    VERSION,
    Json,
    ProtocolError,
    fault_as_json,
    intermediates_as_json,
    signature_as_json,
)
from ge_runtime.npu.service.resident import ResidentTensors
from ge_runtime.npu.service.state import MOST_ENGINES, ClientSession, ModelReference, ServiceState

_log = logging.getLogger(__name__)

_HELLO_S: Final = 10.0
"""Time limit for the first message."""
_CLOSE_S: Final = 3.0
"""Time limit for ending an engine's connection when the engine is closed."""

_MOST_WEIGHT: Final = 1e6
_MOST_NAME: Final = 256
"""Maximum length of a client's name."""
_MOST_THREADS: Final = 1024
_MOST_SHAPES: Final = 10_000
"""Maximum number of shapes in one `bind`, because each shape is compared with all other shapes."""

Value = TypeVar("Value")


def serve(state: ServiceState, channel: Channel, pid: int) -> None:
    """Serve one connection until it ends. Never raises."""
    session = _Session(state, channel, pid)
    try:
        session.serve()
    except PeerGone:
        pass
    except ProtocolError as error:
        _log.warning("%s is closed: %s", session.name, error)
    except Exception:
        _log.exception("%s is closed", session.name)


class _Session:
    """A connection, and the name of its client for the log."""

    def __init__(self, state: ServiceState, channel: Channel, pid: int) -> None:
        self._state = state
        self._channel = channel
        self._pid = pid
        self.name = f"a connection of pid {pid}"

    def serve(self) -> None:
        """Serve the connection until it ends. Sends an error to the client, and then raises it."""
        until = self._state.clock.now() + _HELLO_S

        def check_time() -> None:
            if self._state.clock.now() > until:
                raise ProtocolError(f"no message received for {_HELLO_S:g} s")

        try:
            hello, descriptors = self._channel.receive_json(check_time)
            close_all(descriptors)
            self._channel.set_receive_timeout(0)
            role = hello.get("role")
            if role == "probe":
                self._channel.send_json({"ok": self._state.condition()})
            elif role == "observer":
                self._observe()
            elif role == "client":
                self._control(hello)
            elif role == "run":
                self._execute(hello)
            else:
                raise ProtocolError(f"found role {role!r}, expected client, run, observer or probe")
        except ProtocolError as error:
            self._channel.send_json({"refused": str(error)})
            raise
        except PeerGone:
            raise
        except Exception as error:  # without a response the client would retry
            self._channel.send_json({"fault": fault_as_json(error)})
            if not isinstance(error, RuntimeFault):
                raise
            _log.warning("%s is closed: %s", self.name, error)

    def _observe(self) -> None:
        while True:
            self._channel.send_json({"ok": self._state.stats()})
            _, descriptors = self._channel.receive_json()
            close_all(descriptors)

    def _execute(self, hello: Json) -> None:
        client = self._state.join(hello.get("client"))
        self.name = f"a connection of {client}"
        try:
            reference = client.reference(hello.get("engine"))
            self.name += f" for {reference.name}"
            # Only one connection may execute on an engine: the engine has one queue entry.
            if not reference.busy.acquire(blocking=False):
                raise ProtocolError("found a second connection to an engine, expected one")
            try:
                reference.disconnect = self._channel.shut_down_reading
                if client.leaving:  # `_control` may have ended before `disconnect` was set
                    raise PeerGone("its client has disconnected")
                self._channel.send_json({"ok": {}})
                ServerExecutions(self._state, self._channel, client, reference).serve()
            finally:
                reference.busy.release()
        finally:
            self._state.leave(client)

    def _control(self, hello: Json) -> None:
        client = self._register(hello)
        self.name = f"the connection of {client}"
        _log.info("%s has connected", client)
        try:
            # Opening the device may take long. The registered client keeps the service alive.
            backend = self._state.backend()
            welcome = {
                "version": VERSION,
                "client": client.token,
                "kind": backend.kind,
                "hardware": backend.hardware,
                "condition": self._state.condition(),
            }
            self._channel.send_json({"ok": welcome})
            handler = ControlHandler(self._state, client)
            while True:
                try:
                    message, descriptors = self._channel.receive_json()
                except DescriptorsExhausted as error:
                    _log.warning("%s: %s", client, error)
                    fault = OutOfMemory(f"the device service: {error}")
                    self._channel.send_json({"fault": fault_as_json(fault)})
                else:
                    self._channel.send_json(handler.answer(message, descriptors))
        finally:
            # `leaving` is set before the loop below: a `run` connection that joins concurrently
            # either reads the flag, or is disconnected by the loop.
            client.leaving = True
            with client.lock:
                references = list(client.references.values())
            for reference in references:
                if (entry := reference.entry) is not None:
                    self._state.scheduler.cancel(entry)
                reference.disconnect()
            self._state.leave(client)

    def _register(self, hello: Json) -> ClientSession:
        """Create a client from its first message. Raises ProtocolError."""
        state = self._state
        name, weight = _client_name(hello.get("name")), hello.get("weight", 1.0)
        priority = _field(hello, "priority", int)
        if not isinstance(weight, int | float) or not 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:
            raise ProtocolError(f"found weight {weight!r}, expected a number above 0")
        means = hello.get("means", state.physical_device)
        if means != state.physical_device:
            variable = VISIBLE_DEVICES_VARIABLES.get(kind_of(state.device), "the environment")
            raise ProtocolError(
                f"found {state.device} to be the machine's device {means!r}, expected "
                f"{state.physical_device!r} as in this service: {variable} differs. Set "
                "XDG_RUNTIME_DIR so that each process has its own service"
            )
        return state.enter(name, self._pid, float(weight), priority)


class ControlHandler:
    """Handles the control messages of one client, for its engines and arenas."""

    def __init__(self, state: ServiceState, client: ClientSession) -> None:
        self._state = state
        self._client = client
        self._handlers: Mapping[str, Callable[[Json, list[int]], Json]] = {
            "arena": self._arena,
            "forget": self._forget,
            "open": self._open,
            "bind": self._bind,
            "keep": self._keep,
            "let_go": self._release_rows,
            "intermediates": self._intermediates,
            "cancel": self._cancel,
            "close": self._close,
        }

    def answer(self, message: Json, descriptors: list[int]) -> Json:
        """Handle a message, and return the response. Closes the descriptors."""
        do = str(message.get("do"))
        try:
            handler = self._handlers.get(do)
            if handler is None:
                raise ProtocolError(f"found command {do!r}, expected one of {[*self._handlers]}")
            return {"ok": handler(message, descriptors)}
        except ProtocolError as error:
            _log.warning("%s: refused: %s", self._client, error)
            return {"refused": str(error)}
        except EngineLost as lost:
            self._state.end(f"the device is lost, as {self._client} found: {lost}", patience_s=0.0)
            return {"fault": fault_as_json(lost)}
        except RuntimeFault as fault:
            _log.warning("%s: '%s' failed: %.2000s", self._client, do, fault)
            return {"fault": fault_as_json(fault)}
        except MemoryError as error:
            _log.warning("%s: '%s' failed: %.2000s", self._client, do, error)
            return {"fault": fault_as_json(OutOfMemory(f"the device service: {error}"))}
        except Exception as error:
            _log.exception("%s: '%s' failed", self._client, do)
            return {"fault": fault_as_json(error)}
        finally:
            close_all(descriptors)

    def _arena(self, message: Json, descriptors: list[int]) -> Json:
        if len(descriptors) != 1:
            raise ProtocolError(f"found {len(descriptors)} descriptors with an arena, expected 1")
        number, nbytes = _field(message, "number", int), _field(message, "nbytes", int)
        self._client.arenas.add(number, descriptors[0], nbytes)
        return {}

    def _forget(self, message: Json, descriptors: list[int]) -> Json:
        try:
            self._client.arenas.remove(_field(message, "number", int))
        finally:
            # Incremented even after an error: executions must not use cached arrays of the arena.
            self._client.version += 1
        return {}

    def _open(self, message: Json, descriptors: list[int]) -> Json:
        if len(self._client.references) >= MOST_ENGINES:
            raise ProtocolError(f"found {MOST_ENGINES} open engines, expected no more")
        artifacts = [
            Artifact(Path(str(path)), str(engine), str(reason))
            for path, engine, reason in _triples(message.get("artifacts"))
        ]
        outputs = [str(name) for name in _field(message, "outputs", list)]
        threads = _field(message, "threads", int)
        if not 1 <= threads <= _MOST_THREADS:
            raise ProtocolError(f"found {threads} threads, expected 1 to {_MOST_THREADS}")
        # Read before the files are opened: if a file is replaced in between, its identity is that
        # of the old file.
        seen = self._state.cache().identities(artifacts)
        declared = resident_of(message.get("resident"))
        model = self._state.cache().acquire(artifacts, threads=threads, outputs=outputs)
        name = shown(*(artifact.path for artifact in artifacts))
        try:
            resident = self._resident(declared, model, name)
        except BaseException:
            self._state.cache().release(model)
            raise
        reference = self._state.add_reference(self._client, name, model, resident)
        _log.info("%s has opened %s, content %.12s", self._client, name, model.content)
        engine = model.engine
        shapes = engine.shapes
        return {
            "engine": reference.number,
            "signature": signature_as_json(engine.signature),
            "shapes": None if shapes is None else [dict(one) for one in shapes],
            "weights_bytes": engine.weights_bytes(),
            "device_io_bytes": engine.device_io_bytes(),
            "unplanned": list(engine.unplanned) if isinstance(engine, Limited) else [],
            "content": model.content,
            "seen": seen,
        }

    def _resident(
        self, declared: Resident, model: CachedModel, name: str
    ) -> ResidentTensors | None:
        if not declared.tensors:
            return None
        backend, rows = self._state.backend(), self._state.rows
        return ResidentTensors(declared, model.engine, backend, rows, name)

    def _release_rows(self, message: Json, descriptors: list[int]) -> Json:
        self._state.rows.release(handles_of(message.get("handles")))
        return {}

    def _bind(self, message: Json, descriptors: list[int]) -> Json:
        reference = self._reference(message)
        largest = [_shapes(one) for one in _field(message, "largest", list)]
        if len(largest) > _MOST_SHAPES:
            raise ProtocolError(
                f"found {len(largest)} shapes to prepare for, expected at most {_MOST_SHAPES}"
            )
        with self._state.exclusive(self._client, reference):
            self._state.cache().prepare(reference.model, largest)
            if reference.resident is not None:
                reference.resident.prepare(reference.model.engine, largest)
        return {}

    def _keep(self, message: Json, descriptors: list[int]) -> Json:
        resident = self._reference(message).resident
        if resident is None:
            raise ProtocolError("found an engine without resident tensors, expected at least one")
        if not resident.keep():
            raise ProtocolError("found an engine without memory, expected 'bind' first")
        return {}

    def _intermediates(self, message: Json, descriptors: list[int]) -> Json:
        model = self._reference(message).model
        shapes = _shapes(message.get("shapes"))
        return {"intermediates": intermediates_as_json(model.intermediates(shapes))}

    def _cancel(self, message: Json, descriptors: list[int]) -> Json:
        entry = self._reference(message).entry
        if entry is not None:
            self._state.scheduler.cancel(entry)
        return {}

    def _close(self, message: Json, descriptors: list[int]) -> Json:
        reference = self._reference(message)
        reference.disconnect()
        # Never released, so that no other connection can execute on the engine.
        if not reference.busy.acquire(timeout=_CLOSE_S):
            raise ProtocolError("found an engine that is executing, expected an idle one")
        with self._client.lock:
            del self._client.references[reference.number]
        self._state.close_reference(reference)
        return {}

    def _reference(self, message: Json) -> ModelReference:
        return self._client.reference(message.get("engine"))


# --------------------------------------------------------------------------- fields of messages


def _client_name(given: object) -> str:
    """Return a client's name, truncated and without control characters."""
    text = str(given)[:_MOST_NAME]
    return "".join(character if character.isprintable() else "?" for character in text)


def _field(message: Json, name: str, kind: type[Value]) -> Value:
    """Return a field of this type. Raises ProtocolError."""
    value = message.get(name)
    if type(value) is not kind:  # not isinstance, because True is an int
        raise ProtocolError(f"found {name} {value!r}, expected {kind.__name__}")
    return value


def _triples(value: object) -> Sequence[Sequence[Any]]:
    if (
        isinstance(value, list)
        and value
        and all(isinstance(one, list) and len(one) == 3 for one in value)
    ):
        return value
    raise ProtocolError(f"found artifacts {value!r}, expected a list of path, engine and reason")


def _shapes(value: object) -> Shapes:
    if not isinstance(value, dict):
        raise ProtocolError(f"found shapes {value!r}, expected an object")
    shapes = {}
    for name, dims in value.items():
        if not isinstance(dims, list) or not all(type(dim) is int and dim >= 0 for dim in dims):
            raise ProtocolError(f"found shape {dims!r} for '{name}', expected sizes")
        shapes[name] = tuple(dims)
    return shapes
