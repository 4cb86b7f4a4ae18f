"""Shared memory, compared with NVIDIA's server: equal requests with equal objects.

In addition to the replies, as in test_protocol_http.py, the bytes in the objects are compared. Each
case starts without regions and with the initial content of the objects.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from contract.casebook import Case, check_row, infer
from contract.cases.shared_memory import (
    CASES,
    CUDA,
    OBJECTS,
    given,
    register,
    status,
    unregister,
    wanted,
)
from contract.recordings import Recording, asked_live, recording
from contract.wire import LIVE, ConnectionEnded, Exchange, Reply, connect, read_reply
from support.in_process import InProcessServer
from support.servers import Server

pytestmark = pytest.mark.oracle

SHARED = Path("/dev/shm")
SERVERS = ("probed_triton", "probed_reference")
FIRST_KEY = next(iter(OBJECTS))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case: the replies, and then the content of the objects."""

    exchange: Exchange
    memory: dict[str, bytes]


Try = Callable[[Case], Outcome]


@dataclass(frozen=True)
class Otherwise:
    """Cases that the reference server answers differently, with the reason and its answer.

    `status` and `says` describe its last reply. `unsafe` cases are not sent to the real server,
    which would access memory outside the region, and may crash.
    """

    cases: str
    reason: str
    status: int
    says: str = ""
    unsafe: bool = False

    def concerns(self, case: Case) -> bool:
        """Return whether this difference applies to a case."""
        return fnmatchcase(case.name, self.cases)


AGAIN = (
    "an object may be registered under several names, as newer releases allow; the real server "
    "goes on with a file descriptor that it has closed, whatever that is by then"
)
FURTHER = (
    "a region that does not begin with its object is used from its own beginning to its own end, "
    "as in newer releases; the real server adds the offset twice, and reaches past the end"
)
WRAPS = "a sum beyond 2**64 is no place in a region; in the real server it wraps around"
DIFFERENCES = [
    Otherwise("shm register: same key again", AGAIN, 200, '"name":"s"'),
    Otherwise("shm register: same key at another offset", AGAIN, 200, '"offset":4096'),
    Otherwise(
        "shm register: offset of the sum's wrap",
        f"{WRAPS}, and the text is another",
        400,
        "invalid args",
    ),
    Otherwise(
        "shm register: offset of a page's wrap",
        f"{WRAPS}, and the text is another",
        400,
        "invalid args",
    ),
    Otherwise("shm input: of a sum that wraps", WRAPS, 400, "Invalid offset + byte size"),
    Otherwise("shm output: of a sum that wraps", WRAPS, 400, "Invalid offset + byte size"),
    Otherwise("shm input: of a region that*", FURTHER, 200, "[5.0,6.0,7.0,8.0]", unsafe=True),
    Otherwise(
        "shm input: at the end of a region that*", FURTHER, 200, "[0.0,0.0,0.0,0.0]", unsafe=True
    ),
    Otherwise(
        "shm input: behind a region that*", FURTHER, 400, "Invalid offset + byte size", unsafe=True
    ),
    Otherwise("shm output: of a region that*", FURTHER, 200, '"shape":[4]}]}', unsafe=True),
]


def trying(server: Server | InProcessServer) -> Try:
    """Return a function that tries each case on a server once, and caches the outcome."""
    outcomes: dict[tuple[str, int], Outcome] = {}

    def try_out(case: Case) -> Outcome:
        asked = case.name, server.run
        if asked not in outcomes:
            with objects():
                say(server, unregister())
                said = converse(server, case.request)
                outcomes[asked] = Outcome(said, {key: read(key) for key in OBJECTS})
                say(server, unregister())
        return outcomes[asked]

    return try_out


@contextlib.contextmanager
def objects() -> Iterator[None]:
    for key, content in OBJECTS.items():
        (SHARED / key).write_bytes(content)
    try:
        yield
    finally:
        for key in OBJECTS:
            (SHARED / key).unlink(missing_ok=True)


def read(key: str) -> bytes:
    """Return the content of an object."""
    return (SHARED / key).read_bytes()


def converse(server: Server | InProcessServer, requests: bytes | Sequence[bytes]) -> Exchange:
    """Send requests over one connection, each after the response to the previous request.

    Without waiting, the real server was seen to leave some requests unanswered.
    """
    requests = [requests] if isinstance(requests, bytes) else requests
    replies: list[Reply] = []
    with connect(server.http) as connection, connection.makefile("rb") as stream:
        try:
            for request in requests:
                connection.sendall(request)
                replies.append(read_reply(stream))
            connection.sendall(LIVE)
            stays_open = read_reply(stream).status == 200
        except (ConnectionEnded, ConnectionResetError, BrokenPipeError):
            stays_open = False
    return Exchange(tuple(replies), stays_open)


def say(server: Server | InProcessServer, *requests: bytes) -> Reply:
    """Send requests over one connection; return the last reply."""
    return converse(server, requests).replies[-1]


@pytest.fixture(scope="module")
def try_triton(probed_triton: Server) -> Try:
    """Try a case on the real server."""
    return trying(probed_triton)


def differing(case: Case) -> Otherwise | None:
    """Return the accepted difference of a case, or None."""
    return next((row for row in DIFFERENCES if row.concerns(case)), None)


def is_safe(case: Case) -> bool:
    """Return whether the case is sent to the real server."""
    accepted = differing(case)
    return accepted is None or not accepted.unsafe


@pytest.fixture(scope="module")
def recorded(probe_repository: Path) -> Iterator[Recording[Outcome]]:
    """Return the real server's recorded replies and contents of the objects."""
    safe = filter(is_safe, CASES)
    with recording("shared_memory", probe_repository, safe, Outcome) as opened:
        yield opened


@pytest.mark.parametrize("case", asked_live(filter(is_safe, CASES)), ids=str)
def test_the_real_server_answers_as_recorded(
    case: Case, try_triton: Try, recorded: Recording[Outcome]
):
    outcome = try_triton(case)
    check_row(case, outcome.exchange)
    recorded.check(case, outcome, lambda _, answer: answer)


def test_no_two_cases_have_the_same_name():
    names = Counter(case.name for case in CASES)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_accepted_difference_concerns_a_case():
    assert [row.cases for row in DIFFERENCES if not any(map(row.concerns, CASES))] == []


# ------------------------------------------------------------------------------- random places

_RANDOM = random.Random(3)
_SIZES = {"BOOL": 1, "UINT8": 1, "INT32": 4, "FP32": 4, "INT64": 8}


def anywhere() -> tuple[bytes, bytes]:
    """Return a request with overlapping tensors in about 80 bytes, and these bytes."""
    inputs, outputs = [], []
    for datatype in _RANDOM.sample(list(_SIZES), _RANDOM.randint(1, 3)):
        count = _RANDOM.randint(0, 6)
        size = count * _SIZES[datatype]
        inputs.append(given(datatype, datatype, [count], "one", size, _offset()))
        if _RANDOM.random() < 0.8:
            room = size + _RANDOM.randint(-1, 3)
            outputs.append(wanted(f"{datatype}_OUT", "one", max(0, room), _offset()))
    _RANDOM.shuffle(outputs)
    return infer("types", *inputs, outputs=outputs), _RANDOM.randbytes(128)


def _offset() -> int:
    return _RANDOM.randrange(80) if _RANDOM.random() < 0.9 else 4096 - _RANDOM.randrange(48)


ANYWHERE = [anywhere() for _ in range(300)]


def write_and_read(server: Server) -> list[tuple[Reply, bytes]]:
    """Return the response to each of the requests, and its bytes afterwards."""
    key = next(iter(OBJECTS))
    results = []
    with objects(), (SHARED / key).open("r+b") as file, connect(server.http) as connection:
        say(server, unregister(), register("one", key, 4096))
        with connection.makefile("rb") as stream:
            for asked, content in ANYWHERE:
                file.seek(0)
                file.write(content.ljust(4096, b"\0"))
                file.flush()
                connection.sendall(asked)
                results.append((read_reply(stream), read(key)))
        say(server, unregister())
    return results


def test_tensors_across_each_other_fare_alike(probed_triton: Server, probed_reference: Server):
    real, ours = write_and_read(probed_triton), write_and_read(probed_reference)
    for (asked, _), expected, got in zip(ANYWHERE, real, ours, strict=True):
        assert got == expected, asked
    assert {reply.status for reply, _ in ours} == {200, 400, 500}


# ---------------------------------------------------------------------------------- while in use


@contextlib.contextmanager
def in_flight(server: Server, repository: Path) -> Iterator[socket.socket]:
    """Run a request that uses the regions `one` and `two` until the block ends."""
    folder = repository / "held"
    go, begun = folder / "go", folder / "begun"
    begun.unlink(missing_ok=True)
    one, two = OBJECTS
    with objects(), connect(server.http) as connection:
        # Under one and the same key, the real server would not take the third.
        also_two = register("x", f"/{two}")
        say(server, unregister(), register("one", one), register("two", two), also_two)
        connection.sendall(
            infer(
                "held",
                given("X", "FP32", [1], "one", 4),
                outputs=[wanted("Y", "two", 4)],
            )
        )
        try:
            while not begun.exists():
                say(server, status())
            yield connection
        finally:
            go.touch()
            while say(server, unregister()).status != 200:
                assert server.process.poll() is None
            go.unlink()


def story(server: Server, repository: Path, *requests: bytes) -> list[str]:
    """Return a server's responses to requests while another request uses two regions."""
    with in_flight(server, repository):
        replies = [say(server, request) for request in requests]
        return [str(reply) for reply in replies]


IN_USE = {
    "one of an input": [unregister("one"), status()],
    "one of an output": [unregister("two"), status()],
    "one that is free": [unregister("x"), status()],
    "all": [unregister(), status()],
    "as cuda": [unregister("one", CUDA), unregister(kind=CUDA), status()],
    "register again": [register("one"), status("one")],
}


@pytest.mark.parametrize("requests", IN_USE.values(), ids=IN_USE)
def test_both_servers_unregister_alike_while_a_request_is_in_flight(
    requests: list[bytes],
    probed_triton: Server,
    probed_reference: Server,
    probe_repository: Path,
):
    real = story(probed_triton, probe_repository, *requests)
    assert story(probed_reference, probe_repository, *requests) == real


def test_a_client_that_leaves_lets_its_regions_go(probed_reference: Server, probe_repository: Path):
    with in_flight(probed_reference, probe_repository) as connection:
        connection.close()
    assert say(probed_reference, status()).body == b"[]"


# ------------------------------------------------------------------------------------ many clients


@pytest.mark.parametrize("server", SERVERS)
def test_several_clients_keep_to_their_regions(server: str, request: pytest.FixtureRequest):
    running: Server = request.getfixturevalue(server)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: keep_to_a_region(running, number), range(8)))
    assert say(running, status()).body == b"[]"


def keep_to_a_region(server: Server, number: int) -> None:
    """Run a client that sends changing numbers through its own region and object."""
    key, name = f"{FIRST_KEY}_{number}", f"client{number}"
    path = SHARED / key
    path.write_bytes(bytes(4096))
    try:
        for turn in range(20):
            sent = struct.pack("<4f", number, turn, 0.5, -1)
            with path.open("r+b") as file:
                file.write(sent)
            replies = converse(
                server,
                [
                    register(name, key),
                    infer(
                        "vector",
                        given("X", "FP32", [4], name, 16),
                        outputs=[wanted("Y", name, 16, 32)],
                    ),
                    unregister(name),
                ],
            ).replies
            assert [reply.status for reply in replies] == [200, 200, 200], replies
            assert path.read_bytes()[32:48] == sent
    finally:
        path.unlink()


def test_requests_leave_no_file_open(probed_reference: Server):
    size = 1 << 20
    path = SHARED / f"{FIRST_KEY}_large"
    path.write_bytes(bytes(2 * size))
    large = infer(
        "vector",
        given("X", "FP32", [size // 4], "r", size),
        outputs=[wanted("Y", "r", size, size)],
    )
    try:
        assert say(probed_reference, register(key=path.name, byte_size=2 * size)).status == 200
        assert {r.status for r in converse(probed_reference, [large] * 50).replies} == {200}
        assert say(probed_reference, unregister("r")).status == 200
        assert open_in(probed_reference, path) == 0
    finally:
        path.unlink()


def open_in(server: Server, path: Path) -> int:
    """Return how many descriptors of a file a server has."""
    count = 0
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it may have been closed
            count += link.readlink() == path
    return count


# ------------------------------------------------------------------------------- objects that go


@pytest.mark.parametrize("server", SERVERS)
def test_a_region_outlives_the_name_of_its_object(server: str, request: pytest.FixtureRequest):
    running: Server = request.getfixturevalue(server)
    one, _ = OBJECTS
    with objects():
        assert say(running, register("one", one)).status == 200
        (SHARED / one).unlink()
        reply = say(running, infer("vector", given("X", "FP32", [4], "one", 16)))
        assert reply.body.endswith(b'"data":[1.0,2.0,3.0,4.0]}]}')
        assert say(running, unregister("one")).status == 200


def test_an_object_that_is_cut_is_not_touched(probed_reference: Server):
    # The real server crashes here, because it reads removed memory.
    one, _ = OBJECTS
    with objects():
        say(probed_reference, register("one", one))
        with (SHARED / one).open("r+b") as file:
            file.truncate(0)
        for asked in (
            infer("vector", given("X", "FP32", [4], "one", 16)),
            infer("vector", given("X", "FP32", [4], "one", 16), outputs=[wanted("Y")]),
        ):
            reply = say(probed_reference, asked)
            assert (reply.status, b"cannot be used" in reply.body) == (400, True)
        assert say(probed_reference, unregister()).status == 200


def test_the_servers_own_objects_are_refused(probed_reference: Server):
    reply = say(probed_reference, register(key="/triton_python_backend_shm_region_1"))
    assert reply.status == 400
    assert b"contains the reserved prefix 'triton_python_backend_shm_region_'" in reply.body
    assert say(probed_reference, status("r")).status == 404
