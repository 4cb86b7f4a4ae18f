"""Sending spans to a collector: without blocking, with a bounded queue, counted."""

import json
import threading

import pytest
from support.otlp import start_collector

from reference_server.observability.sampling import new_trace
from reference_server.observability.spans import Span, SpanExporter
from reference_server.options import OpenTelemetryOptions


def a_span(name="s", **more):
    return Span(name, new_trace(), "", 1, 2, **more)


def counts(exporter):
    return {dict(sample.labels)["outcome"]: sample.value for sample in exporter.samples()}


class Posts:
    """A collector that accepts bodies and answers at the command of the test."""

    def __init__(self):
        self.bodies = []
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def __call__(self, body):
        self.began.release()
        self.may_end.acquire()
        self.bodies.append(json.loads(body))

    def names(self):
        """Return the names of the spans in each body."""
        return [
            [span["name"] for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]
            for body in self.bodies
        ]


@pytest.fixture
def posts():
    return Posts()


def exporter_to(posts, **options):
    settings = {"schedule_delay_ms": 0} | options
    return SpanExporter(OpenTelemetryOptions(**settings), posts)


def test_spans_beyond_the_queue_are_lost_without_blocking(posts):
    exporter = exporter_to(posts, max_queue_size=3, max_export_batch_size=1)
    exporter.add(a_span("first"))
    posts.began.acquire()  # it is with the collector, and the queue is empty
    for number in range(5):
        exporter.add(a_span(str(number)))
    assert counts(exporter) == {"lost": 2, "sent": 0}
    posts.may_end.release(4)
    exporter.close()
    assert posts.names() == [["first"], ["0"], ["1"], ["2"]]
    assert counts(exporter) == {"lost": 2, "sent": 4}


def test_a_full_batch_does_not_wait_for_its_delay(posts):
    posts.may_end.release(9)
    exporter = exporter_to(posts, schedule_delay_ms=10**9, max_export_batch_size=2)
    for name in "abc":
        exporter.add(a_span(name))
    posts.began.acquire()
    exporter.close()  # which does not wait for it either
    assert posts.names() == [["a", "b"], ["c"]]


def test_refused_spans_are_logged_once_until_the_next_success(caplog):
    errors = iter([OSError("no way"), OSError("still none"), None, OSError("again")])

    def post(body):
        error = next(errors)
        if error is not None:
            raise error

    exporter = exporter_to(post, max_export_batch_size=1)
    for _ in range(4):
        exporter.add(a_span())
    exporter.close()
    assert counts(exporter) == {"lost": 3, "sent": 1}
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "no way",
        "again",
    ]


def test_attributes_keep_their_types_and_texts_are_valid(posts):
    posts.may_end.release()
    exporter = exporter_to(posts, resource={"service.name": "mine"})
    exporter.add(a_span(attributes={"i": 2**40, "f": 0.5, "b": True, "s": "\udc80", "no": None}))
    exporter.close()
    (body,) = posts.bodies
    (resource,) = body["resourceSpans"]
    assert {"key": "service.name", "value": {"stringValue": "mine"}} in resource["resource"][
        "attributes"
    ]
    (span,) = resource["scopeSpans"][0]["spans"]
    assert [attribute["value"] for attribute in span["attributes"]] == [
        {"intValue": str(2**40)},
        {"doubleValue": 0.5},
        {"boolValue": True},
        {"stringValue": "?"},
        {"stringValue": "None"},
    ]


def test_a_failing_collector_loses_spans_and_gets_the_next_after_recovery():
    with start_collector() as collector:
        exporter = SpanExporter(
            OpenTelemetryOptions(collector.url, schedule_delay_ms=0, max_export_batch_size=1)
        )
        collector.status = 503
        exporter.add(a_span("refused"))
        collector.refused.acquire()
        collector.status = 200
        exporter.add(a_span("taken"))
        collector.wait(lambda spans: len(spans) == 1)
        exporter.close()
        assert counts(exporter) == {"lost": 1, "sent": 1}
