"""Prometheus' text as Triton writes it; contract tests compare it with the real page."""

import math

import pytest

from reference_server.core.telemetry import (
    Distribution,
    Family,
    FamilyHead,
    MetricKind,
    Quantiles,
    Sample,
)
from reference_server.frontends.http.pages import encode_metrics


def page(*samples, name="x", description="", kind=MetricKind.GAUGE):
    """The page of one family."""
    return encode_metrics([Family(FamilyHead(name, description, kind), samples)]).decode()


def shown(value):
    """The text of a number on the page."""
    return page(Sample((), value)).splitlines()[-1].removeprefix("x ")


def test_a_family_has_a_head_and_a_line_for_each_series():
    assert page(
        Sample((), 3.0),
        Sample((("a", "1"), ("b", "2")), 2),
        description="What it is",
        kind=MetricKind.COUNTER,
    ) == (
        "# HELP x What it is\n"
        "# TYPE x counter\n"
        "x 3\n"
        'x{a="1",b="2"} 2\n'
    )  # fmt: skip


def test_a_histogram_has_its_count_its_sum_and_its_buckets():
    value = Distribution(4, 13.5, ((0.1, 1), (1e6, 3), (1e16, 3)))
    assert page(Sample((), value), Sample((("z", "1"),), value), kind=MetricKind.HISTOGRAM) == (
        "# TYPE x histogram\n"
        "x_count 4\n"
        "x_sum 13.5\n"
        'x_bucket{le="0.1"} 1\n'
        'x_bucket{le="1000000"} 3\n'
        'x_bucket{le="1e+16"} 3\n'
        'x_bucket{le="+Inf"} 4\n'
        'x_count{z="1"} 4\n'
        'x_sum{z="1"} 13.5\n'
        'x_bucket{z="1",le="0.1"} 1\n'
        'x_bucket{z="1",le="1000000"} 3\n'
        'x_bucket{z="1",le="1e+16"} 3\n'
        'x_bucket{z="1",le="+Inf"} 4\n'
    )


def test_a_family_without_series_is_left_out():
    assert page(description="What it is") == ""


def test_values_of_labels_are_escaped():
    assert page(Sample((("a", 'x\\y"z\nw é'),), 1)).splitlines()[-1] == (
        'x{a="x\\\\y\\"z\\nw é"} 1'
    )


def test_a_description_stays_on_its_line():
    assert page(Sample((), 1), description='a \\ b\nc "d"').splitlines()[0] == (
        '# HELP x a \\ b\\nc "d"'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.0, "-0"),
        (0.1 + 0.2, "0.3"),
        (1 / 3, "0.3333333333333333"),
        (1e16, "1e+16"),
        (123456789012345680.0, "1.234567890123457e+17"),
        (1e-5, "1e-05"),
        (5e-324, "4.940656458412465e-324"),
        (math.nan, "Nan"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_numbers(value, text):
    assert shown(value) == text


def test_a_summary_has_count_sum_and_quantiles():
    value = Quantiles(3, 1145.0, ((0.5, 179.0), (0.999, math.nan)))
    assert page(Sample((("model", "m"), ("version", "1")), value), kind=MetricKind.SUMMARY) == (
        "# TYPE x summary\n"
        'x_count{model="m",version="1"} 3\n'
        'x_sum{model="m",version="1"} 1145\n'
        'x{model="m",version="1",quantile="0.5"} 179\n'
        'x{model="m",version="1",quantile="0.999"} Nan\n'
    )
