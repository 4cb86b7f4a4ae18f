"""The option `--metrics-config`: what is told of latencies."""

from argparse import ArgumentTypeError

import pytest

from reference_server import config_options
from reference_server.options import DEFAULT_QUANTILES, LatencyMetrics, Quantile


def latencies(*texts):
    return config_options.latency_metrics([config_options.metrics_setting(text) for text in texts])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], LatencyMetrics()),
        (["counter_latencies=false"], LatencyMetrics(counters=False)),
        (["counter_latencies=no"], LatencyMetrics()),
        (["summary_latencies=true"], LatencyMetrics(summaries=True)),
        (["summary_latencies=True"], LatencyMetrics()),
        (["summary_latencies=1"], LatencyMetrics()),
        (["summary_latencies=true", "summary_latencies=false"], LatencyMetrics(summaries=True)),
        (["unknown=1"], LatencyMetrics()),
    ],
)
def test_only_the_very_words_switch(texts, expected):
    assert latencies(*texts) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.25:0.1,0.75:0.01", (Quantile(0.25, 0.1), Quantile(0.75, 0.01))),
        ("0.9:0.1,0.1:0.1", (Quantile(0.9, 0.1), Quantile(0.1, 0.1))),
        ("0.5:0.05:3", (Quantile(0.5, 0.05),)),
        ("0.5x:0.05z", (Quantile(0.5, 0.05),)),
        ("a:b,0.5:0.05,x,.9:1e-2", (Quantile(0.5, 0.05), Quantile(0.9, 0.01))),
        ("0.5", DEFAULT_QUANTILES),
        (":0.5", DEFAULT_QUANTILES),
        (",", DEFAULT_QUANTILES),
    ],
)
def test_quantiles_that_cannot_be_read_are_left_out(text, expected):
    assert latencies(f"summary_quantiles={text}").quantiles == expected


@pytest.mark.parametrize("text", ["", "a", "a=", "=b", "local,a=b", ",a=b"])
def test_a_setting_has_a_name_and_a_value(text):
    with pytest.raises(ArgumentTypeError) as raised:
        config_options.metrics_setting(text)
    assert str(raised.value) == (f"--metrics-config option format is <setting>=<value>. Got {text}")
