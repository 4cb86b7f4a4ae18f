"""Repository control: accepted and refused operations."""

import pytest

from reference_server.core.errors import Code, ServerError
from reference_server.gateway.repository_control import RepositoryControl
from reference_server.options import ControlMode
from reference_server.repository.model_folders import Override


class Asked:
    """A repository that records its calls."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *given, **more: self.calls.append((name, *given, *more.values()))


@pytest.fixture
def asked():
    return Asked()


@pytest.fixture
def control(asked):
    return RepositoryControl(asked, ControlMode.EXPLICIT)


@pytest.mark.parametrize(
    ("parameters", "override"),
    [
        ({}, None),
        ({"config": "{}"}, Override("{}")),
        ({"config": "{}", "file:1/x": b"y"}, Override("{}", {"1/x": b"y"})),
        ({"file:": b""}, Override(None, {"": b""})),
    ],
)
def test_a_load_has_overrides(control, asked, parameters, override):
    control.load("m", parameters)
    assert asked.calls == [("load", "m", override)]


def test_files_of_a_load_can_be_refused(asked):
    control = RepositoryControl(asked, ControlMode.EXPLICIT, accepts_files=False)
    with pytest.raises(ServerError) as caught:
        control.load("m", {"config": "{}", "file:1/model.py": b"code"})
    assert caught.value.code is Code.UNSUPPORTED
    assert caught.value.message == (
        "load request for model 'm': found files, expected none; start the server with "
        "--allow-file-override=true to accept them"
    )
    control.load("m", {"config": "{}"})
    assert asked.calls == [("load", "m", Override("{}"))]


def test_the_files_of_a_load_are_limited(control, asked):
    files = {f"file:1/{number}": b"" for number in range(10_000)}
    control.load("m", files)
    with pytest.raises(ServerError) as caught:
        control.load("m", files | {"file:1/x": b""})
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        "load request for model 'm': found 10001 files; expected at most 10000"
    )
    assert len(asked.calls) == 1


@pytest.mark.parametrize("mode", ControlMode)
def test_the_index_explains_failed_loads_of_poll_mode(asked, mode):
    RepositoryControl(asked, mode).index()
    assert asked.calls == [("index", False, mode is ControlMode.POLL)]


@pytest.mark.parametrize("name", ["", ".", "..", "/", "a/b", "../a", "a\0b"])
def test_a_model_name_is_a_folder_in_the_repository(control, asked, name):
    with pytest.raises(ServerError) as caught:
        control.load(name)
    assert caught.value.code is Code.INTERNAL
    assert asked.calls == []


OPERATIONS = {
    "load": lambda control, **more: control.load("m", **more),
    "unload": lambda control, **more: control.unload("m", **more),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("mode", [ControlMode.NONE, ControlMode.POLL])
def test_other_modes_refuse_loads_and_unloads(asked, operation, mode):
    with pytest.raises(ServerError) as caught:
        operation(RepositoryControl(asked, mode))
    assert caught.value.code is Code.UNAVAILABLE
    assert asked.calls == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"x": "1"}, "unrecognized load parameter 'x'."),
        ({"config": 1}, "invalid value type for load parameter 'config', expected string_param."),
        ({"config": None}, "invalid value type for load parameter 'config', expected string_param"),
        ({"file:a": "x"}, "invalid value type for load parameter 'file:a', expected bytes_param."),
    ],
)
def test_parameters_have_types(control, asked, parameters, message):
    with pytest.raises(ServerError, match=message):
        control.load("m", parameters)
    assert asked.calls == []


@pytest.mark.parametrize(
    "operation",
    [*OPERATIONS.values(), lambda control, **more: control.index(**more)],
    ids=[*OPERATIONS, "index"],
)
def test_a_repository_name_is_refused(asked, operation):
    with pytest.raises(ServerError) as caught:
        operation(RepositoryControl(asked, ControlMode.NONE), repository="r")
    assert caught.value.code is Code.UNSUPPORTED
