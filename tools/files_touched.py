"""Count the files of the project that one operation touches, i.e. that its reader has to read.

    python -m tools.files_touched http       one HTTP inference on the reference server
    python -m tools.files_touched ragged     one batch of unequal requests on the CPU
    python -m tools.files_touched service    the same batch through the device service's client

After a few runs to warm up, the operation runs once with a profile hook that receives every call of
a Python function. Calls are followed separately for each thread. A call enters a file if the
previous call was in another file; a return is an entry of the file before the last one (a, b, a).
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np

from benchmarks.instruments import open_runtime, read_config
from ge_runtime.specs import Tensors
from reference_server.command.cli import parse
from reference_server.server import Server

ROOT = Path(__file__).resolve().parent.parent
ENCODER = ROOT / "model_repository" / "text_encoder"
IDENTITY = ROOT / "benchmarks" / "micro_repository"
LENGTHS = (3, 40, 5, 38, 4, 4, 60, 7)
WARM_UP_RUNS = 5
RECORDED_RUNS = 5


@dataclass
class Touched:
    """The files that an operation entered."""

    entries: Counter[str] = field(default_factory=Counter)
    """Number of entries by path below the packages' root, in the order of the first entry."""
    returns: int = 0
    """Number of entries of the file that was just left."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table."""
        yield f"{'':3}  {'entered':>7}  file"
        for number, (path, count) in enumerate(self.entries.items(), start=1):
            yield f"{number:3}  {count:7}  {path}"
        rooms = Counter("/".join(path.split("/")[:-1]) for path in self.entries)
        yield "by room: " + ", ".join(f"{room} {count}" for room, count in sorted(rooms.items()))
        yield f"{len(self.entries)} files, {self.returns} returns to a file just left"


class Recorder:
    """Follows the calls of an operation, one operation at a time."""

    def __init__(self, packages: Sequence[str]) -> None:
        """Create a recorder that counts the files of these packages."""
        self._packages = tuple(packages)
        self._names: dict[str, str | None] = {}  # the displayed path by source file
        self._trails: dict[int, list[str]] = {}  # the last two entered files by thread
        self._touched: Touched | None = None

    @contextmanager
    def installed(self, *, every_thread: bool = False) -> Iterator[None]:
        """Follow this thread's calls and, if `every_thread`, the calls of threads that start later.

        A hook belongs to a thread, so it must be installed before the operation's threads start.
        """
        if every_thread:
            threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def record(self, operation: Callable[[], object]) -> Touched:
        """Return the files that the operation touches in all threads until it returns."""
        self._trails.clear()
        self._touched = touched = Touched()
        try:
            operation()
        finally:
            self._touched = None
        return touched

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        touched = self._touched
        if touched is None or event != "call":
            return
        path = frame.f_code.co_filename
        if path not in self._names:
            self._names[path] = self._name_of(path)
        name = self._names[path]
        if name is None:
            return
        trail = self._trails.setdefault(threading.get_ident(), [])
        if trail and trail[-1] == name:
            return
        touched.entries[name] += 1
        touched.returns += len(trail) > 1 and trail[-2] == name
        trail[:] = [*trail[-1:], name]

    def _name_of(self, path: str) -> str | None:
        parts = Path(path).parts
        for place in range(len(parts) - 1, -1, -1):
            if parts[place] in self._packages:
                return "/".join(parts[place:])
        return None


def ragged() -> Touched:
    """Record a batch of token rows of several lengths, from `Runtime.infer` to the answers."""
    recorder = Recorder(["ge_runtime"])
    with recorder.installed(), _encoder("local") as infer:
        return recorder.record(infer)


def service() -> Touched:
    """Record the batch of `ragged` through the device service, whose process is not followed.

    The client's files are in the room `service`; `ragged` touches all other files, too.
    """
    recorder = Recorder(["ge_runtime"])
    with recorder.installed(), _encoder("service") as infer:
        return recorder.record(infer)


@contextmanager
def _encoder(placement: str) -> Iterator[Callable[[], None]]:
    """Yield a function that executes the sentence encoder with one batch, after a few runs."""
    parameters = {"cost": "launch_us=100, element_ns=100, element2_ns=0", "placement": placement}
    requests: list[Tensors] = [
        {
            "input_ids": np.full((1, length), 7, np.int64),
            "lengths": np.array([[length]], np.int32),
        }
        for length in LENGTHS
    ]
    runtime = open_runtime(ENCODER / "1", read_config(ENCODER), parameters)

    def infer() -> None:
        answers = runtime.infer(requests)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    try:
        for _ in range(WARM_UP_RUNS):
            infer()
        yield infer
    finally:
        runtime.close()


def http_inference() -> Touched:
    """Record one inference of an identity model over HTTP, from the listener to the response."""
    port = _free_port()
    options, _ = parse(
        [
            f"--model-repository={IDENTITY}",
            f"--http-port={port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
        ]
    )
    recorder = Recorder(["ge_runtime", "reference_server", "triton_python_backend_utils"])
    touched: list[Touched] = []

    async def serve() -> None:
        loop, server = asyncio.get_running_loop(), Server(options)

        def ask() -> None:
            try:
                touched.append(_ask(port, recorder))
            finally:
                loop.call_soon_threadsafe(server.stop)

        client = threading.Thread(target=ask)
        client.start()
        await server.serve()
        client.join()

    with recorder.installed(every_thread=True):
        asyncio.run(serve())
    if not touched:
        raise SystemExit("the server did not answer")
    return touched[0]


def _ask(port: int, recorder: Recorder) -> Touched:
    body = json.dumps(
        {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}
    )
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def infer() -> None:
        connection.request("POST", "/v2/models/identity/infer", body)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"the server answered {answer.status}: {text.decode()}")

    _await_port(port)
    with closing(connection):
        for _ in range(WARM_UP_RUNS):
            infer()
        # Timers of the server run during few of the requests.
        recorded = [recorder.record(infer) for _ in range(RECORDED_RUNS)]
        return min(recorded, key=lambda touched: len(touched.entries))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_port(port: int) -> None:
    """Wait until the server listens, i.e. until its models are loaded."""
    pause = threading.Event()
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        pause.wait(0.1)
    raise SystemExit("the server did not open its port")


OPERATIONS: dict[str, Callable[[], Touched]] = {
    "http": http_inference,
    "ragged": ragged,
    "service": service,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of one operation."""
    parser = argparse.ArgumentParser(prog="python -m tools.files_touched", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("operation", choices=OPERATIONS)
    operation = parser.parse_args(arguments).operation
    for line in OPERATIONS[operation]().lines():
        print(line)


if __name__ == "__main__":
    main()
