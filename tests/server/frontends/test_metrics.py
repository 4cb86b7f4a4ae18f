"""The metrics port, from bytes to bytes."""

import pytest
from server.support.clock import ManualClock
from server.support.frontend import Here, Shelf, served
from server.support.http import Client, get
from server.support.model_folders import VECTOR

from reference_server.frontends.http.pages import MetricsHandlers
from reference_server.gateway.gateway import MetricsGateway, new_registry
from reference_server.observability.server_metrics import HostMetrics


@pytest.fixture
def client():
    """A client of the metrics of model `m`."""
    host = HostMetrics(ManualClock(), 0, cpu=False)
    gateway = MetricsGateway(Shelf(served(VECTOR)), new_registry(), host)
    return Client(MetricsHandlers(gateway, Here()).handle)


def asked(client, request):
    client.send(request)
    (reply,) = client.replies()
    return reply


@pytest.mark.parametrize(
    "target", ["/metrics", "/metrics/", "/metrics?x=1", "/metrics/?x", "http://localhost/metrics"]
)
def test_the_page(client, target):
    reply = asked(client, get(target))
    assert reply.head == (
        "HTTP/1.1 200 OK",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(reply.body)}",
    )
    assert reply.body.startswith(
        b"# HELP nv_inference_request_success "
        b"Number of successful inference requests, all batch sizes\n"
        b"# TYPE nv_inference_request_success counter\n"
        b'nv_inference_request_success{model="m",version="1"} 0\n'
    )
    assert reply.body.endswith(b"nv_pinned_memory_pool_used_bytes 0\n")


@pytest.mark.parametrize("method", ["POST", "HEAD", "FOO"])
@pytest.mark.parametrize("target", ["/metrics", "/x"])
def test_other_methods_are_rejected(client, method, target):
    reply = asked(client, get(target, method=method))
    assert reply.head == (
        "HTTP/1.1 405 Not Allowed",
        "Content-Length: 30",
        "Content-Type: text/plain",
    )
    assert reply.body == b'{"error":"Method Not Allowed"}'
    assert asked(client, get("/metrics")).status == 200


def test_the_page_is_collected_in_the_background_and_its_errors_are_answered(caplog):
    class Gateway:
        def families(self):
            raise ValueError("no families")

    background = Here()
    client = Client(MetricsHandlers(Gateway(), background).handle)
    reply = asked(client, get("/metrics"))
    assert (reply.status, reply.body) == (500, b'{"error":"ValueError: no families"}')
    assert background.count == 1
    assert "/metrics" in caplog.text
