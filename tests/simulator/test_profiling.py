"""acl.prof: the order of its calls, and the content of its folders."""

import json

import pytest
from simulator.support.driving import ok
from simulator.support.models import Loaded, static_om

from ascend_simulator.codes import Code

ALL = 0x1 | 0x2 | 0x4


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "prof"


@pytest.fixture
def config(acl):
    return acl.prof.create_config([0], 1, 0, ALL)


def test_what_runs_between_start_and_stop_is_in_a_folder_for_each_device(
    acl, tmp_path, folder, config
):
    prof = acl.prof
    assert prof.init(str(folder)) == 0
    model = Loaded(acl, static_om(tmp_path))
    stream = ok(acl.rt.create_stream())
    for windows in (1, 2):
        assert prof.start(config) == 0
        ok(model.execute_async(stream))
        ok(acl.rt.synchronize_stream(stream))
        assert prof.stop(config) == 0
        ok(model.execute_async(stream))
        ok(acl.rt.synchronize_stream(stream))
        found = sorted(folder.iterdir())
        assert len(found) == windows
        assert found[-1].name.startswith(f"PROF_{windows:06}_2")
        assert (found[-1] / "host" / "data").is_dir()
        (file,) = (found[-1] / "device_0" / "data").iterdir()
        spans = [json.loads(line) for line in file.read_text().splitlines()]
        assert [span["kind"] for span in spans] == ["execute"]
    assert prof.destroy_config(config) == 0
    assert prof.finalize() == 0


def test_calls_in_the_wrong_order_are_refused(acl, folder, config):
    prof = acl.prof
    for early in (prof.start, prof.stop):
        assert early(config) == Code.PROF_NOT_RUN
    assert prof.finalize() == Code.PROF_NOT_RUN
    assert prof.init("") == Code.INVALID_FILE
    folder.write_text("no folder")
    assert prof.init(str(folder)) == Code.INVALID_FILE
    folder.unlink()
    assert prof.init(str(folder)) == 0
    assert prof.init(str(folder)) == Code.REPEAT_INITIALIZE
    assert prof.stop(config) == Code.PROF_NOT_RUN
    assert prof.start(0) == prof.stop(0) == prof.destroy_config(0) == Code.INVALID_PARAM
    assert prof.start(config) == 0
    other = prof.create_config([0], 255, 0, 0x2)
    assert prof.start(other) == Code.PROF_ALREADY_RUN
    assert prof.stop(other) == Code.INVALID_PROFILING_CONFIG
    assert prof.stop(config) == 0
    assert prof.start(other) == prof.stop(other) == 0
    assert prof.finalize() == 0
    for each in (config, other):
        assert prof.destroy_config(each) == 0


@pytest.mark.parametrize(
    "given",
    [
        ([], 0, 0, ALL),
        ([0, 0], 0, 0, ALL),
        ([99], 0, 0, ALL),
        ([0], 9, 0, ALL),
        ([0], 0, 1, ALL),
        ([0], 0, 0, 0),
        ([0], 0, 0, 1 << 40),
    ],
)
def test_an_invalid_prof_configuration_is_null(acl, given):
    assert acl.prof.create_config(*given) == 0
    assert "prof.create_config: " in acl.get_recent_err_msg()


@pytest.mark.parametrize("devices", [(0,), ["0"], 0, [True]])
def test_devices_are_a_list_of_ints(acl, devices):
    with pytest.raises(TypeError):
        acl.prof.create_config(devices, 0, 0, ALL)


def test_a_profiler_of_acl_init_excludes_prof_init(machine, tmp_path, folder):
    acl = machine()
    path = tmp_path / "acl.json"
    path.write_text(json.dumps({"profiler": {"switch": "on", "output": "output"}}))
    ok(acl.init(str(path)))
    assert acl.prof.init(str(folder)) == Code.REPEAT_INITIALIZE
