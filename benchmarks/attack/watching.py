"""Observation during an attack: the server's processes, and a bystander client.

The bystander sends valid requests in a separate process and checks every response.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import resource
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from contract.wire import ConnectionEnded as HttpEnded
from contract.wire import read_reply
from support.http2 import WINDOW_UPDATE, ConnectionEnded, RawConnection, frame, message
from tritonclient.grpc import service_pb2

from benchmarks.attack.ground import connect
from tests.support.servers import Server
from triton_replay.comparing.latencies import percentile_of

PAUSE_S = 0.01
TIMEOUT_S = 30.0
_PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Facts:
    """Resources held by a server and its child processes."""

    mib: float
    descriptors: int
    threads: int
    processes: int


def family(pid: int) -> list[int]:
    """Return the process and its descendants without zombies, the process first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:  # the list grows during the loop
        found += children.get(one, ())
    return found


def facts(server: Server) -> Facts:
    """Measure the current resources of the server and its child processes."""
    pages = descriptors = threads = 0
    pids = family(server.process.pid)
    for pid in pids:
        with contextlib.suppress(OSError):
            descriptors += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
            threads += sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Facts(pages * _PAGE / 2**20, descriptors, threads, len(pids))


# -- the bystander


@dataclass
class Noticed:
    """The bystander's results."""

    answers: int = 0
    refused: int = 0
    """Requests with an error response."""
    lost: int = 0
    """Requests without a response, because the connection ended or the time was over."""
    wrong: list[str] = field(default_factory=list)
    """Responses with wrong content, or out of order."""
    seconds: list[float] = field(default_factory=list)
    """Time of each round: a health check and two pipelined inferences over HTTP, one over gRPC."""


class Bystander:
    """A client of both frontends that knows the correct response to each of its requests."""

    def __init__(self, http: str, grpc: str, transport: str = "plain") -> None:
        """Create a client. `transport` is "plain" or "tls" for gRPC, or "" for HTTP only."""
        self._http, self._grpc, self._transport = http, grpc, transport
        self._numbers = itertools.count(1)
        self.noticed = Noticed()

    def run(self, pipe: Connection) -> None:
        """Send requests until a message arrives on `pipe`; report the first round over it."""
        rounds = (self._http_rounds, self._grpc_rounds)[: 2 if self._transport else 1]
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
                pipe.send("started")
            self.noticed.seconds.append(time.perf_counter() - started)

    def _note(self, holds: bool, response: object) -> None:
        self.noticed.answers += 1
        if not holds and len(self.noticed.wrong) < 10:
            self.noticed.wrong.append(str(response)[:500])

    def _http_rounds(self) -> Iterator[None]:
        """Yield after each round over one HTTP connection."""
        with connect(self._http) as client, client.makefile("rb") as stream:
            client.settimeout(TIMEOUT_S)
            while True:
                client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                self._note(read_reply(stream).status == 200, "not live")
                numbers = [next(self._numbers), next(self._numbers)]
                client.sendall(b"".join(map(_over_http, numbers)))
                for number in numbers:
                    reply = read_reply(stream)
                    if reply.status >= 500:
                        self.noticed.refused += 1
                        continue
                    found = json.loads(reply.body)
                    right = found.get("id") == str(number)
                    right = right and found["outputs"][0]["data"] == [number] * 4
                    self._note(right, f"HTTP {number}: {reply}")
                yield

    def _grpc_rounds(self) -> Iterator[None]:
        """Yield after each inference over one gRPC connection."""
        tls = None
        if self._transport == "tls":
            tls = ssl.create_default_context()
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            tls.set_alpn_protocols(["h2"])
        with RawConnection(self._grpc, seconds=TIMEOUT_S, tls=tls) as client:
            # The window must hold all responses of the longest run.
            client.send(frame(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4, "big")))
            for stream in itertools.count(1, 2):
                number = next(self._numbers)
                request = service_pb2.ModelInferRequest(model_name="identity_1", id=str(number))
                request.inputs.add(name="INPUT", datatype="FP32", shape=[4])
                request.raw_input_contents.append(number.to_bytes(4, "little") * 4)
                body = message(request.SerializeToString())
                client.request(stream, "/inference.GRPCInferenceService/ModelInfer", body)
                answer = client.answer(stream)
                if answer.reset is not None or answer.trailers.get("grpc-status") != "0":
                    self.noticed.refused += 1
                else:
                    found = service_pb2.ModelInferResponse.FromString(answer.data[5:])
                    right = found.id == str(number)
                    right = right and found.raw_output_contents[0] == request.raw_input_contents[0]
                    self._note(right, f"gRPC {number}: {found}")
                del client.answers[stream]
                yield


def _over_http(number: int) -> bytes:
    """Return an inference request with this number as its id and as its data."""
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [4], "data": [number] * 4}
    body = json.dumps({"id": str(number), "inputs": [tensor]}).encode()
    return (
        b"POST /v2/models/identity_1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )


def _run_bystander(http: str, grpc: str, transport: str, pipe: Connection) -> None:
    """Run a bystander until a message arrives on `pipe`, and send its results."""
    one = Bystander(http, grpc, transport)
    one.run(pipe)
    pipe.send(one.noticed)


@contextlib.contextmanager
def bystander(server: Server, transport: str = "plain") -> Iterator[Noticed]:
    """Run a bystander in a separate process; its results are complete after the block."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(
        target=_run_bystander, args=(server.http, server.grpc, transport, its), daemon=True
    )
    process.start()
    noticed = Noticed()
    try:
        ours.recv()
        yield noticed
        ours.send("stop")
        if ours.poll(2 * TIMEOUT_S):
            noticed.__dict__.update(ours.recv().__dict__)
        else:
            noticed.wrong.append(f"the bystander reported nothing for {2 * TIMEOUT_S:.0f} s")
    finally:
        process.kill()
        process.join()


# -- the rows that are printed, and the table of docs/results/campaign.md

HEADINGS = (
    "attack",
    "server",
    "answers",
    "refused",
    "lost",
    "wrong",
    "p99 ms",
    "most ms",
    "MiB",
    "fds",
    "threads",
    "what it did, and what failed",
)
_COLUMNS = {
    "inline": "Ours, inline",
    "process": "Ours, process",
    "asgi": "Ours, uvicorn",
    "triton": "The real server, 2.51",
}
_NOT_ATTACKED = "-"


@dataclass
class Row:
    """The result of one attack on one server."""

    attack: str
    side: str
    did: str
    noticed: Noticed
    grown: Facts
    failures: list[str]

    def cells(self) -> list[object]:
        """Return the cells of the row, in the order of HEADINGS."""
        times = self.noticed.seconds or [float("nan")]
        return [
            self.attack,
            self.side,
            self.noticed.answers,
            self.noticed.refused,
            self.noticed.lost,
            len(self.noticed.wrong),
            f"{1e3 * percentile_of(times, 99):.0f}",
            f"{1e3 * max(times):.0f}",
            f"{self.grown.mib:+.0f}",
            f"{self.grown.descriptors:+d}",
            f"{self.grown.threads:+d}",
            "; ".join([self.did, *self.failures]),
        ]


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table with a row for each attack, a column for each server."""
    sides = [side for side in _COLUMNS if any(row["server"] == side for row in rows)]
    yield f"| Attack | {' | '.join(_COLUMNS[side] for side in sides)} |"
    yield f"| --- |{' --- |' * len(sides)}"
    for attack in dict.fromkeys(row["attack"] for row in rows):
        found = {row["server"]: row for row in rows if row["attack"] == attack}
        cells = [_cell(found[side]) if side in found else _NOT_ATTACKED for side in sides]
        yield f"| {attack} | {' | '.join(cells)} |"


def _cell(row: Mapping[str, Any]) -> str:
    if not row["answers"]:
        return "; ".join(map(str, row["failures"] or ["no answers"]))
    parts = [f"{row['p99 ms']} ms", f"{row['MiB']} MiB"]
    parts += [f"{row[what]} {what}" for what in ("refused", "lost", "wrong") if row[what]]
    return ", ".join([*parts, *map(str, row["failures"])])
