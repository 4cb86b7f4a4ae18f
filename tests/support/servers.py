"""Start the real tritonserver or the reference server on free ports, and stop it reliably.

    with start_tritonserver(repository, model_control_mode="explicit") as server:
        print(server.http)          # 127.0.0.1:23456

Flags are Triton's own, spelled with underscores: `log_verbose=1` is `--log-verbose=1`, a list
repeats its flag, `True` and `False` are `true` and `false`, and `None` gives a flag without value.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import http.client
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .fork_server import Fork, ForkServer

ROOT = Path(__file__).resolve().parents[2]

Flag = str | int | bool | list[str] | None

#: For models with complete configurations. Otherwise tritonserver starts one more process for each
#: load, to complete them: with twelve models a start takes 3.7 s of processor time instead of 1.9.
COMPLETE: dict[str, Flag] = {"disable_auto_complete_config": None}

START_SECONDS = 180
# Time limits: of the servers for their last requests, and of their end before they are killed.
EXIT_TIMEOUT_SECONDS = 5
STOP_SECONDS = 40

# Ports below the system's range for outgoing connections.
PORTS = range(15_000, 31_000)

_TESTS_START_S = time.time()
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class ServerFailed(Exception):
    """The server ended or never became ready. The text has its command line and its log."""


class ServerAborted(ServerFailed):
    """The server aborted (SIGABRT) before it was ready."""


@dataclass(eq=False)
class Server:
    """A running server. Addresses are `host:port`; disabled ones refuse connections."""

    process: subprocess.Popen[bytes] | Fork
    http: str
    grpc: str
    metrics: str
    log_file: Path

    @property
    def run(self) -> int:
        """Return a number that changes when the server is started again."""
        return self.process.pid

    @property
    def log(self) -> str:
        """Return everything that the server has written to standard output and error."""
        return self.log_file.read_text(errors="replace")


# Running real servers, each with the function that restarts it.
_REAL: dict[Server, Callable[[], None]] = {}


def revive(*, after_failure: bool) -> bool:
    """Restart crashed real servers at their addresses; return whether one had crashed.

    On a busy machine tritonserver rarely crashes, by SIGABRT or SIGSEGV, on requests that it
    answers at other times. After a failure, a server that has closed its port counts as crashed.
    """
    ended = [server for server in _REAL if _has_ended(server, wait=after_failure)]
    for server in ended:
        with contextlib.suppress(ServerFailed):  # then the next request to it will fail
            try:
                _REAL[server]()
            except ServerAborted:  # as at its first start
                _REAL[server]()
    return bool(ended)


def _has_ended(server: Server, *, wait: bool) -> bool:
    """Return whether a server's process has ended; `wait` for the end if its port is closed."""
    if wait and server.process.poll() is None and not _listens(server.http):
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(STOP_SECONDS)
    return server.process.poll() is not None


@contextlib.contextmanager
def start_tritonserver(
    repository: Path, *, ready_path: str = "/v2/health/ready", **flags: Flag
) -> Iterator[Server]:
    """Run NVIDIA's tritonserver as installed by tools/oracle.py.

    It is killed at the end, because its shutdown takes seconds. A test of the shutdown calls `stop`
    first.
    """
    command = [sys.executable, str(ROOT / "tools" / "oracle.py"), "serve"]
    # With its own prefix, the shared memory of a killed server is distinct from that of others.
    region = f"oracle_{uuid.uuid4().hex}_"
    command.append(f"--backend-config=python,shm-region-prefix-name={region}")
    try:
        with contextlib.ExitStack() as stack:
            try:
                run = stack.enter_context(_running(command, repository, ready_path, flags, _kill))
            except ServerAborted:
                # On a busy machine it rarely aborts on a lock that it shares with a model process
                # that it has just started. Two aborts in a row have another cause.
                run = stack.enter_context(_running(command, repository, ready_path, flags, _kill))
            server, start = run
            _REAL[server] = start
            stack.callback(_REAL.pop, server)
            yield server
    finally:
        for leftover in Path("/dev/shm").glob(f"{region}*"):
            leftover.unlink(missing_ok=True)
        _remove_environments()


def _remove_environments() -> None:
    """Remove the folders for packages of models that are newer than the tests' start.

    Each real server creates such a folder, which does not show its owner. While any real server
    runs, all folders remain.
    """
    for process in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if process.read_text() == "tritonserver\n":
                return
    for folder in Path("/tmp").glob("python_env_*"):
        with contextlib.suppress(OSError):  # another worker may remove it as well
            if folder.stat().st_mtime >= _TESTS_START_S:
                shutil.rmtree(folder)


@contextlib.contextmanager
def start_reference_server(
    repository: Path,
    *,
    ready_path: str = "/v2/health/ready",
    program: Sequence[str] = ("-m", "reference_server"),
    **flags: Flag,
) -> Iterator[Server]:
    """Run this repository's reference server, with the Python that runs the tests.

    It behaves like the installed release of tritonserver, unless the flags name another release.
    """
    command = [sys.executable, *program]
    flags = {"triton_version": "2.51", "exit_closes_idle": True, **flags}
    with _running(command, repository, ready_path, flags, stop) as (server, _):
        yield server


@contextlib.contextmanager
def _running(
    command: list[str],
    repository: Path,
    ready_path: str,
    flags: dict[str, Flag],
    end: Callable[[Server], None],
) -> Iterator[tuple[Server, Callable[[], None]]]:
    """Run one server: wait until `ready_path` answers 200, and `end` the server in any case.

    Yields the server and a function that restarts it after its end.
    """
    http, grpc, metrics = free_ports(3)
    settings: dict[str, Flag] = {
        "model_repository": str(repository.resolve()),
        "http_address": "127.0.0.1",
        "http_port": http,
        "grpc_address": "127.0.0.1",
        "grpc_port": grpc,
        "metrics_port": metrics,
        "exit_timeout_secs": EXIT_TIMEOUT_SECONDS,
    }
    command = [*command, *command_line(settings | flags)]
    sources = [ROOT, ROOT / "plugin", ROOT / "simulator", os.environ.get("PYTHONPATH", "")]
    source = os.pathsep.join(map(str, sources))
    with tempfile.TemporaryDirectory(prefix="server-") as directory:
        log_file = Path(directory) / "log"
        environment = os.environ | {"PYTHONPATH": source.rstrip(os.pathsep)}

        def spawn() -> subprocess.Popen[bytes] | Fork:
            with log_file.open("ab") as log:
                if [*command[:3]] == [sys.executable, "-m", "reference_server"]:
                    return _fork_server(environment).server(
                        command, cwd=directory, env=environment, output=log.fileno()
                    )
                return subprocess.Popen(
                    command,
                    # The working directory has nothing that model processes could import.
                    cwd=directory,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # A separate process group, so that killing includes the model processes.
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )

        def wait() -> None:
            _await(server, command, ready_path, lambda: _answers_200(server.http, ready_path))
            # The real server opens this port last, after it reports to be ready.
            if flags.get("allow_metrics", True) and "metrics_port" not in flags:
                _await(server, command, "its metrics port", lambda: _listens(server.metrics))

        def start_again() -> None:
            for trace in Path(directory).glob("trace.json*"):  # its numbers begin again
                trace.unlink()
            server.process = spawn()
            wait()

        address = "127.0.0.1:{}".format
        server = Server(spawn(), address(http), address(grpc), address(metrics), log_file)
        try:
            wait()
            yield server, start_again
        finally:
            end(server)


#: The start of the names of variables that programs read when they start or are imported.
_READ_AT_START = ("PYTHON", "LD_", "OMP_", "OPENBLAS_", "COVERAGE_")
_SERVER_IMPORTS = """
from reference_server.__main__ import _without_client_library
with _without_client_library():
    import reference_server.command.cli
"""


def _fork_server(environment: Mapping[str, str]) -> ForkServer:
    """Return the fork server of reference servers with this environment.

    Imports are three quarters of a start's processor time. tests/stack/test_serve.py and
    tests/packaging start the program itself.
    """
    return _cached_fork_server(
        tuple(sorted(each for each in environment.items() if each[0].startswith(_READ_AT_START)))
    )


@functools.cache
def _cached_fork_server(_: tuple[tuple[str, str], ...]) -> ForkServer:
    server = ForkServer(_SERVER_IMPORTS)
    atexit.register(server.close)
    return server


def _end_with_parent() -> None:
    """Ask Linux to end this process when the tests end, even if they were killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def command_line(flags: dict[str, Flag]) -> list[str]:
    """Spell flags as Triton's command line does."""
    words = []
    for name, value in flags.items():
        option = f"--{name.replace('_', '-')}"
        for item in value if isinstance(value, list) else [value]:
            if item is None:
                words.append(option)
            else:
                text = str(item).lower() if isinstance(item, bool) else item
                words.append(f"{option}={text}")
    return words


def free_ports(count: int) -> list[int]:
    """Return unused ports; each call returns other ports.

    The ports are below the range for outgoing connections, and each worker of pytest-xdist has its
    own, so that they are still unused when the server starts.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = next(_ports_of_this_worker())
        with socket.socket() as candidate, contextlib.suppress(OSError):
            # Otherwise closed connections of an earlier server would block its port.
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            candidate.bind(("127.0.0.1", port))
            ports.append(port)
    return ports


@functools.cache
def _ports_of_this_worker() -> Iterator[int]:
    """Yield the ports of this pytest-xdist worker in random order, again and again."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = PORTS[number::workers]
    return itertools.cycle(random.sample(own, len(own)))


def _await(server: Server, command: list[str], what: str, answers: Callable[[], bool]) -> None:
    """Poll until the server answers. Raises ServerFailed at once if its process ends."""
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The wait for the process is the pause between two polls.
            code = server.process.wait(timeout=0.02)
            failure = ServerAborted if code == -signal.SIGABRT else ServerFailed
            raise failure(_story(server, command, f"ended with exit code {code}"))
        if time.monotonic() > deadline:
            reason = f"did not answer on {what} within {START_SECONDS} s"
            raise ServerFailed(_story(server, command, reason))


def _answers_200(address: str, path: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def _story(server: Server, command: list[str], reason: str) -> str:
    return f"{' '.join(command)}\n{reason}; its log:\n{server.log}"


def stop(server: Server) -> None:
    """Terminate the server and wait for its end. Raises ServerFailed if it had to be killed."""
    server.process.send_signal(signal.SIGTERM)
    try:
        server.process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired as error:
        _kill(server)
        raise ServerFailed(f"it did not end within {STOP_SECONDS} s\n{server.log}") from error


def _kill(server: Server) -> None:
    """Kill the process group, because model processes may outlive a killed server."""
    if server.process.poll() is None:  # otherwise another process may have its number
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
