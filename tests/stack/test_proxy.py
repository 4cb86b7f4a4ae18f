"""The proxy of docs/security.md in front of the server: what it lets through, and what not."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as grpc
from contract.probes import write_probes
from support.servers import ROOT, free_ports, start_reference_server
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

SECONDS = 30
PAGE = (ROOT / "docs" / "security.md").read_text()
INFER = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[2],"data":[1,2]}]}'


class Proxy(NamedTuple):
    port: int
    certificate: Path


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """nginx with what stands on the page, but for its ports and files."""
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    openssl = shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("nginx or openssl is not installed, so the page's proxy is not run")
    folder = tmp_path_factory.mktemp("proxy")
    certificate, key = folder / "proxy.pem", folder / "proxy.key"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(certificate)),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    write_probes(folder / "models", "vector", "text")
    (port,) = free_ports(1)
    with start_reference_server(folder / "models") as server:
        text = re.search(r"```nginx\n(.*?)```", PAGE, re.DOTALL)[1]
        for said, here in {
            "127.0.0.1:8000": server.http,
            "127.0.0.1:8001": server.grpc,
            "listen 443": f"listen 127.0.0.1:{port}",
            "/etc/ssl/triton.pem": str(certificate),
            "/etc/ssl/triton.key": str(key),
        }.items():
            assert text.count(said) == 1
            text = text.replace(said, here)
        temporary = "".join(
            f"{kind}_temp_path {folder / kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        # It would run as another user, to whom the folder is closed.
        user = "user root;\n" if os.geteuid() == 0 else ""
        config = folder / "nginx.conf"
        config.write_text(
            f"{user}daemon off;\nerror_log stderr;\npid {folder / 'pid'};\nevents {{ }}\n"
            f"http {{\naccess_log off;\n{temporary}{text}}}\n"
        )
        with (folder / "log").open("w+b") as log:
            running = subprocess.Popen(
                [nginx, "-c", str(config), "-p", str(folder), "-e", "stderr"], stderr=log
            )
            try:
                end = time.monotonic() + SECONDS
                while not (folder / "pid").exists() or not is_answered(port):
                    log.seek(0)
                    assert running.poll() is None, log.read().decode()
                    assert time.monotonic() < end
                yield Proxy(port, certificate)
            finally:
                running.terminate()
                running.wait(SECONDS)


def is_answered(port: int) -> bool:
    try:
        return asked(port, "GET", "/v2/health/live")[0] == 200
    except OSError:
        return False


def asked(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Return the status and body of a response over TLS, without checking the certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)
    client.request(method, path, body)
    answer = client.getresponse()
    found = answer.status, answer.read()
    client.close()
    return found


@pytest.fixture
def client(proxy: Proxy) -> Iterator[grpc.InferenceServerClient]:
    with grpc.InferenceServerClient(
        f"localhost:{proxy.port}", ssl=True, root_certificates=str(proxy.certificate)
    ) as found:
        yield found


def tensor(values: np.ndarray) -> grpc.InferInput:
    return grpc.InferInput("X", list(values.shape), "FP32").set_data_from_numpy(values)


def test_http_passes(proxy: Proxy):
    assert asked(proxy.port, "GET", "/v2/models/vector/ready")[0] == 200
    status, answer = asked(proxy.port, "POST", "/v2/models/vector/infer", INFER)
    assert (status, b'"data":[1.0,2.0]' in answer) == (200, True)
    assert asked(proxy.port, "POST", "/v2/models/vector/versions/1/infer", INFER)[0] == 200
    status, answer = asked(proxy.port, "POST", "/v2/models/text/generate_stream", b'{"T":"a"}')
    assert (status, answer.startswith(b"data: {")) == (200, True)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2"),
        ("GET", "/metrics"),
        ("GET", "/v2/models/vector/config"),
        ("GET", "/v2/models/stats"),
        ("POST", "/v2/repository/models/vector/unload"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/models/vector/infer/../../../repository/index"),
        ("POST", "/v2/models/x%2f..%2f..%2frepository%2findex"),
        ("POST", "/v2/models/vector/trace/setting"),
        ("POST", "/v2/logging"),
        ("GET", "/v2/systemsharedmemory/status"),
    ],
)
def test_nothing_else_passes(proxy: Proxy, method: str, path: str):
    assert asked(proxy.port, method, path, b"{}")[0] == 404


def test_long_bodies_do_not_pass(proxy: Proxy):
    body = INFER + b" " * 2**16
    assert asked(proxy.port, "POST", "/v2/models/vector/infer", body)[0] == 200
    client = http.client.HTTPSConnection(
        "127.0.0.1", proxy.port, timeout=SECONDS, context=ssl._create_unverified_context()
    )
    client.putrequest("POST", "/v2/models/vector/infer")
    client.putheader("Content-Length", str(2**27))
    client.endheaders()
    assert client.getresponse().status == 413
    client.close()


def test_grpc_passes_and_no_other_method(client: grpc.InferenceServerClient):
    values = np.arange(500_000, dtype=np.float32)
    result = client.infer("vector", [tensor(values)], client_timeout=SECONDS)
    np.testing.assert_array_equal(result.as_numpy("Y"), values)
    for ask in (client.get_server_metadata, lambda: client.unload_model("vector")):
        with pytest.raises(InferenceServerException):
            ask()
