"""What is looked at under attack: the server's processes, and a client that did nothing wrong."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from contract.wire import ConnectionEnded as HttpEnded
from contract.wire import read_reply
from support.http2 import WINDOW_UPDATE, ConnectionEnded, RawConnection, frame, message
from tritonclient.grpc import service_pb2

from benchmarks.bystanders import connected, memory_of
from tests.support.servers import Server

PAUSE_S = 0.01
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Facts:
    """What a server and its processes hold."""

    mib: float
    descriptors: int
    threads: int
    processes: int


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:  # which grows on the way
        found += children.get(one, ())
    return found


def facts(server: Server) -> Facts:
    """What they hold now."""
    descriptors = threads = 0
    pids = family(server.process.pid)
    for pid in pids:
        with contextlib.suppress(OSError):
            descriptors += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
            threads += sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    return Facts(memory_of(server), descriptors, threads, len(pids))


# -- the bystander


@dataclass
class Noticed:
    """What a bystander noticed."""

    answers: int = 0
    refused: int = 0
    """Answers that say that it could not be done."""
    lost: int = 0
    """Requests whose connection ended, or that waited too long."""
    wrong: list[str] = field(default_factory=list)
    """Answers that are not those to what was asked, or not in its order."""
    seconds: list[float] = field(default_factory=list)
    """Of each round: health, then two inferences in one piece, over HTTP; one over gRPC."""


class Bystander:
    """Asks both fronts in turns; knows what each answer must be."""

    def __init__(self, http: str, grpc: str) -> None:
        self._http, self._grpc = http, grpc
        self._numbers = itertools.count(1)
        self.noticed = Noticed()

    def stand_by(self, pipe: Connection) -> None:
        """Ask until something comes over `pipe`; over it is told when the first round is over."""
        rounds = (self._ask_http, self._ask_grpc)
        clients: list[Iterator[None]] = [one() for one in rounds]
        while not pipe.poll(PAUSE_S):
            started = time.perf_counter()
            for index, client in enumerate(clients):
                try:
                    next(client)
                except (OSError, HttpEnded, ConnectionEnded):
                    self.noticed.lost += 1
                    clients[index] = rounds[index]()
            if not self.noticed.seconds:
                pipe.send("begun")
            self.noticed.seconds.append(time.perf_counter() - started)

    def _note(self, holds: bool, said: object) -> None:
        self.noticed.answers += 1
        if not holds and len(self.noticed.wrong) < 10:
            self.noticed.wrong.append(str(said)[:500])

    def _ask_http(self) -> Iterator[None]:
        """Health, and two inferences that are sent together, over one connection."""
        with connected(self._http) as client, client.makefile("rb") as stream:
            client.settimeout(PATIENCE_S)
            while True:
                client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                self._note(read_reply(stream).status == 200, "not live")
                asked = [next(self._numbers), next(self._numbers)]
                client.sendall(b"".join(map(_over_http, asked)))
                for number in asked:
                    reply = read_reply(stream)
                    if reply.status >= 500:
                        self.noticed.refused += 1
                        continue
                    found = json.loads(reply.body)
                    right = found.get("id") == str(number)
                    right = right and found["outputs"][0]["data"] == [number] * 4
                    self._note(right, f"HTTP {number}: {reply}")
                yield

    def _ask_grpc(self) -> Iterator[None]:
        """An inference over one connection."""
        with RawConnection(self._grpc, seconds=PATIENCE_S) as client:
            # Room for all answers, however long this goes on.
            client.send(frame(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4, "big")))
            for stream in itertools.count(1, 2):
                number = next(self._numbers)
                asked = service_pb2.ModelInferRequest(model_name="identity_1", id=str(number))
                asked.inputs.add(name="INPUT", datatype="FP32", shape=[4])
                asked.raw_input_contents.append(number.to_bytes(4, "little") * 4)
                body = message(asked.SerializeToString())
                client.request(stream, "/inference.GRPCInferenceService/ModelInfer", body)
                answer = client.answer(stream)
                if answer.reset is not None or answer.trailers.get("grpc-status") != "0":
                    self.noticed.refused += 1
                else:
                    said = service_pb2.ModelInferResponse.FromString(answer.data[5:])
                    right = said.id == str(number)
                    right = right and said.raw_output_contents[0] == asked.raw_input_contents[0]
                    self._note(right, f"gRPC {number}: {said}")
                del client.answers[stream]
                yield


def _over_http(number: int) -> bytes:
    """An inference with this number as its id and as its data."""
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [4], "data": [number] * 4}
    body = json.dumps({"id": str(number), "inputs": [tensor]}).encode()
    return (
        b"POST /v2/models/identity_1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )


def _standing_by(http: str, grpc: str, pipe: Connection) -> None:
    """A bystander in a process of its own; says what it noticed when it is told to stop."""
    one = Bystander(http, grpc)
    one.stand_by(pipe)
    pipe.send(one.noticed)


@contextlib.contextmanager
def bystander(server: Server) -> Iterator[Noticed]:
    """A bystander until the block is left; then it is known what it noticed."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(
        target=_standing_by, args=(server.http, server.grpc, its), daemon=True
    )
    process.start()
    noticed = Noticed()
    try:
        ours.recv()
        yield noticed
        ours.send("stop")
        if ours.poll(2 * PATIENCE_S):
            noticed.__dict__.update(ours.recv().__dict__)
        else:
            noticed.wrong.append("the bystander never came back")
    finally:
        process.kill()
        process.join()
