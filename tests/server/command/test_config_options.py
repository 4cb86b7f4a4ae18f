"""The options `--*-config`: parsing, errors, and warnings."""

import argparse
from argparse import ArgumentTypeError

import pytest

from reference_server.command import cli, trace_config, values
from reference_server.command.cli import parse
from reference_server.core.errors import ServerError
from reference_server.options import (
    DEFAULT_QUANTILES,
    LatencyMetrics,
    OpenTelemetryOptions,
    Quantile,
    TraceOptions,
)


def test_the_last_value_of_each_python_backend_setting_takes_precedence():
    options, _ = parse(
        [
            "--backend-config=python,host=process",
            "--backend-config=default-max-batch-size=8",
            "--backend-config=onnx,a=b",
            "--backend-config=python,a,b=c=d",
            "--backend-config=python,host=inline",
        ]
    )
    assert options.python_backend == {"host": "inline", "a,b": "c=d"}


def byte_size(*texts):
    return values.cache_byte_size([values.cache_setting(text) for text in texts], "/caches")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], None),
        (["local,size=1048576"], 1048576),
        (["local,size=192"], 192),
        (["local,size=1000", "local,size=2000"], 2000),
        (["local,size= 1000x"], 1000),
        (["local,size=1000=3"], 1000),
        (["local,size=1000,other=1"], 1000),
        (["local,size=1000", "local,other=1"], 1000),
    ],
)
def test_the_size_of_the_cache(texts, expected):
    assert byte_size(*texts) == expected


@pytest.mark.parametrize(
    ("texts", "code", "said"),
    [
        (["local,size=abc"], "Internal", "Failed to initialize LocalCache: stoull"),
        (["local,size=18446744073709551616"], "Internal", "LocalCache: stoull"),
        (["local,size=-1"], "Internal", "LocalCache: failed to allocate buffer"),
        (["local,size=9223372036854775808"], "Internal", "failed to allocate buffer"),
        (["local,size=0"], "Internal", "basic_managed_external_buffer constructor"),
        (["local,size=191"], "Internal", "Could not initialize buffer in basic_managed"),
        (["local,size=10M"], "Internal", "Could not initialize buffer in basic_managed"),
        (
            ["local,foo=bar"],
            "Invalid argument",
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field.",
        ),
        (
            ["redis,host=x"],
            "Invalid argument",
            "unable to find 'libtritoncache_redis.so' for cache. Searched: /caches",
        ),
        (
            ["local,size=1000", "redis,host=x"],
            "Invalid argument",
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
    ],
)
def test_an_invalid_cache_has_tritons_error(texts, code, said):
    with pytest.raises(ServerError) as raised:
        byte_size(*texts)
    assert raised.value.code.value == code
    assert said in raised.value.message


def latencies(*texts):
    return values.latency_metrics([values.metrics_setting(text) for text in texts])


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
def test_switches_change_only_at_their_exact_value(texts, expected):
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
def test_malformed_quantiles_are_ignored(text, expected):
    assert latencies(f"summary_quantiles={text}").quantiles == expected


KNOWN = [
    "--backend-config=python,host=process",
    "--backend-config=python,shm-default-byte-size=4194304",
    "--backend-config=default-max-batch-size=8",
    "--metrics-config=counter_latencies=false",
    "--metrics-config=summary_quantiles=0.5:0.05",
    "--trace-config=level=OFF",
    "--trace-config=mode=triton",
    "--trace-config=triton,file=t",
    "--trace-config=opentelemetry,url=http://collector:4318/v1/traces",
    "--cache-config=local,size=4096",
]


@pytest.mark.parametrize("argument", KNOWN)
def test_known_settings_have_no_warning(argument):
    assert cli.parse([argument])[1] == []


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (
            "--backend-config=python,hots=process",
            "unknown setting 'python,hots'; did you mean 'python,host'?",
        ),
        ("--backend-config=hosts=process", "unknown setting 'hosts'; did you mean 'python,host'?"),
        (
            "--backend-config=pyhton,host=process",
            "unknown backend 'pyhton'; expected 'python' or 'onnxruntime'; did you mean 'python'?",
        ),
        (
            "--backend-config=tensorrt,a=b",
            "unknown backend 'tensorrt'; expected 'python' or 'onnxruntime'",
        ),
        (
            "--metrics-config=counter_latency=true",
            "unknown setting 'counter_latency'; did you mean 'counter_latencies'?",
        ),
        (
            "--metrics-config=x=1",
            "unknown setting 'x'; known are counter_latencies, histogram_latencies, "
            "summary_latencies, summary_quantiles",
        ),
        ("--metrics-config=summary_latencies=1", "the value must be 'true' or 'false'"),
        ("--trace-config=levle=OFF", "unknown setting 'levle'; did you mean 'level'?"),
        (
            "--trace-config=triton,level=OFF",
            "unknown setting 'triton,level'; did you mean 'level'?",
        ),
        (
            "--trace-config=opentelemetry,bsp_delay=5",
            "unknown setting 'opentelemetry,bsp_delay'; did you mean "
            "'opentelemetry,bsp_schedule_delay'?",
        ),
        ("--trace-config=file=t", "unknown setting 'file'; did you mean 'triton,file'?"),
    ],
)
def test_an_unknown_setting_has_a_warning(argument, said):
    (warning,) = cli.parse([argument])[1]
    assert warning == f"no effect in the reference server: {argument}: {said}"


def test_an_unknown_cache_setting_has_a_warning():
    arguments = ["--cache-config=local,size=4096", "--cache-config=local,siez=1"]
    assert cli.parse(arguments)[1] == [
        "no effect in the reference server: --cache-config=local,siez=1: unknown setting "
        "'local,siez'; did you mean 'local,size'?"
    ]


def test_the_warning_is_logged(capsys, tmp_path):
    assert cli.main(["--backend-config=python,hots=process"]) == 1
    assert "did you mean 'python,host'?" in capsys.readouterr().err


def options(*texts):
    return trace_config.trace_options([trace_config.trace_setting(text) for text in texts])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], TraceOptions()),
        (["triton,file=/a=b"], TraceOptions(file="/a=b")),
        (["level=timestamps"], TraceOptions(levels=frozenset({"TIMESTAMPS"}))),
        (
            ["level=TIMESTAMPS", "level=OFF", "level=TENSORS"],
            TraceOptions(levels=frozenset({"TIMESTAMPS", "TENSORS"})),
        ),
        (["level=MIN"], TraceOptions(levels=frozenset({"TIMESTAMPS"}))),
        (["level=MAX", "triton,level=X"], TraceOptions(levels=frozenset({"TIMESTAMPS"}))),
        (["rate=5", "rate=6"], TraceOptions(rate=6)),
        (["rate=-1"], TraceOptions(rate=2**32 - 1)),
        (["count=7x"], TraceOptions(count=7)),
        (["triton,log-frequency=3"], TraceOptions(log_frequency=3)),
        (["mode=TRITON", "other=1", "triton,rate=5"], TraceOptions()),
    ],
)
def test_settings_are_combined(texts, expected):
    assert options(*texts) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("opentelemetry,bsp_schedule_delay=x", "Invalid option value. Got x"),
        ("opentelemetry,bsp_schedule_delay=-1", "'bsp_schedule_delay' must be at least 0. Got -1"),
        ("opentelemetry,bsp_max_queue_size=0", "'bsp_max_queue_size' must be at least 1. Got 0"),
    ],
)
def test_invalid_settings_are_rejected(text, said):
    with pytest.raises(ArgumentTypeError) as caught:
        trace_config.trace_setting(text)
    assert said in str(caught.value)


def test_the_mode_opentelemetry_has_its_own_settings():
    assert options("opentelemetry,url=u").opentelemetry is None  # as in Triton: the mode decides
    assert options("mode=OpenTelemetry").opentelemetry == OpenTelemetryOptions()
    given = options(
        *("OpenTelemetry,url=first", "mode=opentelemetry", "opentelemetry,url=last:1/v1"),
        *("opentelemetry,resource=a=b=c", "opentelemetry,resource=d"),
        *("opentelemetry,bsp_max_queue_size=9", "opentelemetry,file=f", "rate=5"),
    ).opentelemetry
    assert given == OpenTelemetryOptions(
        url="http://last:1/v1",
        resource={"a": "b=c", "d": ""},
        max_queue_size=9,
        given=(
            *(("url", "first"), ("url", "last:1/v1"), ("resource", "a=b=c"), ("resource", "d")),
            ("bsp_max_queue_size", "9"),
        ),
    )


@pytest.mark.parametrize(
    "url", ["ftp://host/v1", "http://host:port/v1", "http:///v1", "127.0.0.1:1,mode=x"]
)
def test_url_that_cannot_be_used_has_a_warning(url):
    given = argparse.Namespace(
        trace_config=[trace_config.trace_setting(f"opentelemetry,url={url}")]
    )
    (warning,) = trace_config.warnings(given)
    assert f"url={url}: no spans are sent; expected" in warning
