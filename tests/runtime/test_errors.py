import inspect
import traceback

import ge_runtime.errors
from ge_runtime.errors import (
    ConfigFault,
    RequestFault,
    RuntimeFault,
    ShapeMismatch,
    forget_frames,
)


def test_config_fault_shows_and_keeps_every_fault():
    fault = ConfigFault("encoder", ["limit: found 0", "pad: found 'x'"])
    assert fault.faults == ("limit: found 0", "pad: found 'x'")
    assert str(fault) == (
        "2 faults in the configuration of model 'encoder':\n  - limit: found 0\n  - pad: found 'x'"
    )


def test_config_fault_counts_one_in_words():
    assert str(ConfigFault("m", ["a"])).startswith("1 fault in the configuration of model 'm':")


def test_every_fault_is_a_runtime_fault():
    classes = dict(inspect.getmembers(ge_runtime.errors, inspect.isclass)).values()
    faults = [fault for fault in classes if fault.__module__ == ge_runtime.errors.__name__]
    assert len(faults) > 1
    assert all(issubclass(fault, RuntimeFault) for fault in faults)


def test_shape_mismatch_is_a_request_fault():
    assert issubclass(ShapeMismatch, RequestFault)


def test_an_error_without_frames_keeps_its_cause():
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise RuntimeFault("second") from first
    except RuntimeFault as second:
        error = second
    forget_frames(error)
    assert "".join(traceback.format_exception(error)) == (
        "KeyError: 'first'\n\nThe above exception was the direct cause of the following exception:"
        "\n\nge_runtime.errors.RuntimeFault: second\n"
    )
