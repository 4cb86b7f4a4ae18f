"""Options of both servers for gRPC: TLS, forwarded metadata, ages of connections, and pings."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as plain
from contract.grpc_casebook import GrpcCall, Outcome, floats, infer, tensor
from contract.probes import write_probes
from support.http2 import DATA, END_STREAM, PING, RawConnection, frame, head, message
from support.servers import (
    COMPLETE,
    Flag,
    Server,
    ServerFailed,
    start_reference_server,
    start_tritonserver,
)
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.oracle

SECONDS = 60
QUIET = COMPLETE | {"allow_metrics": False}
SERVERS = {"real": start_tritonserver, "ours": start_reference_server}

ECHO_CONFIG = """backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "P" data_type: TYPE_STRING dims: [1] }
"""
ECHO_MODEL = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        told = [np.array([request.parameters().encode()], dtype=object) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("P", each)]) for each in told]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("options") / "repository"
    write_probes(repository, "vector")
    version = repository / "echo" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(ECHO_MODEL)
    (version.parent / "config.pbtxt").write_text(ECHO_CONFIG)
    return repository


# ------------------------------------------------------------------------------------ forwarding

PINGING: dict[str, Flag] = {
    "grpc_keepalive_time": 100,
    "grpc_keepalive_timeout": 1000 * SECONDS,
    "grpc_keepalive_permit_without_calls": 1,
    "grpc_http2_max_pings_without_data": 0,
}
TUNED: list[dict[str, Flag]] = [
    PINGING | {"grpc_header_forward_pattern": ".*", "grpc_infer_response_compression_level": "low"},
    PINGING
    | {
        "grpc_header_forward_pattern": "(?-i)X-.*|Content",
        "grpc_infer_response_compression_level": "medium",
    },
]
METADATA = {
    "none": (),
    "two of a name": (("x-foo", "1"), ("x-foo", "2"), ("content-x-a", "z")),
    "binary": (("x-foo-bin", b"\x01z"),),
    "names of Triton's own": (("triton_grpc_error", "false"), ("sequence_id", "5")),
    "a name that the request has": (("x-own", "theirs"),),
}


def told(server: Server, metadata: tuple[tuple[str, str], ...], method: str) -> object:
    """Return the parameters that a model receives with this metadata."""
    request = infer("echo", tensor("X", "FP32", (1,)), raw=[floats(1)])
    request.parameters["x-own"].string_param = "ours"
    with grpc.insecure_channel(server.grpc) as channel:
        outcome: Outcome = GrpcCall(method, (request.SerializeToString(),), metadata).put(channel)
    assert outcome.code == "OK", outcome
    (message,) = outcome.messages
    response = message.infer_response if method == "ModelStreamInfer" else message
    assert isinstance(response, pb.ModelInferResponse)
    return json.loads(response.raw_output_contents[0][4:])


@pytest.fixture(scope="module", params=TUNED, ids=str)
def servers(
    oracle_installed: None, repository: Path, request: pytest.FixtureRequest
) -> Iterator[dict[str, Server]]:
    """Run both servers with options that do not affect other tests' clients."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(start(repository, **request.param, **QUIET))
            for name, start in SERVERS.items()
        }


def test_both_servers_forward_alike(servers: dict[str, Server]):
    found = {
        name: [
            told(server, metadata, method)
            for metadata in METADATA.values()
            for method in ("ModelInfer", "ModelStreamInfer")
        ]
        for name, server in servers.items()
    }
    assert found["ours"] == found["real"]


# ------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with keys and self-signed certificates."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, so there are no certificates")
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("server", "client", "stranger"):
        subprocess.run(
            [
                *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")),
                *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            ],
            check=True,
            capture_output=True,
        )
    return folder


@contextlib.contextmanager
def client(
    server: Server, certificates: Path, shows: str | None = None
) -> Iterator[plain.InferenceServerClient]:
    """Return NVIDIA's client over TLS; `shows` is the name of the client's certificate."""
    with plain.InferenceServerClient(
        server.grpc.replace("127.0.0.1", "localhost"),
        ssl=True,
        root_certificates=str(certificates / "server.crt"),
        private_key=shows and str(certificates / f"{shows}.key"),
        certificate_chain=shows and str(certificates / f"{shows}.crt"),
    ) as found:
        yield found


def tls(certificates: Path, **more: Flag) -> dict[str, Flag]:
    return {
        "grpc_server_cert": str(certificates / "server.crt"),
        "grpc_server_key": str(certificates / "server.key"),
        **QUIET,
        **more,
    }


def is_refused(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except InferenceServerException as error:
        return "UNAVAILABLE" in str(error.status())
    return False


@pytest.mark.parametrize("start", SERVERS.values(), ids=SERVERS)
def test_tls(start, oracle_installed: None, repository: Path, certificates: Path):
    values = np.arange(500_000, dtype=np.float32)
    x = plain.InferInput("X", [len(values)], "FP32").set_data_from_numpy(values)
    with start(repository, grpc_use_ssl=True, **tls(certificates)) as server:
        with client(server, certificates) as one:
            assert one.is_server_live()
            result = one.infer("vector", [x], client_timeout=SECONDS)
            np.testing.assert_array_equal(result.as_numpy("Y"), values)
        with plain.InferenceServerClient(server.grpc) as bare:
            assert is_refused(lambda: bare.is_server_live(client_timeout=SECONDS))


@pytest.mark.parametrize("start", SERVERS.values(), ids=SERVERS)
def test_mutual_tls(start, oracle_installed: None, repository: Path, certificates: Path):
    flags = tls(
        certificates, grpc_use_ssl_mutual=True, grpc_root_cert=str(certificates / "client.crt")
    )
    with start(repository, **flags) as server:
        with client(server, certificates, "client") as one:
            assert one.is_server_live()
        for shows in (None, "stranger"):
            with client(server, certificates, shows) as one:
                assert is_refused(lambda one=one: one.is_server_live(client_timeout=SECONDS))


@pytest.mark.parametrize("start", SERVERS.values(), ids=SERVERS)
def test_without_certificates_there_is_no_start(start, oracle_installed: None, repository: Path):
    with pytest.raises(ServerFailed, match="ended with exit code 1"):
        start(repository, grpc_use_ssl=True, **QUIET).__enter__()


# ----------------------------------------------------------------------------- ages, and pressure


@pytest.mark.parametrize("start", SERVERS.values(), ids=SERVERS)
def test_an_old_connection_is_ended(start, oracle_installed: None, repository: Path):
    with (
        start(repository, grpc_max_connection_age=200, **QUIET) as server,
        RawConnection(server.grpc) as connection,
    ):
        _, code, _ = connection.until_goaway()
        assert code == 0
        connection.until_closed()


def test_a_silent_client_is_pinged(servers: dict[str, Server]):
    for server in servers.values():
        with RawConnection(server.grpc) as connection:
            for _ in range(2):  # the first has been answered
                while connection.read()[0] != PING:
                    pass


def compressed(server: Server, encodings: str) -> tuple[object, ...]:
    """Return how a response of many zeros is encoded for a client that accepts these encodings."""
    request = infer("vector", tensor("X", "FP32", (1_000,)), raw=[bytes(4_000)])
    with RawConnection(server.grpc) as connection:
        fields = [
            *head("/inference.GRPCInferenceService/ModelInfer"),
            ("grpc-accept-encoding", encodings),
        ]
        connection.send(
            connection.headers(1, fields),
            frame(DATA, END_STREAM, 1, message(request.SerializeToString())),
        )
        answer = connection.answer(1)
        return answer.trailers, answer.data[:1]


def test_both_servers_compress_alike(servers: dict[str, Server]):
    found = {
        name: [
            compressed(server, encodings)
            for encodings in ("identity", "gzip", "deflate", "identity,deflate,gzip")
        ]
        for name, server in servers.items()
    }
    assert found["ours"] == found["real"]
