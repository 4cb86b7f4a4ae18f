"""The settings of the simulated machine, from the environment."""

import dataclasses
import re
from pathlib import Path

import pytest

from ascend_simulator import Settings, from_environment
from ascend_simulator.settings import PREFIX


def test_without_variables_there_is_one_strict_device():
    assert from_environment({"HOME": "/"}) == Settings()
    assert (Settings().mode, Settings().devices, Settings().seed) == ("strict", 1, None)


def test_each_variable_is_a_field():
    values = {
        "mode": "lenient",
        "exit_code": 23,
        "soc": "SimulatedOther",
        "devices": 3,
        "hbm_mib": 100,
        "streams": 5,
        "events": 6,
        "launch_us": 12.5,
        "copy_gbps": 20.0,
        "compile_ms": 7.0,
        "load_ms": 8.0,
        "threads": 2,
        "size_slack": 32,
        "timeline": 9,
        "seed": 4,
        "faults": "malloc@1=207001",
    }
    given = {PREFIX + name.upper(): str(value) for name, value in values.items()}
    found = from_environment({**given, "ASCEND_RT_VISIBLE_DEVICES": "0,2"})
    assert found == Settings(**values, visible_devices=(0, 2))


def test_the_interpreter_of_atc_is_not_a_setting():
    assert from_environment({"ASCEND_SIMULATOR_PYTHON": "/usr/bin/python3"}) == Settings()


def test_all_errors_of_the_environment_are_named():
    with pytest.raises(ValueError, match="DEVICES: found 'two'") as raised:
        from_environment({"ASCEND_SIMULATOR_DEVICES": "two", "ASCEND_SIMULATOR_SPEED": "1"})
    assert "SPEED: unknown name" in str(raised.value)


UNFIT = {
    "mode": ("mild", ""),
    "exit_code": ("-1", "256"),
    "soc": ("",),
    "run_mode": ("board", ""),
    "devices": ("-1", "two", ""),
    "hbm_mib": ("0", "1.5"),
    "streams": ("0",),
    "model_streams": ("-1",),
    "queue": ("-1",),
    "events": ("0",),
    "launch_us": ("-1.0", "inf"),
    "copy_gbps": ("nan",),
    "compile_ms": ("-0.5", "long"),
    "load_ms": ("-0.5",),
    "threads": ("0",),
    "size_slack": ("-1",),
    "timeline": ("-1",),
    "seed": ("1.5",),
    "faults": ("malloc", "execute@x=507010"),
    "visible_devices": (),  # CANN ignores what it cannot read
}
"""Setting: texts of values that it cannot have."""


@pytest.mark.parametrize(
    ("name", "text"), [(n, text) for n, texts in UNFIT.items() for text in texts]
)
def test_an_invalid_value_is_reported_with_variable_and_expectation(name, text):
    own = PREFIX + name.upper()
    with pytest.raises(ValueError, match=f"^{own}: found '{text}', expected ") as raised:
        from_environment({own: text})
    assert ", e.g. " in str(raised.value) or name in ("mode", "run_mode")


def test_the_invalid_part_of_a_fault_plan_is_reported():
    variable = f"{PREFIX}FAULTS"
    with pytest.raises(ValueError, match=r"^ASCEND_SIMULATOR_FAULTS: found 'sync@0=1', expected"):
        from_environment({variable: "malloc@1=207001; sync@0=1; execute@2=lost"})


def test_every_setting_has_an_expectation_text():
    assert UNFIT.keys() == {field.name for field in dataclasses.fields(Settings)}


def test_reset_for_tests_refuses_invalid_settings():
    with pytest.raises(ValueError, match=r"^hbm_mib: found '0', expected .*; faults: found 'x'"):
        Settings(hbm_mib=0, faults="x")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, (0, 1, 2)), ((), ()), ((2,), (2,)), ((1, 5, 2), (1,)), ((2, 1), ()), ((1, 1), ())],
)
def test_visible_devices_are_ascending_and_end_at_the_first_unknown_one(visible, expected):
    assert Settings(devices=3, visible_devices=visible).device_ids == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("1,2", (1, 2)), ("1, 2,3", (1,)), ("1,2 ,3", (1, 2)), ("1,x,2", (1,)), (" 1", ())),
        *(("", ()), ("a", ()), ("0;1", ()), ("1,-2", (1,))),
    ],
)
def test_visible_devices_are_read_up_to_the_first_blank_or_other_character(text, expected):
    assert from_environment({"ASCEND_RT_VISIBLE_DEVICES": text}).visible_devices == expected


def test_the_page_has_every_setting_and_its_default():
    page = (Path(__file__).parents[2] / "docs/simulator.md").read_text()
    rows = dict(re.findall(r"^\| `--([a-z-]+)` \| `?([^|`]+?)`? \|", page, re.MULTILINE))
    defaults = {
        field.name.replace("_", "-"): field.default
        for field in dataclasses.fields(Settings)
        if field.name != "visible_devices"
    }
    assert rows.keys() == defaults.keys()
    for name, default in defaults.items():
        shown = "none" if default in (None, "") else f"{default:g}" if default == 0.0 else default
        assert rows[name] == str(shown)
