"""The settings of the log and of tracing, and the selection of traced requests."""

import pytest
from server.support.clock import ManualClock

from reference_server.core.errors import Code, ServerError
from reference_server.gateway.log_and_trace_settings import LogSettings, TraceSettings
from reference_server.observability.tracing import FileMode
from reference_server.options import LogOptions, TraceOptions

NAMES = ("trace_level", "trace_rate", "trace_count", "log_frequency")
ON = {"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]}


@pytest.fixture
def make(tmp_path):
    """A function: settings over the models `m` and `other`, with a file."""

    def make(**options):
        given = TraceOptions(**{"file": str(tmp_path / "trace.json")} | options)
        return TraceSettings(
            given, FileMode(given.file, ManualClock()), {"m", "other"}.__contains__
        )

    return make


@pytest.fixture
def settings(make):
    return make()


def shown(settings, model=""):
    values = settings.read(model)
    return tuple(list(values[name]) for name in NAMES)


def refusal(settings, changes, model=""):
    with pytest.raises(ServerError) as caught:
        settings.update(changes, model)
    return caught.value.code, caught.value.message


def samples(settings, model, count):
    """Return which of `count` requests are traced."""
    traces = [settings.sample(model, tuple) for _ in range(count)]
    for trace in traces:
        if trace is not None:
            trace.close()
    return [trace is not None for trace in traces]


def test_without_a_file_nothing_can_be_traced(make):
    settings = make(file="")
    assert refusal(settings, {"trace_level": ["TENSORS"]}) == (
        Code.INVALID_ARG,
        "Attempting to set invalid trace setting :trace file name is not given",
    )
    assert make(file="", levels=frozenset({"TENSORS"}), rate=1).sample("m", tuple) is None


def test_every_nth_request_is_traced_and_a_change_restarts(settings):
    settings.update(ON | {"trace_rate": ["3"]})
    assert samples(settings, "m", 7) == [False, False, True] * 2 + [False]
    settings.update({"trace_rate": ["3"]})
    assert samples(settings, "m", 3) == [False, False, True]


def test_a_count_runs_down_and_is_returned(settings):
    settings.update(ON | {"trace_count": ["2"]})
    assert samples(settings, "m", 3) == [True, True, False]
    assert shown(settings)[2] == ["0"]


def test_models_with_inherited_settings_share_a_count(settings):
    settings.update(ON | {"trace_count": ["2"]})
    assert samples(settings, "m", 1) + samples(settings, "other", 2) == [True, True, False]


def test_a_model_can_have_its_own_count(settings):
    settings.update(ON | {"trace_count": ["5"]})
    settings.update({"trace_count": ["3"]}, "m")
    samples(settings, "m", 2)
    settings.update({"trace_rate": ["1"]})
    assert (shown(settings)[2], shown(settings, "m")[2]) == (["5"], ["1"])


def test_the_command_line_sets_the_defaults(make):
    settings = make(levels=frozenset({"TIMESTAMPS"}), rate=1, count=3, log_frequency=2)
    samples(settings, "m", 2)
    assert shown(settings) == (["TIMESTAMPS"], ["1"], ["1"], ["2"])
    settings.update({"trace_rate": ["2"]})
    assert shown(settings) == (["TIMESTAMPS"], ["2"], ["3"], ["2"])


@pytest.fixture
def applied():
    return []


@pytest.fixture
def log_settings(applied):
    return LogSettings(LogOptions(), applied.append)


def test_each_change_is_applied(log_settings, applied):
    log_settings.update({"log_info": False, "log_format": "ISO8601"})
    assert applied == [LogOptions(info=False), LogOptions(info=False, iso8601=True)]
