"""The command `doctor`: its report and exit codes."""

import json
import os
import re
from dataclasses import replace

import pytest
from runtime.cli.machines import ASCEND, PLAIN, with_variable
from runtime.cli.test_inspect import parameter
from runtime.support.configs import ENCODER_CONFIG
from runtime.support.graphs import ENCODER, write

from ge_runtime import cli
from ge_runtime.child_process import ChildResult, Outcome
from ge_runtime.cli import doctor
from ge_runtime.cli.doctor import machine as machine_facts
from ge_runtime.cli.doctor.machine import SharedMemory

pytestmark = pytest.mark.brute_force

# Inputs and outputs of the encoder's largest batch, as `inspect` prints them.
ENCODER_BYTES = 4096 + 3 * 576


@pytest.fixture
def run(capsys, monkeypatch):
    """Return a function that runs `doctor` for a machine: exit code, stdout and stderr."""

    def run_command(machine, *arguments):
        monkeypatch.setattr(doctor, "read_machine", lambda: machine)
        code = cli.main(["doctor", *map(str, arguments)])
        return (code, *capsys.readouterr())

    return run_command


@pytest.fixture
def repository(tmp_path):
    """Return a function that creates a repository with one model."""

    def build(config, engine="onnxruntime"):
        folder = tmp_path / "repository/encoder"
        (folder / "1").mkdir(parents=True)
        write(ENCODER, engine, folder / "1")
        (folder / "config.pbtxt").write_text(config)
        return folder.parent

    return build


@pytest.fixture
def uninspected(monkeypatch):
    """Assume that each model's graph agrees with its configuration: the process takes a second."""
    facts = {"engine": "onnxruntime", "unplanned": "yes"}
    monkeypatch.setattr(doctor, "_inspect", lambda folder: ChildResult(Outcome.DONE, facts))


CURES = """\
What to do
  ! Ascend driver, ASCEND_RT_VISIBLE_DEVICES: found '2', and 2 card(s), expected ascending numbers
    of this process's cards, counted from 0, without blanks
    remove 2: inside a container cards are numbered from 0
  - Ascend's compiler, numpy: found 1.26.4, expected 1.19.2 to 1.24.x for the compiler of CANN
    8.3.RC1
    compile .om files in a separate Python environment with numpy 1.19.2 to 1.24.x; serving them
    needs no compiler

Required: npu; 1 problem(s), marked ! above.
"""


def test_the_report(run):
    machine = with_variable(ASCEND, "ASCEND_RT_VISIBLE_DEVICES", "2")
    code, printed, _ = run(machine, "--require", "npu")
    *groups, cures, required = printed.split("\n\n")
    assert (code, f"{cures}\n\n{required}") == (1, CURES)
    assert [group.splitlines()[0] for group in groups] == [
        *(
            "Python",
            "Engines",
            "Memory",
            "Shared memory",
            "Device service",
            "Ascend driver",
            "CANN",
        ),
        *("Ascend's compiler", "torch_npu", "NVIDIA"),
    ]
    assert groups[0].splitlines() == [
        "Python",
        "  Python                     ok          3.11.4",
        "  numpy                      ok          1.26.4",
    ]
    assert groups[5].endswith("  ASCEND_RT_VISIBLE_DEVICES  wrong       '2', and 2 card(s)")


@pytest.mark.parametrize(
    ("machine", "required", "code"),
    [
        (PLAIN, [], 0),
        (PLAIN, ["service"], 0),
        (PLAIN, ["npu"], 1),
        (PLAIN, ["cuda"], 1),
        (PLAIN, ["cpu", "npu"], 1),
        (ASCEND, ["npu", "cpu", "service"], 0),
    ],
)
def test_the_exit_code_depends_on_the_requirements(run, machine, required, code):
    arguments = [word for each in required for word in ("--require", each)]
    found, printed, _ = run(machine, *arguments)
    assert found == code
    assert (code == 0) == printed.endswith("; no problems found.\n")


def test_json_report(run):
    code, printed, _ = run(with_variable(ASCEND, "ASCEND_RT_VISIBLE_DEVICES", "2"), "--json")
    shown = json.loads(printed)
    assert (code, shown["required"], shown["fit"]) == (0, ["cpu"], True)
    (finding,) = [each for each in shown["findings"] if each["what"].startswith("ASCEND_RT")]
    assert finding == {
        "group": "Ascend driver",
        "what": "ASCEND_RT_VISIBLE_DEVICES",
        "state": "wrong",
        "found": "'2', and 2 card(s)",
        "expected": "ascending numbers of this process's cards, counted from 0, without blanks",
        "cure": "remove 2: inside a container cards are numbered from 0",
        "needed_by": ["npu"],
        "stands_in_the_way": False,
    }


def test_long_findings_are_shortened_only_in_the_table(run):
    long = "/usr/local/Ascend/" + "deep/" * 12 + "lib64"
    machine = replace(ASCEND, acl_folders=(long,))
    assert f"{long[:57]}...\n" in run(machine)[1]
    assert long in run(machine, "--json")[1]


def test_commands_are_not_wrapped(run):
    stub = "/usr/local/Ascend/cann/runtime/lib64/stub"
    _, printed, _ = run(replace(ASCEND, acl_folders=(stub,)), "--require", "npu")
    (line,) = [line for line in printed.splitlines() if "export LD_LIBRARY_PATH=" in line]
    assert re.fullmatch(r" +`export LD_LIBRARY_PATH=\$\(.* -Fxv \S+ \| paste -sd:\)`", line)


def test_models_are_opened_and_their_shared_memory_is_checked(run, repository):
    config = ENCODER_CONFIG + "instance_group [ { count: 2 } ]\n"
    folder = repository(config + parameter("devices", "cpu, cpu"))
    needed = 2 * 2**20 + 4 * ENCODER_BYTES
    enough = replace(PLAIN, shared_memory=SharedMemory(2**26, needed))
    code, printed, _ = run(enough, folder)
    assert code == 0
    assert "\nModels\n  encoder         ok          onnxruntime, needs cpu\n" in printed
    short = replace(PLAIN, shared_memory=SharedMemory(2**26, needed - 1))
    code, printed, _ = run(short, folder)
    assert code == 1
    assert "\n  /dev/shm        wrong       2.0 MiB free of 64.0 MiB, 2.0 MiB needed\n" in printed


def test_output_of_libraries_during_inspection_is_ignored(run, repository, tmp_path, monkeypatch):
    """CANN prints logs with ASCEND_SLOG_PRINT_TO_STDOUT=1."""
    printing = "import atexit\nprint('[INFO] GE')\natexit.register(print, '[INFO] {}')\n"
    (tmp_path / "sitecustomize.py").write_text(printing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    code, printed, _ = run(PLAIN, repository(ENCODER_CONFIG))
    assert code == 0
    assert "\nModels\n  encoder         ok          onnxruntime, needs cpu\n" in printed
    config = tmp_path / "repository/encoder/config.pbtxt"
    config.write_text(ENCODER_CONFIG + parameter("devise", "cpu"))
    code, printed, _ = run(PLAIN, tmp_path / "repository")
    assert code == 1
    assert "\n  encoder         wrong       parameter 'devise': found no such parameter" in printed


def test_a_model_that_disagrees_with_its_graph_exits_with_1(run, repository):
    code, printed, _ = run(PLAIN, repository(ENCODER_CONFIG.replace("dims: [ 4 ]", "dims: [ 5 ]")))
    assert code == 1
    assert "output 'embedding': found FP32[*,4] in the graph, expected FP32[batch,5]" in printed


@pytest.mark.usefixtures("uninspected")
def test_a_torch_model_needs_torch(run, repository):
    folder = repository(ENCODER_CONFIG + parameter("engine", "torch"))
    code, printed, _ = run(PLAIN, folder)
    assert code == 1
    assert "\n  torch           missing     none\n" in printed
    assert "onnxruntime, needs torch; part of its memory is not planned\n" in printed
    assert "Required: torch;" in printed


def test_a_ge_session_model_needs_ge_py_and_workspace_pool_mib(run, repository):
    folder = repository(
        ENCODER_CONFIG + parameter("devices", "npu:0") + parameter("engine", "ge_session")
    )
    (folder / "encoder/1/model.onnx").rename(folder / "encoder/1/model.air")
    code, printed, _ = run(ASCEND, folder)
    assert code == 1
    assert re.search(r"\nGE-PY\n  ge +missing +none\n", printed)
    assert re.search(r"\n  encoder +wrong +parameter 'workspace_pool_mib': found none", printed)
    assert "Required: ge_session, npu; 2 problem(s), marked ! above." in printed


@pytest.mark.usefixtures("uninspected")
@pytest.mark.parametrize(
    ("parameters", "required"),
    [
        ({"devices": "npu:0"}, "npu"),
        ({"device_ids": "0,1"}, "npu"),
        ({"placement": "service"}, "cpu, service"),
        ({"device_ids": "0", "placement": "service"}, "npu, service"),
        ({"devices": "npu:0", "engine": "torch"}, "npu, torch_npu"),
    ],
)
def test_requirements_of_a_model(run, repository, parameters, required):
    config = ENCODER_CONFIG + "".join(parameter(key, text) for key, text in parameters.items())
    printed = run(PLAIN, repository(config))[1]
    assert f"\nRequired: {required}; " in printed
    assert ("; experimental: never" in printed) == ("torch_npu" in required)


@pytest.mark.usefixtures("uninspected")
def test_models_without_a_graph_are_ignored(run, repository):
    folder = repository(ENCODER_CONFIG)
    (folder / "pipeline").mkdir()
    (folder / "pipeline/config.pbtxt").write_text('platform: "ensemble"')
    assert "pipeline" not in run(PLAIN, folder)[1]


def test_a_folder_without_models_exits_with_2(run, tmp_path):
    expected = f"ge-runtime: {tmp_path}: found no model, expected folders with a config.pbtxt\n"
    assert run(PLAIN, tmp_path) == (2, "", expected)
    (tmp_path / "config.pbtxt").write_text("")
    code, _, err = run(PLAIN, tmp_path)
    assert code == 2
    assert err.endswith(f". This folder is a model; its repository is {tmp_path.parent}\n")


def test_an_unknown_requirement_exits_with_2(run, capsys):
    with pytest.raises(SystemExit) as exited:
        run(PLAIN, "--require", "tpu")
    assert exited.value.code == 2
    assert "choose from" in capsys.readouterr().err


def test_the_machine_of_the_tests_is_read(capsys, monkeypatch):
    # Imports in other processes have tests of their own.
    monkeypatch.setattr(machine_facts, "module_facts", lambda module: ChildResult(Outcome.ABSENT))
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().out.startswith("Python\n  Python ")
