"""`reference-server check`: finds errors in a repository without loading a model."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from server.support.configs import ensemble, step
from server.support.model_folders import VECTOR

from reference_server.checking import command

MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
COMPLETING = (
    MODEL + "    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
)
#: A model of one input and one output, `X` and `Y`.
VALID = 'backend: "python"\n' + VECTOR


def repository(folder: Path, **files: str) -> Path:
    """Write files by path, with `__` for each `/` and `_py` for `.py`."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_txt", ".txt")
        path = path.with_name("config.pbtxt") if path.name == "config" else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def checked(
    capsys: pytest.CaptureFixture[str], folder: Path, *options: str
) -> tuple[int, list[str]]:
    """Return the exit code, and the printed lines without the folder's path."""
    code = command.main([str(folder), *options])
    return code, capsys.readouterr().out.replace(f"{folder}/", "").splitlines()


def test_a_repository_that_loads_has_no_faults(capsys, tmp_path):
    folder = repository(tmp_path, m__1__model_py=MODEL, m__config=VALID)
    assert checked(capsys, folder) == (0, ["1 model, 0 errors, 0 warnings"])


def test_the_projects_own_models_have_no_faults(capsys):
    root = Path(__file__).parents[3]
    code, lines = checked(capsys, root / "model_repository")
    assert (code, len(lines)) == (0, 1)


def test_all_faults_of_a_model_are_reported_with_their_lines(capsys, tmp_path):
    config = (
        'backend: "python"\n'
        "max_batch_size: -1\n"
        'input { name: "x" data_type: TYPE_FP32 dims: 0 }\n'
        'input { name: "y" dims: 4 }\n'
        "dynamic_batching { preferred_batch_size: [ 4, -2 ] }\n"
    )
    folder = repository(tmp_path, m__1__model_py="class TritonPythonModel\n", m__config=config)
    code, lines = checked(capsys, folder)
    assert code == 1
    assert lines == [
        "m/1/model.py:1:24: error: SyntaxError: expected ':'",
        "m/config.pbtxt:2:1: error: 'max_batch_size' must be non-negative value for m",
        "m/config.pbtxt:5:44: error: dynamic batching preferred size must be <= max batch size "
        "for m",
        "m/config.pbtxt:5:47: error: dynamic batching preferred size must be positive for m",
        "m/config.pbtxt:3:41: error: model input 'x' dimension must be integer >= 1, or -1 to "
        "indicate a variable-size dimension for m",
        "m/config.pbtxt:4:1: error: model input 'y' must specify 'data_type' for m",
        "1 model, 6 errors, 0 warnings",
    ]


def warm_input(
    datatype: str = "TYPE_FP32", dims: str = "4", name: str = "X", batch: str = "1"
) -> str:
    """Return the fields of a warm-up sample of zeros."""
    return (
        f'batch_size: {batch} inputs {{ key: "{name}" value {{ data_type: {datatype} '
        f"dims: {dims} zero_data: true }} }}"
    )


ALONE: Mapping[str, tuple[Mapping[str, str], str]] = {
    "a mistyped field": (
        {"m__1__model_py": MODEL, "m__config": "max_batchsize: 1"},
        r"m/config.pbtxt:1:1: error: .*\"max_batchsize\". Did you mean 'max_batch_size'\?",
    ),
    "another name than its folder's": (
        {"m__1__model_py": MODEL, "m__config": VALID + '\nname: "other"'},
        r"m/config.pbtxt:\d+:\d+: error: unexpected directory name 'm' for model 'other', .*",
    ),
    "no version": (
        {"m__readme": "", "m__config": VALID},
        r"m/config.pbtxt: error: at least one version must be available .* of model 'm' - create the folder '1' \(Git .*",
    ),
    "no code": (
        {"m__1__other_py": MODEL, "m__config": VALID},
        r"m/1/model.py: error: Python model file not found in .*",
    ),
    "code without the class": (
        {"m__1__model_py": "class Model: pass", "m__config": VALID},
        r"m/1/model.py:1: error: module 'model' has no attribute 'TritonPythonModel' - rename "
        "the class 'Model' to 'TritonPythonModel'",
    ),
    "bytes that are no code": (
        {"m__1__model_py": "\0", "m__config": VALID},
        r"m/1/model.py.*: error: .*null bytes.*",
    ),
    "no file of labels": (
        {
            "m__1__model_py": MODEL,
            "m__config": VALID.replace("output {", 'output { label_filename: "labels.txt"'),
        },
        r"m/config.pbtxt:\d+:\d+: error: failed to open text file for read .*labels.txt: .*",
    ),
    "a file of labels elsewhere": (
        {
            "m__1__model_py": MODEL,
            "m__config": VALID.replace("output {", 'output { label_filename: "../labels.txt"'),
        },
        r"m/config.pbtxt:\d+:\d+: error: label file path .* is outside model directory",
    ),
    "no data for a warm-up": (
        {
            "m__1__model_py": MODEL,
            "m__config": VALID + '\nmodel_warmup { name: "w" batch_size: 1 inputs { key: "X" value '
            '{ data_type: TYPE_FP32 dims: 4 input_data_file: "raw" } } }',
        },
        r"m/config.pbtxt:\d+:\d+: error: failed to open text file for read .*warmup/raw: .*",
    ),
    **{
        f"a warm-up {what}": (
            {
                "m__1__model_py": MODEL,
                "m__warmup__text": "ab",
                "m__config": VALID + '\nmodel_warmup { name: "w" ' + sample + " }",
            },
            rf"m/config.pbtxt:\d+:\d+: error: .*{text}.*",
        )
        for what, sample, text in (
            ("of another type", warm_input("TYPE_INT32"), "data-type"),
            ("of other dims", warm_input(dims="[ 5, 5 ]"), "unexpected shape"),
            ("of an unknown input", warm_input(name="W"), "expected 1 inputs but got 0"),
            ("without inputs", "batch_size: 1", "expected 1 inputs but got 0"),
            ("with too large batches", warm_input(batch="2"), "max allowed is 0"),
        )
    },
    "a warm-up of strings without their lengths": (
        {
            "m__1__model_py": MODEL,
            "m__warmup__text": "ab",
            "m__config": VALID.replace("TYPE_FP32", "TYPE_STRING", 1)
            + '\nmodel_warmup { name: "w" batch_size: 1 inputs { key: "X" value '
            '{ data_type: TYPE_STRING dims: 1 input_data_file: "text" } } }',
        },
        r"m/config.pbtxt:\d+:\d+: error: .*incomplete string length indicator .*",
    ),
    **{
        f"a method: {line}": (
            {"m__1__model_py": f"{MODEL}    {line}: pass\n", "m__config": VALID},
            rf"m/1/model.py:4: error: TypeError: TritonPythonModel\.{text}",
        )
        for line, text in (
            (
                "def initialize(self)",
                r"initialize\(\) takes 1 positional argument but 2 were given",
            ),
            ("def initialize(self, a, b)", r"initialize\(\) missing 1 .* argument: 'b'"),
            ("def initialize(self, a, *, b)", r"initialize\(\) missing 1 .*-only argument: 'b'"),
            ("def __init__(self, a, b)", r"__init__\(\) missing 2 .* arguments: 'a' and 'b'"),
            ("def auto_complete_config(self, c)", r"auto_complete_config\(\) missing 1 .*: 'c'"),
        )
    },
    "a step that is not there": (
        {"m__1__readme": "", "m__config": ensemble(step("nowhere", {"X": "I"}, {"Y": "O"}))},
        r"m/config.pbtxt:\d+:\d+: error: ensemble m contains models that are not available or "
        r"ambiguous: nowhere",
    ),
    "an artifact that is not there": (
        {"m__1__readme": "", "m__config": 'backend: "onnxruntime"'},
        r"m/config.pbtxt: error: model file not found: 'm/1/model.onnx'",
    ),
}


@pytest.mark.parametrize("case", ALONE)
def test_a_fault_is_reported(capsys, tmp_path, case):
    files, expected = ALONE[case]
    code, lines = checked(capsys, repository(tmp_path, **files))
    assert (code, lines[1:]) == (1, ["1 model, 1 error, 0 warnings"])
    assert re.fullmatch(expected, lines[0]), lines[0]


def test_ensembles_are_checked_against_the_models_of_their_steps(capsys, tmp_path):
    folder = repository(
        tmp_path,
        m__1__model_py=MODEL,
        m__config=VALID,
        fits__1__readme="",
        fits__config=ensemble(step("m", {"X": "I"}, {"Y": "O"})),
        typo__1__readme="",
        typo__config=ensemble(step("m", {"nope": "I"}, {"Y": "O"})),
        later__1__readme="",
        later__config=ensemble(step("m", {"X": "I"}, {"Y": "O"}, version=3)),
    )
    code, lines = checked(capsys, folder)
    assert code == 1
    assert [line.partition(": error: ")[2] for line in lines[:-1]] == [
        "ensemble 'later' depends on 'm' whose required version 3 is not loaded.",
        "in ensemble typo, ensemble tensor I is mapping to non-existing input nope in model m",
    ]


def test_an_ensemble_of_models_that_complete_themselves_is_not_checked(capsys, tmp_path):
    folder = repository(
        tmp_path,
        m__1__model_py=COMPLETING,
        m__config='backend: "python"',
        e__1__readme="",
        e__config=ensemble(step("m", {"X": "I"}, {"Y": "O"})),
    )
    assert checked(capsys, folder) == (0, ["2 models, 0 errors, 0 warnings"])


def test_faults_that_a_load_or_another_machine_may_fix_are_warnings(capsys, tmp_path):
    folder = repository(
        tmp_path,
        m__1__model_py=COMPLETING,
        m__config='backend: "python"\ninput { name: "x" }\ninstance_group { kind: KIND_GPU }\n',
        plan__1__readme="",
        plan__config='platform: "tensorrt_plan"',
    )
    code, lines = checked(capsys, folder)
    assert code == 0
    assert lines[-1] == "2 models, 0 errors, 4 warnings"
    assert all(": warning: " in line for line in lines[:-1])


def test_a_model_of_two_repositories_is_reported(capsys, tmp_path):
    for name in "ab":
        repository(tmp_path / name, m__1__model_py=MODEL, m__config=VALID)
    code = command.main([str(tmp_path / "a"), str(tmp_path / "b")])
    assert code == 1
    assert "model appears in two or more repositories" in capsys.readouterr().out


def test_json_and_sarif_have_the_same_faults(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    repository(tmp_path, m__1__model_py=MODEL, m__config="max_batch_size: -1\n")
    assert command.main([".", "--format=json"]) == 1
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    text = "'max_batch_size' must be non-negative value for m"
    assert fault == {
        "level": "error",
        "model": "m",
        "file": "m/config.pbtxt",
        "line": 1,
        "column": 1,
        "message": text,
        "hint": "",
    }
    assert command.main([".", "--format=sarif"]) == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    (result,) = run["results"]
    assert (result["level"], result["message"]["text"]) == ("error", text)
    assert result["ruleId"] in [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "m/config.pbtxt"},
        "region": {"startLine": 1, "startColumn": 1},
    }


def test_the_rules_of_an_older_triton_can_be_chosen(capsys, tmp_path):
    newer = VALID + "\nmodel_metrics { }"
    folder = repository(tmp_path, m__1__model_py=MODEL, m__config=newer)
    assert checked(capsys, folder)[0] == 0
    assert checked(capsys, folder, "--triton-version=2.51")[0] == 1


def test_a_missing_folder_exits_with_2(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        command.main([str(tmp_path / "nowhere")])
    assert ended.value.code == 2
    assert "failed to stat file" in capsys.readouterr().err


IMPORTS = "import triton_python_backend_utils as p\n"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("from triton_python_backend_utils import Tensor\n" + MODEL, 1),
        (IMPORTS + "x = [p.Logger]\n" + MODEL, 2),
        (IMPORTS + "def f(x=p.Tensor): pass\n" + MODEL, 2),
        (IMPORTS + "def f() -> p.Tensor: pass\n" + MODEL, 2),
        (IMPORTS + "@p.Tensor\nasync def f(): pass\n" + MODEL, 2),
        (IMPORTS + "f = lambda x=p.Tensor: x\n" + MODEL, 2),
        (IMPORTS + "x: p.Tensor\n" + MODEL, 2),
        (IMPORTS + "class E(p.TritonModelException): pass\n" + MODEL, 2),
        (IMPORTS + MODEL + "    log = p.Logger\n", 5),
    ],
)
def test_a_name_that_is_read_too_early_is_reported(capsys, tmp_path, source, line):
    folder = repository(tmp_path, m__1__model_py=source, m__config=VALID)
    code, lines = checked(capsys, folder)
    assert code == 1
    assert lines[0].startswith(f"m/1/model.py:{line}: error: ")
    assert "(import-names)" in lines[0]


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations\n"
        + IMPORTS
        + "x: p.Tensor\ndef f() -> p.Tensor: pass\n",
        IMPORTS + "def f():\n    x: p.Tensor = p.Tensor\ng = lambda: p.Tensor\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from triton_python_backend_utils import Tensor\n",
        IMPORTS + "x = p.ModelConfig, p.np\n",
        IMPORTS + "def f(x: 'p.Tensor'): pass\n",
    ],
)
def test_names_that_are_read_later_are_not_reported(capsys, tmp_path, source):
    folder = repository(tmp_path, m__1__model_py=source + MODEL, m__config=VALID)
    assert checked(capsys, folder) == (0, ["1 model, 0 errors, 0 warnings"])


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        (IMPORTS + "if f():\n    x = p.Tensor\n" + MODEL, 3, "import-names"),
        (IMPORTS + "try:\n    x = p.Tensor\nexcept E: pass\n" + MODEL, 3, "import-names"),
        ("class TritonPythonModel: pass\n", 1, "does not implement `execute`"),
        (MODEL + "    def f(self, t): t.triton_dtype()\n", 4, "triton-dtype"),
        (
            IMPORTS + MODEL + "    @staticmethod\n    def auto_complete_config(c):\n"
            "        p.load_model('m')\n        return c\n",
            7,
            "completion-calls",
        ),
    ],
)
def test_what_may_not_work_on_tritonserver_is_a_warning(capsys, tmp_path, source, line, text):
    folder = repository(tmp_path, m__1__model_py=source, m__config=VALID)
    code, lines = checked(capsys, folder)
    assert code == 0
    assert lines[0].startswith(f"m/1/model.py:{line}: warning: ")
    assert text in lines[0]
