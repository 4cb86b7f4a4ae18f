"""The option `--trace-config`: settings, modes, refusals."""

from argparse import ArgumentTypeError

import pytest

from reference_server import config_options
from reference_server.options import TraceOptions


def options(*texts):
    return config_options.trace_options([config_options.trace_setting(text) for text in texts])


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
def test_settings_are_joined(texts, expected):
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
        ("mode=opentelemetry", "trace mode 'opentelemetry' is not served"),
        ("OpenTelemetry,url=x", "trace mode 'opentelemetry' is not served"),
    ],
)
def test_what_cannot_be_is_refused(text, said):
    with pytest.raises(ArgumentTypeError) as caught:
        config_options.trace_setting(text)
    assert said in str(caught.value)
