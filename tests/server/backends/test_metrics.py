"""Tests of MetricFamily and Metric: values, visibility and refused arguments."""

import gc
import math
import threading

import pytest
import triton_python_backend_utils as outside
from server.backends.kit import instance, model_file

from reference_server.backends.python_host.api.reports import (
    InstanceMetrics,
    MetricFamily,
    bound_family,
)
from reference_server.core.errors import ServerError
from reference_server.observability.metric_registry import MetricRegistry

TritonModelException = outside.TritonModelException
SERVER = "Failed to process the request for model 'm_0', message: "
NOT_SHOWN = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
    "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been "
    "deleted."
)
COUNTER, GAUGE, HISTOGRAM = MetricFamily.COUNTER, MetricFamily.GAUGE, MetricFamily.HISTOGRAM


@pytest.fixture
def registry():
    return MetricRegistry()


@pytest.fixture
def server(registry):
    return InstanceMetrics(registry, "m_0")


@pytest.fixture
def family(server):
    """The class `MetricFamily` of instance `m_0`."""
    return bound_family(server)


def shown(registry):
    """Return the values on the metrics page by family and labels."""
    return {
        (read.head.name, *sample.labels): sample.value
        for read in registry.read({})
        for sample in read.samples
    }


def refusal(function, *arguments, **named):
    with pytest.raises((TritonModelException, RuntimeError, TypeError)) as caught:
        function(*arguments, **named)
    assert type(caught.value) in (TritonModelException, RuntimeError, TypeError)
    return f"{caught.type.__name__}: {caught.value}"


# ---------------------------------------------------------------------------------------- values


def test_a_counter_adds_up(family, registry):
    requests = family("requests", "d", COUNTER)
    metric = requests.Metric({"model": "m"})
    metric.increment(2)
    metric.increment(0.5)
    assert (metric.value(), type(metric.value())) == (2.5, float)
    assert shown(registry) == {("requests", ("model", "m")): 2.5}


def test_a_histogram_counts_in_buckets_whose_bounds_are_included(family, registry):
    seconds = family("seconds", "d", HISTOGRAM)
    metric = seconds.Metric({}, [0.1, 1])
    for value in (0.1, 0.5, 3, -1):
        metric.observe(value)
    (value,) = shown(registry).values()
    assert (value.count, value.sum, value.buckets) == (4, 2.6, ((0.1, 2), (1.0, 3)))


@pytest.mark.parametrize("function", ["increment", "set", "observe"])
def test_a_value_that_is_not_a_number_is_refused_first(family, function):
    gauge = family("gauge", "d", GAUGE)
    metric = gauge.Metric()
    text = refusal(getattr(metric, function), "1")
    assert text.startswith("TypeError: argument '")
    assert text.endswith("; expected float")


MONOTONIC = (
    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
)
REFUSED = [
    (COUNTER, "increment", [-1], "increment", MONOTONIC),
    (COUNTER, "increment", [-math.inf], "increment", MONOTONIC),
    (COUNTER, "set", [1], "set", "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
    (
        COUNTER,
        "observe",
        [1],
        "observe",
        "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe",
    ),
    (GAUGE, "observe", [1], "observe", "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
    (
        HISTOGRAM,
        "increment",
        [1],
        "increment",
        "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment",
    ),
    (HISTOGRAM, "set", [1], "set", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
    (HISTOGRAM, "value", [], "get", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"),
]


@pytest.mark.parametrize(("kind", "function", "arguments", "verb", "reason"), REFUSED)
def test_operations_that_a_kind_does_not_support(family, kind, function, arguments, verb, reason):
    one = family("one", "d", kind)
    metric = one.Metric({}, [1] if kind is HISTOGRAM else None)
    assert refusal(getattr(metric, function), *arguments) == (
        f"TritonModelException: Failed to {verb} metric value: {SERVER}{reason}"
    )


def test_increments_of_many_threads_all_count(family):
    counter = family("counter", "d", COUNTER)
    metric = counter.Metric()

    def count():
        for _ in range(1000):
            metric.increment(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metric.value() == 4000


# ---------------------------------------------------------------------------------------- making


def test_a_family_accepts_positional_and_named_arguments(family, registry):
    families = [
        family("a", "d", GAUGE),
        family(name="b", description="d", kind=GAUGE),
        family(b"c", "é".encode(), GAUGE),
    ]
    metrics = [family.Metric(labels=None, buckets=None) for family in families]
    assert sorted(shown(registry)) == [("a",), ("b",), ("c",)]
    assert [metric.value() for metric in metrics] == [0, 0, 0]
    assert [read.head.description for read in registry.read({})] == ["d", "d", "é"]


@pytest.mark.parametrize("name", ["", "1a", "a b", "a-b", "é", "__a", "a\n"])
def test_names_that_no_family_can_have(family, name):
    assert refusal(family, name, "d", GAUGE) == (
        f"TritonModelException: Error when creating MetricFamily: {SERVER}Invalid metric name"
    )


def test_a_name_keeps_its_kind(family):
    assert family("x", "d", COUNTER) is not None
    assert refusal(family, "x", "d", GAUGE) == (
        f"TritonModelException: Error when creating MetricFamily: {SERVER}"
        "Family name already exists with different type"
    )


def test_a_refused_family_is_freed_without_errors(family):
    with pytest.raises(TypeError):
        family("x")
    with pytest.raises(TritonModelException):
        family("", "d", GAUGE)
    gc.collect()  # warnings of finalizers are errors here


SERVER_SIDE = f"TritonModelException: Error when creating Metric: {SERVER}"
NO_TEXT = f"{SERVER_SIDE}attempt to access JSON non-string as string"
NO_NAME = f"{SERVER_SIDE}Invalid label name"
NO_DICT = "TritonModelException: Failed to create metric. Labels must be a dictionary."
NO_LIST = "TritonModelException: Failed to create metric. Buckets must be a list."
NO_BUCKETS = "TritonModelException: Failed to create metric. Missing required buckets."
BUCKETS = "TritonModelException: Failed to create metric. Unexpected buckets found."
UNSORTED = f"{SERVER_SIDE}Bucket Boundaries must be strictly sorted"
NO_FLOAT = "RuntimeError: argument 'buckets': found {}; expected float"
NO_METRIC = [
    (COUNTER, [["a"]], NO_DICT),
    (COUNTER, ["a"], NO_DICT),
    (COUNTER, [{"a": 1}], NO_TEXT),
    (COUNTER, [{"a": None}], NO_TEXT),
    (COUNTER, [{"a": ["b"]}], NO_TEXT),
    (COUNTER, [{"a": b"x"}], "TypeError: Object of type bytes is not JSON serializable"),
    (COUNTER, [{1: "a"}], NO_NAME),
    (COUNTER, [{"": "a"}], NO_NAME),
    (COUNTER, [{"1a": "a"}], NO_NAME),
    (COUNTER, [{"a:b": "a"}], NO_NAME),
    (COUNTER, [{"__a": "a"}], NO_NAME),
    (COUNTER, [{"é": "a"}], NO_NAME),
    (COUNTER, [{}, [1]], BUCKETS),
    (GAUGE, [{}, []], BUCKETS),
    (GAUGE, [{}, (1,)], NO_LIST),
    (HISTOGRAM, [], NO_BUCKETS),
    (HISTOGRAM, [{"a": 1}], NO_BUCKETS),
    (HISTOGRAM, [{}, (1, 2)], NO_LIST),
    (HISTOGRAM, ["a", (1,)], NO_DICT),
    (HISTOGRAM, [{}, [2, 1]], UNSORTED),
    (HISTOGRAM, [{}, [1, 1]], UNSORTED),
    (HISTOGRAM, [{"a": 1}, [2, 1]], NO_TEXT),
    (HISTOGRAM, [{"1a": "a"}, [2, 1]], UNSORTED),
    (HISTOGRAM, [{}, ["a"]], NO_FLOAT.format("str")),
    (HISTOGRAM, [{}, [10**400]], NO_FLOAT.format(10**400)),
]


@pytest.mark.parametrize(("kind", "arguments", "text"), NO_METRIC)
def test_arguments_that_make_no_metric(family, kind, arguments, text):
    one = family("one", "d", kind)
    assert refusal(one.Metric, *arguments) == text


# --------------------------------------------------------------------------------------- sharing


def test_the_same_labels_are_the_same_value(family):
    counter = family("counter", "d", COUNTER)
    one, two = counter.Metric({"a": "1", "b": "2"}), counter.Metric({"b": "2", "a": "1"})
    one.increment(1)
    two.increment(1)
    assert one != two
    assert one.value() == two.value() == 2


def test_instances_and_models_share_a_family(registry):
    first = bound_family(InstanceMetrics(registry, "a_0"))("x", "first", COUNTER)
    second = bound_family(InstanceMetrics(registry, "b_0"))("x", "second", COUNTER)
    first.Metric().increment(3)
    metric = second.Metric()
    metric.increment(4)
    assert metric.value() == 7
    assert [read.head.description for read in registry.read({})] == ["first"]


def test_a_histogram_keeps_its_first_buckets(family, registry):
    seconds = family("seconds", "d", HISTOGRAM)
    seconds.Metric({}, [1, 2])
    seconds.Metric({}, [5]).observe(1.5)
    (value,) = shown(registry).values()
    assert value.buckets == ((1, 0), (2, 1))


# -------------------------------------------------------------------------------------- lifetime


def test_a_series_outlives_its_metrics(family, registry):
    counter = family("counter", "d", COUNTER)
    counter.Metric().increment(2)
    gc.collect()
    assert shown(registry) == {("counter",): 2}
    assert counter.Metric().value() == 2


def test_series_are_removed_with_their_family(family, registry):
    counter = family("counter", "d", COUNTER)
    counter.Metric().increment(2)
    del counter
    assert shown(registry) == {}
    counter = family("counter", "d", COUNTER)
    assert counter.Metric().value() == 0


@pytest.mark.parametrize(
    ("function", "arguments", "verb"),
    [
        ("increment", [1], "increment"),
        ("increment", [-1], "increment"),
        ("set", [1], "set"),
        ("observe", [1], "observe"),
        ("value", [], "get"),
    ],
)
def test_metrics_without_their_family_are_refused(family, function, arguments, verb):
    counter = family("counter", "d", COUNTER)
    metric = counter.Metric()
    del counter
    again = family("counter", "d", COUNTER)
    assert refusal(getattr(metric, function), *arguments) == (
        f"TritonModelException: Failed to {verb} metric value: {NOT_SHOWN}"
    )
    assert again.Metric().value() == 0


def test_two_objects_of_one_family_hold_their_own_series(family, registry):
    one, two = family("x", "d", COUNTER), family("x", "d", COUNTER)
    mine, ours = one.Metric({"of": "one"}), one.Metric({"of": "both"})
    also_ours = two.Metric({"of": "both"})
    ours.increment(1)
    del one
    assert shown(registry) == {("x", ("of", "both")): 1}
    also_ours.increment(1)
    assert also_ours.value() == 2
    assert "has been deleted" in refusal(mine.value)
    assert "has been deleted" in refusal(ours.value)


def test_a_family_that_lives_when_its_instance_closes_stays_visible(server, family, registry):
    counter = family("counter", "d", COUNTER)
    counter.Metric().increment(2)
    server.keeps = True
    del counter
    assert shown(registry) == {("counter",): 2}


# --------------------------------------------------------------------------------------- objects


def test_a_family_needs_a_server():
    assert refusal(outside.MetricFamily, "x", "d", COUNTER) == (
        "TritonModelException: Error when creating MetricFamily: found no server; expected a call "
        "within initialize, execute or finalize."
    )


# ------------------------------------------------------------------------------------- instances

#: Counts in each part of its life, and fails at the start if it is asked to.
LIFE = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.family = pb_utils.MetricFamily("life", "d", pb_utils.MetricFamily.COUNTER)
            self.metric = self.family.Metric({"instance": args["model_instance_name"]})
            self.metric.increment(1)
            pb_utils.MetricFamily("short", "d", pb_utils.MetricFamily.GAUGE).Metric()
            if args["model_instance_name"] == "fails":
                raise RuntimeError("no start")

        def finalize(self):
            self.metric.increment(10)
"""


def test_a_reopened_instance_continues_its_values(tmp_path, registry):
    opened = instance(model_file(tmp_path, LIFE), metrics=registry)
    for _ in range(2):
        opened.open()
        opened.close()
    gc.collect()
    assert shown(registry) == {("life", ("instance", "m_0_0")): 22}


def test_values_of_an_instance_that_failed_to_open_stay_visible(tmp_path, registry):
    failing = instance(model_file(tmp_path, LIFE), name="fails", metrics=registry)
    with pytest.raises(ServerError, match="no start"):
        failing.open()
    gc.collect()
    assert shown(registry) == {("life", ("instance", "fails")): 1}
