"""Python programs as forks of a process that has imported their modules.

Imports are most of a short program's start: a model process uses 0.22 s of processor time, its fork
0.02 s. A program has its own arguments (also in `sys.orig_argv`), environment, folder and
descriptors, but `/proc/self/cmdline` has the command line of the forking process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

#: Forks twice for each message. The first fork waits for the second one, the program.
_SERVER = """
import ctypes, fcntl, json, os, runpy, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes
control = socket.socket(fileno=int(sys.argv[1]))
exec(sys.argv[2])
while True:
    text, received, _, _ = socket.recv_fds(control, 1 << 20, 64)
    if not text:
        os._exit(0)
    if os.fork():
        for each in received:
            os.close(each)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        continue
    control.close()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    status = received.pop()
    if program := os.fork():
        for each in received:
            os.close(each)
        os.write(status, b"%d" % program)
        _, code = os.waitpid(program, 0)
        os.write(status, b"%d" % os.waitstatus_to_exitcode(code))
        os._exit(0)
    os.close(status)
    break
order = json.loads(text)
kept = [fcntl.fcntl(each, fcntl.F_DUPFD, 1000) for each in received]
for each in received:
    os.close(each)
for each, number in zip(kept, order["numbers"]):
    os.dup2(each, number)
    os.close(each)
for number, name in enumerate(("stdin", "stdout", "stderr")):
    stream = open(number, "w" if number else "r", closefd=False)
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)
os.environ.clear()
os.environ.update(order["environment"])
os.chdir(order["folder"])
command = [str(os.getppid()) if word == order["parent"] else word for word in order["command"]]
sys.orig_argv[:] = command
signal.signal(signal.SIGINT, signal.default_int_handler)
if order["session"]:
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if command[1] == "-m":
    sys.argv[:] = command[2:]
    sys.path[0] = order["folder"]
    runpy.run_module(command[2], run_name="__main__", alter_sys=True)
else:
    sys.argv[:] = ["-c", *command[3:]]
    exec(compile(command[2], "<string>", "exec"), {"__name__": "__main__"})
"""


class Fork:
    """A running program, with the part of `subprocess.Popen` that its callers use."""

    def __init__(self, args: Sequence[str], status: socket.socket) -> None:
        self.args = args
        self.returncode: int | None = None
        self._status = status.detach()
        self._close = weakref.finalize(self, os.close, self._status)
        self._reading = threading.Lock()
        if not (text := os.read(self._status, 64)):
            raise OSError(f"{args}: the process that forks it has ended")
        self.pid = int(text)

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; the negative signal number if a signal has ended the program."""
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._status, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            with self._reading:
                if self.returncode is None:
                    self.returncode = int(os.read(self._status, 64) or -signal.SIGKILL)
                    self._close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the program, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def path_and(imports: str) -> str:
    """Return code that extends `sys.path` by this process's folders, and then imports."""
    return f"sys.path[1:1] = {[each for each in sys.path if each]!r}\n{imports}"


class ForkServer:
    """Starts programs of `python -c` or `python -m`. The server itself starts with the first one.

    Args:
        imports: The code that imports the programs' modules, with the first program's environment.
    """

    #: Names of the module `subprocess` that users of this class need.
    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, imports: str) -> None:
        self._imports = imports
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()

    def Popen(
        self,
        command: Sequence[str],
        *,
        pass_fds: Collection[int],
        stdin: int,
        stdout: int,
        stderr: int,
        cwd: str | None = None,
        start_new_session: bool = False,
    ) -> Fork | subprocess.Popen[bytes]:
        """Start a program; a program of another Python or of another form starts as usual."""
        if [*command[:2]] != [sys.executable, "-c"]:  # a program of another Python environment
            return subprocess.Popen(
                command,
                pass_fds=pass_fds,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                start_new_session=start_new_session,
            )
        assert stdin == self.DEVNULL
        return self._fork(
            command, [stdout, stderr], pass_fds, folder=cwd or "", session=start_new_session
        )

    def server(
        self, command: Sequence[str], *, cwd: str, env: Mapping[str, str], output: int
    ) -> Fork:
        """Start a program in a new session, which ends with the tests."""
        return self._fork(command, [output, output], folder=cwd, environment=env, session=True)

    def _fork(
        self,
        command: Sequence[str],
        output: Sequence[int],
        passed: Collection[int] = (),
        *,
        folder: str = "",
        environment: Mapping[str, str] = os.environ,
        session: bool = False,
    ) -> Fork:
        self._start(environment)
        order = {
            "command": [*command],
            "environment": dict(environment),
            "folder": folder or str(Path.cwd()),
            "numbers": [0, 1, 2, *passed],
            "parent": str(os.getpid()),
            "session": session,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, Path(os.devnull).open("rb") as nothing:
            sent = [nothing.fileno(), *output, *passed, theirs.fileno()]
            socket.send_fds(self._control, [json.dumps(order).encode()], sent)
        return Fork(command, ours)

    def _start(self, environment: Mapping[str, str]) -> None:
        with self._starting:
            if self._process is None:
                self._control, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with end:
                    number = end.fileno()
                    words = [sys.executable, "-c", _SERVER, str(number), self._imports]
                    self._process = subprocess.Popen(words, pass_fds=[number], env=environment)

    def close(self) -> None:
        """End the forking process, and the programs that still run."""
        if self._process is not None:
            self._control.close()
            self._process.wait()
