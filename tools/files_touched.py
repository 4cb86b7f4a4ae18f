"""Count the files of ours that one operation touches: how far a reader has to go to follow it.

    python -m tools.files_touched http       one HTTP inference on the reference server
    python -m tools.files_touched ragged     one batch of unequal requests on the CPU
    python -m tools.files_touched service    that batch through the device service's client

A profile hook sees every call of a Python function while the operation runs once, after a few runs
that warm up. Each thread's calls are followed by themselves: a file is entered when the call before
was in another, and a return is an entry of the file that was just left (a, b, a).
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
    """By path from the root of the packages, in the order of the first entry."""
    returns: int = 0
    """Entries of the file that was just left."""

    def lines(self) -> Iterator[str]:
        """A table for people."""
        yield f"{'':3}  {'entered':>7}  file"
        for number, (path, count) in enumerate(self.entries.items(), start=1):
            yield f"{number:3}  {count:7}  {path}"
        rooms = Counter("/".join(path.split("/")[:-1]) for path in self.entries)
        yield "by room: " + ", ".join(f"{room} {count}" for room, count in sorted(rooms.items()))
        yield f"{len(self.entries)} files, {self.returns} returns to a file just left"


class Recorder:
    """Follows the calls of one operation. For one at a time."""

    def __init__(self, packages: Sequence[str]) -> None:
        """packages: whose files count."""
        self._packages = tuple(packages)
        self._names: dict[str, str | None] = {}  # of code's file: the path that is shown
        self._trails: dict[int, list[str]] = {}  # thread -> the last two files entered
        self._touched: Touched | None = None

    @contextmanager
    def installed(self, *, every_thread: bool = False) -> Iterator[None]:
        """Follow this thread's calls, or those of every thread that begins from now on as well.

        A hook belongs to a thread, so it has to be there before the operation's threads are.
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
        """What the operation touches in all threads, until it returns."""
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
    """A batch of token rows of several lengths, from the runtime's `infer` to its answers."""
    recorder = Recorder(["ge_runtime"])
    with recorder.installed(), _encoder("local") as infer:
        return recorder.record(infer)


def service() -> Touched:
    """The same batch through the device service, whose own process is not seen.

    The client's files are those of the room `service`; the others are those of `ragged`.
    """
    recorder = Recorder(["ge_runtime"])
    with recorder.installed(), _encoder("service") as infer:
        return recorder.record(infer)


@contextmanager
def _encoder(placement: str) -> Iterator[Callable[[], None]]:
    """A function that has the sentence encoder answer one batch; it has run a few times."""
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
    """One inference of an identity model by HTTP, from the listener to the model and back."""
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
        # Timers of the server may run during a request; they do so during few of them.
        recorded = [recorder.record(infer) for _ in range(RECORDED_RUNS)]
        return min(recorded, key=lambda touched: len(touched.entries))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_port(port: int) -> None:
    """Until the server listens, which it does once its models are loaded."""
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
