"""The operations of the gateway on loaded models."""

import pytest
from server.support.clock import ManualClock
from server.support.frontend import Shelf, gateway, served
from server.support.model_folders import VECTOR
from server.support.requests import a_request

from reference_server.core.profiles import NEWEST
from reference_server.core.telemetry import FailureReason, MetricKind
from reference_server.gateway.gateway import MetricsGateway, new_registry
from reference_server.observability.server_metrics import HostMetrics


@pytest.mark.parametrize(
    ("is_complete", "strict", "ready"),
    [(True, True, True), (False, True, False), (True, False, True), (False, False, True)],
)
def test_ready(is_complete, strict, ready):
    assert gateway(is_complete=is_complete, strict_readiness=strict).ready() == (
        () if ready else None
    )


def test_a_model_is_probed_for_readiness():
    model = served("", "m")
    model.health.add_probe("m_0", question := lambda: True)
    assert gateway(model).model_ready("m") == ()
    assert gateway(model, profile=NEWEST).model_ready("m") == (question,)
    assert gateway(model, profile=NEWEST).ready() == [question]
    model.health.mark_unhealthy("m_0", "gone")
    assert gateway(model).model_ready("m") is None
    assert gateway(model, profile=NEWEST).model_ready("m") is None
    assert gateway(model, profile=NEWEST).ready() is None


def series(registry, *models):
    """The values of the metrics of these models, by family and labels."""
    host = HostMetrics(ManualClock(), 0, cpu=False)
    return {
        (family.head.name, *sample.labels): sample.value
        for family in MetricsGateway(Shelf(*models), registry, host).families()
        for sample in family.samples
    }


def failures(name, reason):
    labels = (("model", name), ("reason", reason), ("version", "1"))
    return ("nv_inference_request_failure", *labels)


def test_the_page_has_metrics_of_models_and_machine():
    registry = new_registry()
    hold = registry.hold("mine", "", MetricKind.COUNTER)
    hold.series({}).increment(2)
    model = served(VECTOR, "m", 3)
    model.scheduler.pending = 4
    found = series(registry, model)
    assert found["mine",] == 2
    assert found["nv_pinned_memory_pool_used_bytes",] == 0
    assert found["nv_inference_pending_request_count", ("model", "m"), ("version", "3")] == 4


def test_failures_are_counted_by_reason():
    model = served(VECTOR, "m")
    for reason in FailureReason:
        model.statistics.refused(a_request(), reason)
    found = series(new_registry(), model)
    assert {key: count for key, count in found.items() if count} == {
        failures("m", reason.value): 1 for reason in FailureReason
    }
