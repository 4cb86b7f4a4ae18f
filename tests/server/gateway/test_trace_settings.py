"""The settings of tracing: inheritance, refusals, and the selection of requests."""

import pytest
from server.support.clock import ManualClock

from reference_server.core.errors import Code, ServerError
from reference_server.gateway.log_and_trace_settings import TraceSettings
from reference_server.observability.tracing import FileMode
from reference_server.options import TraceOptions

NAMES = ("trace_level", "trace_rate", "trace_count", "log_frequency")
START = (["OFF"], ["1000"], ["-1"], ["0"])
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
    told = settings.read(model)
    return tuple(list(told[name]) for name in NAMES)


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


def test_all_settings_are_read_in_tritons_order(make):
    told = make(file="", levels=frozenset({"TENSORS"})).read()
    assert list(told.items()) == [
        ("trace_level", ["TENSORS"]),
        ("trace_rate", ["1000"]),
        ("trace_count", ["-1"]),
        ("log_frequency", ["0"]),
        ("trace_file", [""]),
        ("trace_mode", ["triton"]),
    ]


def test_a_model_inherits_unset_values(settings):
    settings.update({"trace_rate": ["20"]}, "m")
    settings.update({"trace_rate": ["10"], "log_frequency": ["3"]})
    assert shown(settings) == (["OFF"], ["10"], ["-1"], ["3"])
    assert shown(settings, "m") == (["OFF"], ["20"], ["-1"], ["3"])
    assert shown(settings, "other") == shown(settings)


def test_a_reset_value_is_inherited_again(settings):
    settings.update({"trace_rate": ["20"]}, "m")
    settings.update({"trace_rate": ["10"]})
    settings.update({"trace_rate": None}, "m")
    assert shown(settings, "m")[1] == ["10"]
    settings.update({"trace_rate": None})
    assert shown(settings) == shown(settings, "m") == START


def test_an_unknown_level_changes_nothing(settings):
    settings.update({"trace_level": ["TENSORS", "TIMESTAMPS"]})
    for words in (["other"], []):
        settings.update({"trace_level": words})
    assert shown(settings)[0] == ["TIMESTAMPS", "TENSORS"]


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (
            {"trace_file": None},
            Code.UNSUPPORTED,
            "trace file location can not be updated through network protocol",
        ),
        (
            {"trace_level": ["OFF", "x"]},
            Code.INVALID_ARG,
            "Expect only one trace level 'OFF' is specified",
        ),
        (
            {"trace_rate": ["1", "2"]},
            Code.INVALID_ARG,
            "expect only 1 value for 'trace_rate'",
        ),
        ({"trace_rate": ["x"]}, Code.INVALID_ARG, "Unable to parse 'trace_rate', got: x"),
        (
            {"log_frequency": ["2147483648"]},
            Code.INVALID_ARG,
            "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], "
            "got: 2147483648",
        ),
        (
            {"trace_count": ["-2147483649"]},
            Code.INVALID_ARG,
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], "
            "got: -2147483649",
        ),
        (
            {"trace_count": ["-2"]},
            Code.INVALID_ARG,
            "Unable to parse 'trace_count'. Expecting value >= -1, got: -2",
        ),
        (
            {"trace_level": ["TENSORS"], "trace_rate": ["0"]},
            Code.INVALID_ARG,
            "Attempting to set invalid trace setting :sample rate must be non-zero",
        ),
        (
            {"trace_level": ["TENSORS"], "trace_count": ["0"]},
            Code.INVALID_ARG,
            "Attempting to set invalid trace setting :",
        ),
    ],
)
def test_a_refused_change_changes_nothing(settings, changes, code, text):
    assert refusal(settings, {"log_frequency": ["7"], **changes}) == (code, text)
    assert shown(settings) == START


def test_without_a_file_nothing_can_be_traced(make):
    settings = make(file="")
    assert refusal(settings, {"trace_level": ["TENSORS"]}) == (
        Code.INVALID_ARG,
        "Attempting to set invalid trace setting :trace file name is not given",
    )
    assert make(file="", levels=frozenset({"TENSORS"}), rate=1).sample("m", tuple) is None


def test_a_change_that_makes_a_models_setting_invalid_is_refused(settings):
    settings.update({"trace_level": ["TENSORS"]}, "m")
    code, _ = refusal(settings, {"trace_rate": ["0"]})
    assert code is Code.INVALID_ARG
    assert shown(settings) == START


@pytest.mark.parametrize("ask", [TraceSettings.read, lambda settings, m: settings.update({}, m)])
def test_an_unknown_model_has_no_settings(settings, ask):
    with pytest.raises(ServerError, match=r"^Request for unknown model : unknown$") as caught:
        ask(settings, "unknown")
    assert caught.value.code is Code.INVALID_ARG


def test_nothing_is_traced_at_start(settings):
    assert samples(settings, "m", 3) == [False] * 3


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
