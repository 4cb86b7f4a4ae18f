"""The ports of `tritonfrontend`: served with their options, and closed in every order."""

import dataclasses
import re
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from in_process.cases import write_models
from support.servers import free_ports

import tritonserver as ts
from reference_server.core import forks
from tritonfrontend import KServeGrpc, KServeHttp, Metrics

LOCAL = {"address": "127.0.0.1"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_models(tmp_path_factory.mktemp("models")))


def start(root):
    mode = {"model_control_mode": ts.ModelControlMode.EXPLICIT, "startup_models": ["echo"]}
    return ts.Server(model_repository=root, **mode).start()


@pytest.fixture
def server(root):
    started = start(root)
    yield started
    started.stop()


def asked(client, module):
    """Send a request with a header, and return what the model has seen."""
    given = module.InferInput("TEXT", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([["t"]], np.object_))
    response = client.infer("echo", [given], headers={"x-name": "value"})
    return response.as_numpy("SEEN").item().decode()


def test_all_ports_serve_with_their_options(server):
    http, grpc, metrics = free_ports(3)
    to_http = KServeHttp.Options(**LOCAL, port=http, header_forward_pattern="x-.*")
    level = KServeGrpc.Grpc_compression_level.HIGH
    to_grpc = KServeGrpc.Options(
        **LOCAL, port=grpc, infer_compression_level=level, forward_header_pattern="x-.*"
    )
    to_metrics = Metrics.Options(**LOCAL, port=metrics)
    with KServeHttp(server, to_http), KServeGrpc(server, to_grpc), Metrics(server, to_metrics):
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{http}") as client:
            assert '"x-name": "value"' in asked(client, tritonclient.http)
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc}") as client:
            assert '"x-name": "value"' in asked(client, tritonclient.grpc)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as page:
            assert 'nv_inference_count{model="echo",version="1"} 2' in page.read().decode()


#: The options of NVIDIA's package, with their defaults.
DEFAULTS = {
    KServeHttp: {
        "address": "0.0.0.0",
        "port": 8000,
        "reuse_port": False,
        "thread_count": 8,
        "header_forward_pattern": "",
    },
    KServeGrpc: {
        "address": "0.0.0.0",
        "port": 8001,
        "reuse_port": False,
        "use_ssl": False,
        "server_cert": "",
        "server_key": "",
        "root_cert": "",
        "use_mutual_auth": False,
        "keepalive_time_ms": 7200000,
        "keepalive_timeout_ms": 20000,
        "keepalive_permit_without_calls": False,
        "http2_max_pings_without_data": 2,
        "http2_min_recv_ping_interval_without_data_ms": 300000,
        "http2_max_ping_strikes": 2,
        "max_connection_age_ms": 0,
        "max_connection_age_grace_ms": 0,
        "infer_compression_level": 0,
        "infer_thread_count": 2,
        "infer_allocation_pool_size": 8,
        "max_response_pool_size": 2147483647,
        "forward_header_pattern": "",
    },
    Metrics: {"address": "0.0.0.0", "port": 8002, "thread_count": 1},
}


@pytest.mark.parametrize("front", DEFAULTS)
def test_options_are_those_of_the_real_package(front):
    assert dataclasses.asdict(front.Options()) == DEFAULTS[front]
    levels = {level.name: int(level) for level in KServeGrpc.Grpc_compression_level}
    assert levels == {"NONE": 0, "LOW": 1, "MED": 2, "HIGH": 3, "COUNT": 4}


def test_a_port_opens_and_closes_once(server, monkeypatch):
    (port,) = free_ports(1)
    closed_in_forks = []
    monkeypatch.setattr(forks, "close_port_in_forks", closed_in_forks.append)
    front = KServeHttp(server, KServeHttp.Options(**LOCAL, port=port))
    with pytest.raises(ts.UnavailableError, match="HTTP server is not running"):
        front.stop()
    front.start()
    assert closed_in_forks == [port]
    with pytest.raises(ts.AlreadyExistsError, match="HTTP server is already running"):
        front.start()
    other = KServeHttp(server, KServeHttp.Options(**LOCAL, port=port))
    with pytest.raises(ts.UnavailableError, match="Socket"):
        other.start()
    front.stop()
    with pytest.raises(ts.UnavailableError, match="HTTP server is not running"):
        front.stop()
    other.start()
    other.stop()


def test_a_server_that_stops_closes_its_ports(root):
    server = start(root)
    http, grpc = free_ports(2)
    with KServeHttp(server, KServeHttp.Options(**LOCAL, port=http)):
        front = KServeGrpc(server, KServeGrpc.Options(**LOCAL, port=grpc))
        front.start()
        server.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/live")
    front.stop()
    with pytest.raises(ts.UnavailableError, match="Server not ready"):
        front.start()


def test_an_exception_leaves_the_block_of_a_port(server):
    (port,) = free_ports(1)
    front = Metrics(server, Metrics.Options(**LOCAL, port=port))
    with pytest.raises(KeyError, match="own"), front:
        raise KeyError("own")
    front.start()
    front.stop()


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (KServeHttp.Options, {"port": 65536}),
        (KServeHttp.Options, {"port": -1}),
        (KServeHttp.Options, {"port": "http"}),
        (KServeHttp.Options, {"port": True}),
        (KServeHttp.Options, {"thread_count": 0}),
        (KServeHttp.Options, {"address": 1}),
        (KServeHttp.Options, {"reuse_port": 1}),
        (KServeHttp.Options, {"header_forward_pattern": "("}),
        (KServeGrpc.Options, {"keepalive_time_ms": -1}),
        (KServeGrpc.Options, {"infer_compression_level": 4}),
        (Metrics.Options, {"thread_count": 0}),
    ],
)
def test_wrong_options_are_refused(options, given):
    ((name, value),) = given.items()
    with pytest.raises(ValueError, match=f"{name}: found {re.escape(repr(value))}"):
        options(**given)


def test_wrong_arguments_are_refused(server):
    with pytest.raises(ts.InvalidArgumentError, match=r"expected tritonserver\.Server"):
        KServeHttp("server")
    with pytest.raises(ts.InvalidArgumentError, match=r"must be of type KServeHttp\.Options"):
        KServeHttp(server, Metrics.Options())
    with pytest.raises(ts.InvalidArgumentError, match="Server not started"):
        KServeGrpc(ts.Server())
    front = KServeGrpc(server, KServeGrpc.Options(use_ssl=True, server_cert="/no/file"))
    with pytest.raises(ts.TritonError):
        front.start()
