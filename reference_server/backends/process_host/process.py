"""The server's side of a child process: start, jobs, output and end."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from reference_server.backends.environments import Environment
from reference_server.backends.process_host import memory, messages
from reference_server.backends.process_host.connection import Connection, Handler, MessageChannel
from reference_server.core.errors import Code, ServerError, internal

log = logging.getLogger(__name__)

_CHUNK = 1 << 16
#: The code of the child's interpreter, with the server's `sys.path`. The first argument is the
#: instance's name, which `ps` shows. A model finds [''] in `sys.argv`, as in Triton.
_BOOT = (
    "import sys; _, _, *numbers = sys.argv[:7]; sys.path[:] = sys.argv[7:]; sys.argv[:] = ['']; "
    "from reference_server.backends.process_host.child import main; main(*map(int, numbers))"
)
#: The program that starts the child in a model's own environment.
_BOOT_FILE = Path(__file__).with_name("boot.py")
_PACKAGE = _BOOT_FILE.parents[2]
#: The time limit for the exit of a process without work.
_EXIT_S = 5.0
#: The time limit between two parts of one message.
_STALLED_S = 60.0
#: The time between two checks whether a process is stopped, for example by SIGSTOP.
_CHECK_S = 0.5
#: A process that is stopped at this number of consecutive checks is killed. In Triton, too, the
#: requests of a stopped process fail after a second.
_STOPPED_CHECKS = 3


class ProcessEnded(Exception):
    """The process has ended; the text describes how."""


class ProcessSlow(Exception):
    """The process did not answer in time."""


class Dispatcher(Protocol):
    """Handles the events of a process, on the receiving thread."""

    handlers: Mapping[str, Handler]

    def end(self) -> None:
        """Handle the end of the process."""


class ChildProcess:
    """A process that runs one job after the other.

    `new_dispatcher` creates the event handlers. `ended` is called once with a description of the
    end, after the last message and before a waiting job fails. If `environment` is None, the
    process runs in the server's environment.
    """

    def __init__(
        self,
        name: str,
        new_dispatcher: Callable[[Connection], Dispatcher],
        ended: Callable[[str], None] = lambda _: None,
        environment: Environment | None = None,
    ) -> None:
        self._name = name
        self._environment = environment
        self._new_dispatcher = new_dispatcher
        self._on_end = ended
        # Held while a result is received, so that the connection stays open.
        self._receiving = threading.Lock()
        self._end_handled = threading.Event()
        self._readiness: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._started = threading.Event()
        self._printed = threading.Event()
        self._gone = threading.Event()
        self._failure: ServerError | None = None
        self._description = ""
        self._stopped_checks = 0
        self._process: subprocess.Popen[bytes]
        self.connection: Connection

    def start(self) -> None:
        """Start the process without waiting for its initialization.

        Raises ServerError if the system cannot start a process.
        """
        # The kernel kills the process when the thread that started it ends, so the thread keeps
        # running.
        threading.Thread(target=self._supervise, name=f"{self._name} process", daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def run(self, *job: Any) -> Any:  # noqa: ANN401 - JSON's values
        """Run one job and return its result. Raises ServerError or ProcessEnded."""
        self.connection.send_job(*job)
        return self.result()

    def result(self, limit_s: float | None = None) -> Any:  # noqa: ANN401 - JSON's values
        """Wait for the result of the job that was sent.

        Raises ServerError if the job failed, ProcessEnded, and ProcessSlow after `limit_s`. After
        ProcessSlow the caller must kill the process.
        """
        try:
            with self._receiving:
                result = self.connection.receive_job(_read_result, limit_s)
        except TimeoutError:
            raise ProcessSlow from None
        if result is None:
            self._end_handled.wait()
            raise ProcessEnded(self._description)
        if isinstance(result, ServerError):
            raise result
        return result[0]

    def is_ready(self) -> bool:
        """Return the model's readiness; False if the process has ended.

        Blocks as long as the model does. A job may run at the same time, but no second `is_ready`.
        """
        if self.is_gone:
            return False
        self.connection.send("is_ready")
        return self._readiness.get()

    def exit(self) -> None:
        """End the process; kill it if it does not exit within seconds. Blocks."""
        self.connection.send_job("exit")
        if not self._gone.wait(_EXIT_S):
            log.warning("'%s': its process did not exit and is killed", self._name)
            self.kill()

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._gone.wait()

    @property
    def is_gone(self) -> bool:
        """True once the process has ended; set before `ended` is called."""
        return self._gone.is_set()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _supervise(self) -> None:
        try:
            self._start()
        except OSError as error:
            self._failure = internal(f"'{self._name}': cannot start a process: {error}")
            return
        finally:
            self._started.set()
        dispatcher = self._new_dispatcher(self.connection)
        self.connection.run({**dispatcher.handlers, "readiness": self._readiness.put})
        # The last output often shows why the process ended, so the output is copied first.
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            log.warning("'%s': its process closed the connection and is killed", self._name)
            self._process.kill()
            self._process.wait()
        self._printed.wait()
        is_killed = self._stopped_checks == _STOPPED_CHECKS
        how = "was stopped by a signal, and then killed"
        self._description = how if is_killed else _described(self._process.returncode)
        self._gone.set()  # before `ended`, which reads it
        with self._receiving:
            self.connection.close()
        try:
            dispatcher.end()
            self._on_end(self._description)
        finally:  # an exception of a sink must not leave a thread waiting
            self._readiness.put(False)
            self._end_handled.set()

    def _start(self) -> None:
        """Start the process and the copying of its output. Raises OSError."""
        with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
            ours, theirs = [], []
            for _ in ("events", "jobs"):
                our, their = socket.socketpair()
                ours.append(kept.enter_context(our))
                theirs.append(given.enter_context(their))
            to_child = _closed_with(given, memory.create())
            from_child = _closed_with(given, memory.create())
            (out, childs_out), (err, childs_err) = os.pipe(), os.pipe()
            for descriptor in (out, err):
                _closed_with(kept, descriptor)
            for descriptor in (childs_out, childs_err):
                _closed_with(given, descriptor)
            self.connection = Connection(
                MessageChannel(ours[0], _STALLED_S),
                MessageChannel(ours[1], _STALLED_S),
                memory.OutgoingMemory(to_child),
                memory.IncomingMemory(from_child),
            )
            passed = *(end.fileno() for end in theirs), to_child, from_child
            numbers = map(str, (os.getpid(), *passed))
            self._process = subprocess.Popen(
                self._command(tuple(numbers)),
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=childs_out,
                stderr=childs_err,
            )
            try:
                life = os.pidfd_open(self._process.pid)
            except OSError:  # a kernel before 5.3
                self._process.kill()
                self._process.wait()
                raise
            kept.pop_all()
        threading.Thread(
            target=pump,
            args=(self._name, life, {out: sys.stdout, err: sys.stderr}, self._died, self._check),
            name=f"{self._name} output",
            daemon=True,
        ).start()

    def _command(self, numbers: Sequence[str]) -> list[str]:
        """Return the command of the process. `numbers` are the arguments of `child.main`."""
        environment = self._environment
        if environment is None:
            return [sys.executable, "-c", _BOOT, self._name, *numbers, *sys.path]
        folders = str(_PACKAGE), str(environment.libraries)
        return environment.command(str(_BOOT_FILE), *folders, self._name, *numbers)

    def _died(self) -> None:
        self._printed.set()
        self.connection.shut()

    def _check(self) -> None:
        """Kill a process that stays stopped: its requests would never end."""
        if self._stopped_checks < _STOPPED_CHECKS:
            self._stopped_checks = self._stopped_checks + 1 if is_stopped(self.pid) else 0
            if self._stopped_checks == _STOPPED_CHECKS:
                self._process.kill()


def is_stopped(pid: int) -> bool:
    """Return whether a process of this user is stopped by a signal, not by a debugger."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # it has ended
        return False
    return status.rpartition(")")[2].split()[0] == "T"


def _read_result(kind: str, *parts: Any) -> tuple[Any] | ServerError:  # noqa: ANN401 - JSON's values
    return _RESULTS[kind](*parts)


_RESULTS: dict[str, Callable[..., tuple[Any] | ServerError]] = {
    "done": lambda outcome: (outcome,),
    "executed": lambda packed, parcel: (messages.unpack_execution(parcel, packed),),
    "failed": lambda code, text: ServerError(Code[code], text),
}


def _closed_with(stack: contextlib.ExitStack, descriptor: int) -> int:
    """Return `descriptor`, which `stack` will close."""
    stack.callback(os.close, descriptor)
    return descriptor


def _described(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


# ------------------------------------------------------------------------------- the output


def pump(
    name: str,
    life: int,
    pipes: Mapping[int, TextIO],
    ended: Callable[[], None],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Copy each line from `pipes` to its stream as `[name] line`, until all pipes end.

    Calls `check` at regular intervals while the process of the pidfd `life` runs. Calls `ended`
    when the process has ended and its output is copied. Sockets and pipes do not show the end of
    the process while its children hold them open. Blocks. Closes `life` and `pipes`.
    """
    check_s = time.monotonic() + _CHECK_S
    lives = True
    open_pipes = {pipe: _Pipe(pipe, stream, name) for pipe, stream in pipes.items()}
    with selectors.DefaultSelector() as selector:
        for descriptor in (life, *pipes):
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left_s = max(0.0, check_s - time.monotonic()) if lives else None
            ready = {key.fd for key, _ in selector.select(left_s)}
            now_s = time.monotonic()
            if lives and now_s >= check_s:
                check_s = now_s + _CHECK_S  # not from `check_s`: the server may have been stopped
                check()
            for descriptor in open_pipes if life in ready else ready:
                if not open_pipes[descriptor].copy():
                    selector.unregister(descriptor)
            open_pipes = {fd: pipe for fd, pipe in open_pipes.items() if not pipe.is_over}
            if life in ready:
                lives = False
                selector.unregister(life)
                os.close(life)
                ended()


class _Pipe:
    """One non-blocking pipe whose lines are copied to a stream."""

    def __init__(self, descriptor: int, stream: TextIO, name: str) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._stream = stream
        self._name = name
        self._rest = b""
        self.is_over = False

    def copy(self) -> bool:
        """Copy the available output; return False at the end of the pipe."""
        try:
            while data := os.read(self._descriptor, _CHUNK):
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._write(lines)
        except BlockingIOError:
            return True
        if self._rest:
            self._write([self._rest])
        os.close(self._descriptor)
        self.is_over = True
        return False

    def _write(self, lines: list[bytes]) -> None:
        """Write lines in one call, so that lines of different processes do not mix."""
        texts = (f"[{self._name}] {line.decode(errors='replace')}\n" for line in lines)
        self._stream.write("".join(texts))
        self._stream.flush()
