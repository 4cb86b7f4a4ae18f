"""A child process as the server sees it: its start, its jobs, its output, its end."""

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
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from reference_server.backends.process_host import memory, messages
from reference_server.backends.process_host.connection import Connection, Handler, MessageChannel
from reference_server.backends.process_host.parcels import ReceivedParcel
from reference_server.core.errors import Code, ServerError, internal

log = logging.getLogger(__name__)

_CHUNK = 1 << 16
#: What the child's interpreter runs. Its modules are found where the server finds them. The first
#: argument is the instance's name, for `ps` alone. A model finds [''] in `sys.argv`, as in Triton.
_BOOT = (
    "import sys; _, _, *numbers = sys.argv[:7]; sys.path[:] = sys.argv[7:]; sys.argv[:] = ['']; "
    "from reference_server.backends.process_host.child import main; main(*map(int, numbers))"
)
#: How long a process may take to exit when it has nothing left to do.
_EXIT_S = 5.0
#: How long a process may take to send the next part of a message that it has begun.
_STALLED_S = 60.0


class ProcessEnded(Exception):
    """The process is gone; the text says how it ended."""


class ProcessSlow(Exception):
    """The process has not answered in time."""


class Dispatcher(Protocol):
    """Does what a process calls for, on the thread that receives from it."""

    handlers: Mapping[str, Handler]

    def end(self) -> None:
        """The process is gone."""


class ChildProcess:
    """A process that does one job after the other.

    `new_dispatcher` makes what takes the messages that come by themselves. `ended` is called once
    with how it ended, after the last message and before whoever waits for a result hears of it.
    """

    def __init__(
        self,
        name: str,
        new_dispatcher: Callable[[Connection], Dispatcher],
        ended: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._name = name
        self._new_dispatcher = new_dispatcher
        self._tell_end = ended
        # What a job gave is received under this lock, so that nothing is closed meanwhile.
        self._receiving = threading.Lock()
        self._told = threading.Event()
        self._readiness: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._started = threading.Event()
        self._printed = threading.Event()
        self._gone = threading.Event()
        self._failure: ServerError | None = None
        self._how = ""
        self._process: subprocess.Popen[bytes]
        self.connection: Connection

    def start(self) -> None:
        """Start it. Blocks for milliseconds: the process gets ready by itself.

        Raises ServerError if the system does not let it.
        """
        # The kernel ends the process with the thread that started it: that one stays till the end.
        threading.Thread(target=self._keep, name=f"{self._name} process", daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def run(self, *job: Any) -> Any:  # noqa: ANN401 - JSON's values
        """What a job gives; one at a time. Blocks. Raises ServerError or ProcessEnded."""
        self.connection.send_job(*job)
        return self.result()

    def result(self, limit_s: float | None = None) -> Any:  # noqa: ANN401 - JSON's values
        """What the job gives that was sent. Blocks.

        Raises ServerError if it failed, ProcessEnded, and ProcessSlow after `limit_s`, which leaves
        the process to be killed.
        """
        try:
            with self._receiving:
                result = self.connection.receive_job(_read_result, limit_s)
        except TimeoutError:
            raise ProcessSlow from None
        if result is None:
            self._told.wait()
            raise ProcessEnded(self._how)
        if isinstance(result, ServerError):
            raise result
        return result[0]

    def is_ready(self) -> bool:
        """What its model says of itself; False if it is gone. Beside any job, one at a time.

        Blocks for as long as the model does.
        """
        if self.is_gone:
            return False
        self.connection.send("is_ready")
        return self._readiness.get()

    def exit(self) -> None:
        """Let it end, or kill it if it does not within seconds. Blocks."""
        self.connection.send_job("exit")
        if not self._gone.wait(_EXIT_S):
            log.warning("the process of %s does not exit; it is killed", self._name)
            self.kill()

    def kill(self) -> None:
        """End it now. Blocks until it has."""
        self._process.kill()
        self._gone.wait()

    @property
    def is_gone(self) -> bool:
        """True once it has ended, and before `ended` is called."""
        return self._gone.is_set()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def _keep(self) -> None:
        try:
            self._start()
        except OSError as error:
            self._failure = internal(f"cannot start a process for '{self._name}': {error}")
            return
        finally:
            self._started.set()
        dispatcher = self._new_dispatcher(self.connection)
        self.connection.run({**dispatcher.handlers, "readiness": self._readiness.put})
        # What it printed last often says why it ended: that comes out before its end is told.
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            log.warning("the process of %s has no connection left; it is killed", self._name)
            self._process.kill()
            self._process.wait()
        self._printed.wait()
        how = self._how = _described(self._process.returncode)
        self._gone.set()  # before `ended`, which looks at it
        with self._receiving:
            self.connection.close()
        try:
            dispatcher.end()
            self._tell_end(how)
        finally:  # whatever a sink does, nobody is left waiting
            self._readiness.put(False)
            self._told.set()

    def _start(self) -> None:
        """Start it, and what copies its output. Raises OSError, and then leaves nothing open."""
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
                [sys.executable, "-c", _BOOT, self._name, *numbers, *sys.path],
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
            args=(self._name, life, {out: sys.stdout, err: sys.stderr}, self._died),
            name=f"{self._name} output",
            daemon=True,
        ).start()

    def _died(self) -> None:
        self._printed.set()
        self.connection.shut()


def _read_result(kind: str, *parts: Any) -> tuple[Any] | ServerError:  # noqa: ANN401 - JSON's values
    return _RESULTS[kind](*parts)


def _executed(packed: messages.Packed, parcel: ReceivedParcel) -> tuple[Any]:
    return (messages.unpack_execution(parcel, packed),)


_RESULTS: dict[str, Callable[..., tuple[Any] | ServerError]] = {
    "done": lambda outcome: (outcome,),
    "executed": _executed,
    "failed": lambda code, text: ServerError(Code[code], text),
}


def _closed_with(stack: contextlib.ExitStack, descriptor: int) -> int:
    """`descriptor`, which is closed with `stack`."""
    stack.callback(os.close, descriptor)
    return descriptor


def _described(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


# ------------------------------------------------------------------------------- its output


def pump(name: str, life: int, pipes: Mapping[int, TextIO], ended: Callable[[], None]) -> None:
    """Copy each line that comes out of `pipes` to its stream, as `[name] line`, until all end.

    Calls `ended` when the process has whose pidfd is `life`, and all that it had printed is copied:
    a socket or a pipe does not tell, if it has left processes of its own behind. Blocks; owns all
    these descriptors.
    """
    open_pipes = {pipe: _Pipe(pipe, stream, name) for pipe, stream in pipes.items()}
    with selectors.DefaultSelector() as selector:
        for descriptor in (life, *pipes):
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            ready = {key.fd for key, _ in selector.select()}
            for descriptor in open_pipes if life in ready else ready:
                if not open_pipes[descriptor].copy():
                    selector.unregister(descriptor)
            open_pipes = {fd: pipe for fd, pipe in open_pipes.items() if not pipe.is_over}
            if life in ready:
                selector.unregister(life)
                os.close(life)
                ended()


class _Pipe:
    """One pipe, read as far as there is something in it."""

    def __init__(self, descriptor: int, stream: TextIO, name: str) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._stream = stream
        self._name = name
        self._rest = b""
        self.is_over = False

    def copy(self) -> bool:
        """Copy what is there; False if nothing more will come."""
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
        """In one call, so that the lines of different processes do not mix."""
        texts = (f"[{self._name}] {line.decode(errors='replace')}\n" for line in lines)
        self._stream.write("".join(texts))
        self._stream.flush()
