"""Profiles and dumps of some executions of a model on a simulated card."""

import json
import logging
import shutil

import numpy as np
import pytest
from runtime.npu.driver.test_om_serving import on_card
from runtime.support.ascend import compile_om
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER, encode, write

from ascend_simulator.interface.prof import Profiler
from ascend_simulator.models.dumps import Dumps
from ascend_simulator.process import current
from ge_runtime import ConfigFault, Runtime
from ge_runtime.errors import EngineFault, EngineLost
from ge_runtime.npu.driver.installation import import_cann_module

pytestmark = pytest.mark.brute_force


@pytest.fixture
def open_runtime(encoder_dir, tmp_path, caplog):
    """A function: the encoder, opened with a profile or dump into `tmp_path`; closed at the end."""
    caplog.set_level(logging.INFO)
    runtimes = []

    def open_runtime(folder=encoder_dir, **parameters):
        config = on_card(
            encoder_config({"warmup": "none", "load_check": "off"}),
            **{key: text.format(dir=tmp_path) for key, text in parameters.items()},
        )
        runtimes.append(Runtime.open(folder, config, instance_name=f"encoder_{len(runtimes)}"))
        return runtimes[-1]

    yield open_runtime
    for runtime in runtimes:
        runtime.close()


def execute(runtime, times=1):
    for _ in range(times):
        ids = np.array([[1, 2, 3]])
        lengths = np.array([[3]], np.int32)
        (answer,) = runtime.infer([{"input_ids": ids, "lengths": lengths}])
        if isinstance(answer, Exception):
            raise answer
        np.testing.assert_allclose(answer["embedding"], encode([[1, 2, 3]]), rtol=1e-5)


def profiled(tmp_path):
    """Return the number of executions in each profile."""
    found = []
    for folder in sorted(tmp_path.glob("PROF_*")):
        lines = next((folder / "device_0" / "data").iterdir()).read_text().splitlines()
        found.append(sum(json.loads(line)["kind"] == "execute" for line in lines))
    return found


def test_a_profile_has_the_executions_that_it_was_asked_for(open_runtime, tmp_path, caplog):
    runtime = open_runtime(profile="dir={dir}, batches=3, from=2")
    reported = f"encoder_0: not planned: profile of executions 2 to 4 into {tmp_path}: CANN needs "
    reported += f"additional memory and time; then run `msprof --export=on --output={tmp_path}`"
    assert reported in runtime.report
    execute(runtime)
    assert profiled(tmp_path) == []
    execute(runtime, 5)
    assert profiled(tmp_path) == [3]
    assert f"`msprof --export=on --output={tmp_path}`" in caplog.text
    assert current().part(Profiler).live() == []


def test_a_profile_is_whole_where_the_model_goes_before_its_end(open_runtime, tmp_path):
    runtime = open_runtime(profile="dir={dir}")
    execute(runtime, 2)
    runtime.close()
    assert profiled(tmp_path) == [2]
    assert current().part(Profiler).live() == []


def test_a_dump_has_the_operators_of_its_executions(open_runtime, tmp_path, caplog):
    runtime = open_runtime(dump="dir={dir}, from=2, batches=2, mode=all")
    models = []

    def loaded():
        models.extend(sorted(file.name for file in tmp_path.glob("2*/0/model/*")))

    execute(runtime)
    loaded()
    assert models == []
    execute(runtime, 4)
    (began,) = tmp_path.glob("2*")
    files = [file.relative_to(began).parts for file in began.rglob("*.*")]
    assert {parts[:2] for parts in files} == {("0", "model")}
    assert {parts[3] for parts in files} == {"0", "1"}
    assert len({parts[2] for parts in files}) == 1
    kinds = {parts[4].partition(".")[0] for parts in files}
    assert kinds == {"Gather", "Cast", "Unsqueeze", "Mul", "ReduceSum", "Div"}
    assert f"dump of executions 2 to 3 is in {tmp_path}" in caplog.text
    assert current().part(Dumps).live() == []


@pytest.mark.parametrize("more", [{"io_buffers": "2"}, {"devices": "npu:0, npu:0"}])
def test_of_several_engines_the_first_ones_executions_count(open_runtime, tmp_path, caplog, more):
    for parameter in ("profile", "dump"):
        runtime = open_runtime(**{parameter: "dir={dir}, batches=2"}, **more)
        execute(runtime, 6)
        runtime.close()
    assert len(profiled(tmp_path)) == 1
    assert [*tmp_path.glob("2*/0/model/*/0/*.*")]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_dump_may_be_of_some_operators_and_of_free_shapes(open_runtime, tmp_path):
    folder = tmp_path / "1"
    write(ENCODER, "onnxruntime", folder)
    compile_om(folder, "--input_shape=input_ids:1~8,1~32;attention_mask:1~8,1~32")
    runtime = open_runtime(folder, dump="dir={dir}, layers=Div_6;none", unplanned_memory="allowed")
    execute(runtime, 2)
    (file,) = tmp_path.glob("2*/0/model/*/*/*.*")
    assert file.name.startswith("Div.Div_6.6.")  # the graph's nodes have no names: ATC's count
    shutil.rmtree(file.parents[4])
    runtime.close()
    runtime = open_runtime(folder, dump="dir={dir}", unplanned_memory="allowed")
    execute(runtime, 2)
    assert len([*tmp_path.glob("2*/0/model/*/*/*.*")]) == 7


def test_a_dump_that_runs_ends_with_the_model(open_runtime, tmp_path):
    runtime = open_runtime(dump="dir={dir}, batches=9")
    execute(runtime)
    runtime.close()
    assert [*tmp_path.glob("2*/0/model/*/0/*.*")]
    assert current().part(Dumps).live() == []


# -- what goes wrong ------------------------------------------------------------------------------


def test_serving_goes_on_where_a_profile_fails_and_the_log_says_so_once(
    open_runtime, tmp_path, caplog
):
    first = open_runtime(profile="dir={dir}, batches=2")
    second = open_runtime(profile="dir={dir}, batches=2")
    execute(first, 3)
    execute(second, 3)
    reported = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(reported) == 1
    assert reported[0].startswith(
        "parameter 'profile': the model continues without it: acl.prof.init: 100002"
    )
    assert profiled(tmp_path) == [2]


def test_a_profiler_that_cannot_start_is_no_failure_of_requests(
    open_runtime, tmp_path, caplog, monkeypatch
):
    runtime = open_runtime(profile="dir={dir}, batches=2")
    acl = import_cann_module("acl")
    monkeypatch.setattr(acl.prof, "start", lambda config: 500005)
    execute(runtime, 3)
    assert "acl.prof.start: 500005" in caplog.text
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1
    assert profiled(tmp_path) == []


def test_a_dump_whose_load_fails_is_left_and_the_model_loaded_without(
    open_runtime, machine, tmp_path, caplog
):
    runtime = open_runtime(dump="dir={dir}")
    machine.arm("load@1=245000")
    execute(runtime, 3)
    assert "parameter 'dump': the model continues without it: " in caplog.text
    assert not [*tmp_path.glob("2*")]
    assert current().part(Dumps).live() == []


def test_a_model_that_cannot_be_loaded_again_loses_the_card(open_runtime, machine):
    runtime = open_runtime(dump="dir={dir}")
    machine.arm("load@1=245000;load@2=245000")
    with pytest.raises(EngineLost, match="recovery failed"):
        execute(runtime)


def test_an_execution_that_fails_while_it_is_profiled_fails_as_ever(
    open_runtime, machine, tmp_path
):
    runtime = open_runtime(profile="dir={dir}, batches=2")
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault, match="507011"):
        execute(runtime)
    execute(runtime, 2)
    assert len(profiled(tmp_path)) == 1


@pytest.mark.parametrize("parameter", ["profile", "dump"])
def test_a_folder_that_is_not_there_is_reported_by_the_parameter(open_runtime, parameter):
    reported = rf"parameter '{parameter}': .*/missing: found no folder, expected an existing folder"
    with pytest.raises(ConfigFault, match=reported):
        open_runtime(**{parameter: "dir={dir}/missing"})
