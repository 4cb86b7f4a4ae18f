"""Arguments as pybind11 reads them; the whole matrix is in tests/contract/test_model_api.py."""

import numpy as np
import pytest

from reference_server.backends.python_host import triton_python_backend_utils as pb_utils
from reference_server.backends.python_host.api import pybind

X = pb_utils.Tensor("X", np.zeros(2, np.float32))


def asked(**named):
    given = {"model_name": "m", "inputs": [X], "requested_output_names": ["Y"]}
    return pb_utils.InferenceRequest(**given | named)


@pytest.mark.parametrize("name", ["m", b"m", np.bytes_(b"m"), np.str_("m")], ids=repr)
def test_texts_may_be_bytes(name):
    names = np.array([name], object)
    request = asked(model_name=names[0], request_id=name, requested_output_names=names)
    assert request._bls.model_name == request.request_id() == "m"
    assert type(request.request_id()) is str
    assert request.requested_output_names() == {"m"}
    assert pb_utils.Tensor(name, np.zeros(1)).name() == "m"


@pytest.mark.parametrize("code", np.typecodes["AllInteger"])
def test_integers_may_be_numpys(code):
    three = np.dtype(code).type(3)
    assert asked(timeout=three, flags=three, model_version=three).timeout() == 3


@pytest.mark.parametrize("value", [1.0, np.float64(1), "1", None, 2**32, -1, [1]], ids=repr)
def test_what_is_no_integer_of_the_width_is_refused(value):
    request = asked()
    with pytest.raises(TypeError, match=r"^set_flags\(\): incompatible function arguments"):
        request.set_flags(value)
    with pytest.raises(TypeError, match=r"^set_release_flags\(\): incompatible function"):
        request.set_release_flags(value)


def test_a_refusal_shows_what_was_given_by_place_and_by_name():
    with pytest.raises(TypeError) as refusal:
        pb_utils.TritonError("m", code=1)
    assert str(refusal.value).endswith("Invoked with: 'm'; kwargs: code=1")
    with pytest.raises(TypeError) as refusal:
        pb_utils.InferenceResponse(error="e")
    assert str(refusal.value).endswith("Invoked with: kwargs: error='e'")


def test_the_number_of_arguments_is_read_before_their_values():
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        pb_utils.InferenceResponse(np.array(1), None, unknown=1)
    with pytest.raises(TypeError, match="len"):
        pb_utils.InferenceResponse(np.array(1))


def test_members_of_enumerations_are_equal_to_their_numbers_but_are_none():
    level = pb_utils.Logger.LogLevel(2)
    assert level == pb_utils.Logger.ERROR == 2
    assert not isinstance(level, int)
    assert (level.name, level.value, int(level), [7, 8, 9][level]) == ("ERROR", 2, 2, 9)
    assert str(pb_utils.Logger.LogLevel(7)) == "LogLevel.???"
    with pytest.raises(TypeError, match="LogLevel"):
        pb_utils.Logger.LogLevel("ERROR")


def test_a_level_without_a_name_logs_nothing(caplog):
    pb_utils.Logger.log("lost", pb_utils.Logger.LogLevel(7))
    assert not caplog.records


def test_signatures_are_made_of_functions():
    @pybind.function(pybind.TEXT, pybind.TRUTH, returns="bool")
    def chosen(name, /, wanted=True):
        return name, wanted

    assert chosen("a", wanted=np.bool_(False)) == ("a", False)
    with pytest.raises(TypeError) as refusal:
        chosen(name="a")
    assert "1. (arg0: str, wanted: bool = True) -> bool\n\nInvoked with: kwargs" in str(
        refusal.value
    )
