"""One process for the instances of many tests in turn, which saves the time of its start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server.backends import kit

from reference_server.backends.process_host.connection import Connection, Handler
from reference_server.backends.process_host.instance import ProcessInstance, Supervision
from reference_server.backends.process_host.process import ChildProcess, Dispatcher
from reference_server.backends.python_host.api.server_access import NO_CALLS
from reference_server.core.health import Health
from reference_server.core.ports import ModelCalls, SystemClock
from reference_server.observability.metric_registry import MetricRegistry

#: The messages that objects of an earlier test may still send.
_BELATED = ("release", "forget")
_KINDS = (*_BELATED, "call", "give_up", "response", "log", "found")


class _Switch:
    """A dispatcher that passes all messages to the current one."""

    def __init__(self) -> None:
        self.current: Dispatcher
        self.handlers = {kind: self._passing(kind) for kind in _KINDS}

    def _passing(self, kind: str) -> Handler:
        def handle(*parts: Any) -> None:
            with contextlib.suppress(*([KeyError] if kind in _BELATED else [])):
                self.current.handlers[kind](*parts)

        return handle

    def end(self) -> None:
        pass


class SharedProcess:
    """Creates children for `ProcessInstance` that use one process, one at a time."""

    def __init__(self) -> None:
        self._switch = _Switch()
        self._process: ChildProcess | None = None

    def __call__(
        self,
        name: str,
        new_dispatcher: Callable[[Connection], Dispatcher],
        ended: Callable[[str], None],
    ) -> _Lent:
        if self._process is None or self._process.is_gone:
            self._process = ChildProcess("shared", lambda _: self._switch)
            self._process.start()
        self._switch.current = new_dispatcher(self._process.connection)
        return _Lent(self._process)

    def close(self) -> None:
        if self._process is not None:
            self._process.exit()


class _Lent:
    """The shared process for one instance; `exit` does not end it."""

    def __init__(self, process: ChildProcess) -> None:
        self._process = process
        self.start = lambda: None
        self.exit = lambda: None
        self.kill = process.kill
        self.run = process.run
        self.result = process.result
        self.connection = process.connection

    @property
    def is_gone(self) -> bool:
        return self._process.is_gone


def hosted(
    shared: SharedProcess,
    file: Path,
    *,
    metrics: MetricRegistry | None = None,
    calls: ModelCalls = NO_CALLS,
    **changes: object,
) -> ProcessInstance:
    """Return an instance of the model in `file` that runs in the shared process."""
    return ProcessInstance(
        kit.spec(file, **changes),
        Supervision(restarts=False),
        SystemClock(),
        metrics or MetricRegistry(),
        calls,
        Health(),
        shared,
    )
