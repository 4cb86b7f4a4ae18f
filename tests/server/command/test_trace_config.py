"""`--trace-config`: the parsing and the combination of its settings."""

import argparse
from argparse import ArgumentTypeError

import pytest

from reference_server.command import trace_config
from reference_server.options import OpenTelemetryOptions, TraceOptions


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
        *((text, "option format is") for text in ("", "level", "level=", "=5", "triton,=5")),
        ("level=ALL", "invalid value for trace level option: all"),
        ("rate=x", "Invalid option value. Got x"),
        ("count=2147483648", "Provided option value is out of bound. Got 2147483648"),
        ("triton,log-frequency=x", "Invalid option value. Got x"),
        ("mode=jaeger", "invalid value for trace mode option: jaeger"),
        ("jaeger,file=f", "invalid value for trace mode option: jaeger"),
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


def test_only_the_first_comma_ends_the_mode():
    assert trace_config.trace_setting("triton,file=a,b=c") == ("triton,file", "a,b=c")
    with pytest.raises(ArgumentTypeError, match="invalid value for trace mode option: rate=1"):
        trace_config.trace_setting("rate=1,level=TIMESTAMPS")
