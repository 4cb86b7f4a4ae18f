import traceback

from ge_runtime.errors import ConfigFault, RuntimeFault, forget_frames


def test_config_fault_shows_and_keeps_every_fault():
    fault = ConfigFault("encoder", ["limit: found 0", "pad: found 'x'"])
    assert fault.faults == ("limit: found 0", "pad: found 'x'")
    assert str(fault) == (
        "2 faults in the configuration of model 'encoder':\n  - limit: found 0\n  - pad: found 'x'"
    )


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
