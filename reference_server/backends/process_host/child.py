"""The child process of one model instance: its entry point, `main`, and what it does for messages.

The main thread receives jobs and does them: it opens, executes and closes. Another receives all
else. If the server is gone, the process ends at once.
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
from reference_server.backends.process_host.parcels import Parcel, ReceivedParcel
from reference_server.backends.process_host.proxies import (
    MetricsProxy,
    ModelCallsProxy,
    ReceivedRequests,
    RpcClient,
)
from reference_server.backends.python_host import inline
from reference_server.core import forks
from reference_server.core.errors import Code, ServerError
from reference_server.core.ports import SystemClock
from reference_server.core.request import InferRequest

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
#: What came of a job, and the tensors in it.
_Outcome = tuple[Any, Parcel | None]
#: What to do, and the kind of the message that tells what came of it; "exit" to do no more.
_Job = tuple[str, Callable[[], _Outcome]]


def main(parent: int, events: int, jobs: int, incoming: int, outgoing: int) -> None:
    """Serve one model instance until the server says so. The numbers are descriptors but the first.

    `parent` is the server's process.
    """
    _end_with(parent)
    _leave_signals_to_the_server()
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
    channel.keep_from_forks()
    # `pass_fds` made it inheritable. A process that the model starts must not keep it open: the
    # server would not see the end of this one.
    os.set_inheritable(end, False)
    return channel


def _end_with(parent: int) -> None:
    """Let the kernel end this process when the thread of `parent` ends that has started it.

    The thread that receives would notice, but not where a model keeps the GIL.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was faster
        os._exit(1)


def _leave_signals_to_the_server() -> None:
    """Signals go to the whole group of a terminal; the server ends its models in good order.

    Not SIG_IGN: the processes that a model starts would inherit that.
    """

    def do_nothing(_number: int, _frame: FrameType | None) -> None:
        pass

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, do_nothing)
        forks.default_in_forks(number)  # or `Process.terminate` would end no child of the model


def _set_up_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    faulthandler.enable()  # a crash tells which line of the model it was


def _log_to(connection: Connection) -> None:
    """Send the server's own log records, and those of pb_utils.Logger, to the server's log."""
    logger = logging.getLogger("reference_server")
    logger.handlers[:] = [_ConnectionHandler(connection)]
    logger.propagate = False
    logger.setLevel(logging.DEBUG)  # what is shown is decided where it is shown
    # A process that the model forks has no connection: what it logs is printed.
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
    """What the server's messages make this process do."""

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
            "is_ready": self._start_telling,
        }
        self._jobs: dict[str, Callable[..., _Job]] = {
            "open": lambda spec: ("done", lambda: (self._open(spec), None)),
            "execute": self._receive_batch,
            "close": lambda: ("done", self._close),
            "complete": lambda *what: ("done", lambda: (_complete(*what), None)),
            "exit": lambda: ("exit", lambda: (None, None)),
        }

    def run(self) -> None:
        """Do one job after the other until there are no more."""
        # Jobs are done on the main thread, and events received on another: in Triton's stub
        # `execute` runs on the interpreter's main thread.
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        while job := self._connection.receive_job(lambda kind, *parts: self._jobs[kind](*parts)):
            kind, do = job
            if kind == "exit":
                return
            self._do(kind, do)
            del job, do  # an idle process holds no tensors
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
        except Exception as error:  # a defect of ours must not leave the server waiting
            log.exception("a job failed")
            text = f"{type(error).__name__}: {error}"
            self._connection.send_job("failed", Code.INTERNAL.name, text)

    def _open(self, spec: dict[str, Any]) -> bool:
        self._instance = inline.InlineInstance(
            messages.unpack_spec(spec), SystemClock(), self._metrics, self._calls
        )
        self._instance.open()
        self._requests.begin()
        return self._instance.tells_readiness

    def _close(self) -> _Outcome:
        self._instance.close()
        return None, None

    def _start_telling(self) -> None:
        # Not a job: those wait for `execute`, and the receiving thread must not wait for the model.
        threading.Thread(target=self._tell_readiness, name="ready", daemon=True).start()

    def _tell_readiness(self) -> None:
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
            # The others are answered by their senders, and can be cancelled until then.
            if response is not None or index in execution.rescheduled:
                self._requests.answered(number)
        parcel = Parcel(self._connection)
        return messages.pack_execution(parcel, execution), parcel


def _complete(model_file: str, version_directory: str, model_name: str, config: str) -> str:
    paths = Path(model_file), Path(version_directory)
    return json.dumps(inline.auto_complete(*paths, model_name, json.loads(config)))
