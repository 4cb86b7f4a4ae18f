"""The child process of one model instance: its entry point `main`, and its message handlers.

The main thread receives and runs jobs: it opens, executes and closes the instance. Another thread
receives events. If the server ends, the process ends at once.
"""

from __future__ import annotations

import ctypes
import faulthandler
import io
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from reference_server.backends.process_host import messages
from reference_server.backends.process_host.connection import Connection, Handler, MessageChannel
from reference_server.backends.process_host.memory import IncomingMemory, OutgoingMemory
from reference_server.backends.process_host.messages import Parcel, ReceivedParcel
from reference_server.backends.process_host.proxies import (
    MetricsProxy,
    ModelCallsProxy,
    ReceivedRequests,
    RpcClient,
)
from reference_server.backends.python_host import inline, model_code
from reference_server.core import forks
from reference_server.core.errors import Code, ServerError
from reference_server.core.ports import SystemClock
from reference_server.core.request import InferRequest

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
#: The result of a job, and the parcel with its tensors.
_Outcome = tuple[Any, "Parcel | None"]
#: The type of the result message, and the function to run. The type "exit" ends the process.
_Job = tuple[str, Callable[[], _Outcome]]


def main(parent: int, events: int, jobs: int, incoming: int, outgoing: int) -> None:
    """Serve one model instance until the server ends it.

    `parent` is the server's process id; the other arguments are descriptors.
    """
    _end_with(parent)
    _ignore_signals()
    _set_up_output()
    connection = Connection(
        _channel(events), _channel(jobs), OutgoingMemory(outgoing), IncomingMemory(incoming)
    )
    os.close(incoming)
    os.close(outgoing)
    _log_to(connection)
    _Child(connection).run()


def _channel(end: int) -> MessageChannel:
    channel = MessageChannel(socket.socket(fileno=end))
    channel.close_in_forks()
    # `pass_fds` made the socket inheritable. A process that the model starts must not keep it open,
    # because the server would then not notice the end of this process.
    os.set_inheritable(end, False)
    return channel


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread of `parent` that started it ends.

    The receiving thread notices the end of `parent` too, but not while a model holds the GIL.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended already
        os._exit(1)


def _ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM, which a terminal sends to all processes: the server closes models.

    The handler is not SIG_IGN, which processes that a model starts would inherit.
    """

    def do_nothing(_number: int, _frame: FrameType | None) -> None:
        pass

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, do_nothing)
        forks.default_in_forks(number)  # or `Process.terminate` could not end the model's children


def _set_up_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    faulthandler.enable()  # a crash prints the model's line


def _log_to(connection: Connection) -> None:
    """Send the server's own log records, and those of pb_utils.Logger, to the server's log."""
    logger = logging.getLogger("reference_server")
    logger.handlers[:] = [_ConnectionHandler(connection)]
    logger.propagate = False
    logger.setLevel(logging.DEBUG)  # the server filters by level
    # A forked child has no connection and prints its log lines.
    printed = logging.StreamHandler()
    forks.call_in_forks(lambda: logger.handlers.__setitem__(slice(None), [printed]))


class _ConnectionHandler(logging.Handler):
    """Sends each record over the connection."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        self._connection.send(
            "log", record.name, record.levelno, record.pathname, record.lineno, text, record.created
        )


class _Child:
    """Handles the server's messages."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        server = RpcClient(connection)
        self._metrics = MetricsProxy(server)
        self._requests = ReceivedRequests(connection)
        self._calls = ModelCallsProxy(server, self._requests)
        self._instance: inline.InlineInstance
        self._handlers: dict[str, Handler] = {
            **server.handlers,
            **self._calls.handlers,
            **self._requests.handlers,
            "is_ready": self._start_readiness,
        }
        self._jobs: dict[str, Callable[..., _Job]] = {
            "open": lambda spec: ("done", lambda: (self._open(spec), None)),
            "execute": self._receive_batch,
            "close": lambda: ("done", self._close),
            "complete": lambda *what: ("done", lambda: (_complete(*what), None)),
            "exit": lambda: ("exit", lambda: (None, None)),
        }

    def run(self) -> None:
        """Receive and run jobs until `exit`."""
        # Jobs run on the main thread, because `execute` does so in Triton's stub. Events are
        # received on another thread.
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        while job := self._connection.receive_job(lambda kind, *parts: self._jobs[kind](*parts)):
            kind, do = job
            if kind == "exit":
                return
            self._do(kind, do)
            del job, do  # an idle process must not hold tensors
        os._exit(1)  # the server is gone

    def _receive(self) -> None:
        self._connection.run(self._handlers)
        os._exit(1)  # the server is gone

    def _do(self, kind: str, job: Callable[[], _Outcome]) -> None:
        try:
            outcome, parcel = job()
            self._connection.send_job(kind, outcome, parcel=parcel)
        except ServerError as error:
            self._connection.send_job("failed", error.code.name, error.message)
        except Exception as error:  # a defect must not leave the server waiting
            log.exception("a job failed")
            text = f"{type(error).__name__}: {error}"
            self._connection.send_job("failed", Code.INTERNAL.name, text)

    def _open(self, spec: dict[str, Any]) -> bool:
        self._instance = inline.InlineInstance(
            *(messages.unpack_spec(spec), SystemClock(), self._metrics, self._calls),
            report=lambda key: self._connection.send("found", key),
        )
        self._instance.open()
        self._requests.begin()
        return self._instance.has_readiness

    def _close(self) -> _Outcome:
        self._instance.close()
        return None, None

    def _start_readiness(self) -> None:
        # Not a job, which would wait for `execute`. The receiving thread must not block.
        threading.Thread(target=self._send_readiness, name="ready", daemon=True).start()

    def _send_readiness(self) -> None:
        self._connection.send("readiness", self._instance.is_ready())

    def _receive_batch(
        self, first: int, packed: list[messages.Packed], parcel: ReceivedParcel
    ) -> _Job:
        requests = self._requests.receive(first, packed, parcel)
        return "executed", lambda: self._execute(first, requests)

    def _execute(self, first: int, requests: list[InferRequest]) -> _Outcome:
        numbers = range(first, first + len(requests))
        try:
            execution = self._instance.execute(requests)
        except ServerError:
            for number in numbers:
                self._requests.answered(number)
            raise
        for index, (number, response) in enumerate(zip(numbers, execution.responses, strict=True)):
            # The model answers the other requests later by response senders. Until then the
            # requests can be cancelled.
            if response is not None or index in execution.rescheduled:
                self._requests.answered(number)
        parcel = Parcel(self._connection)
        return messages.pack_execution(parcel, execution), parcel


def _complete(model_file: str, version_directory: str, model_name: str, config: str) -> str:
    paths = Path(model_file), Path(version_directory)
    return model_code.auto_complete(*paths, model_name, json.loads(config))
