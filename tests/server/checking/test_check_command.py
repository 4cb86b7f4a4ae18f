"""`reference-server check`: finds errors in a repository without loading a model."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from server.support.configs import ensemble, step
from server.support.model_folders import VECTOR

from reference_server.checking import command, here

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
        "m/config.pbtxt:3:40: error: model input 'x' dimension must be integer >= 1, or -1 to "
        "indicate a variable-size dimension for m",
        "m/config.pbtxt:4:1: error: model input 'y' must specify 'data_type' for m",
        "1 model, 6 errors, 0 warnings",
    ]


#: Repositories with one error, and the only line of a fault.
ALONE: Mapping[str, tuple[Mapping[str, str], str]] = {
    "a mistyped field": (
        {"m__1__model_py": MODEL, "m__config": "max_batchsize: 1"},
        r"m/config.pbtxt:1:1: error: .*\"max_batchsize\". Did you mean 'max_batch_size'\?",
    ),
    "bytes that are no code": (
        {"m__1__model_py": "\0", "m__config": VALID},
        r"m/1/model.py.*: error: .*null bytes.*",
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
            ("def initialize(self, a, *, b)", r"initialize\(\) missing 1 .*-only argument: 'b'"),
            ("def __init__(self, a, b)", r"__init__\(\) missing 2 .* arguments: 'a' and 'b'"),
            ("def auto_complete_config(self, c)", r"auto_complete_config\(\) missing 1 .*: 'c'"),
        )
    },
    "an artifact that is not there": (
        {"m__1__readme": "", "m__config": 'backend: "onnxruntime"'},
        r"m/config.pbtxt:1:1: error: model file not found: 'm/1/model.onnx'",
    ),
}


IMPORTS = "import triton_python_backend_utils as p\n"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n"
USES = MODEL.replace(
    "return []", "return p.get_input_tensor_by_name(requests[0], {}), p.Tensor({})"
)
BLS = USES.replace("return", "p.InferenceRequest(); return")


def cures(*texts: str) -> str:
    return f"(?s).*{'.*'.join(map(re.escape, texts))}.*"


#: Repositories by their fault: the exit code, and texts of the only line with a fault.
CURED: Mapping[str, tuple[Mapping[str, str], int, tuple[str, ...]]] = {
    "a backend": (
        {"m__1__model_py": MODEL, "m__config": 'backend: "pyhton"\n' + VECTOR},
        0,
        ("m/config.pbtxt:1:1: warning: unable", " - did you mean 'python'?"),
    ),
    "a platform": (
        {"m__1__model.onnx": "", "m__config": 'platform: "onnxruntime_onx"\n' + VECTOR},
        1,
        ("m/config.pbtxt:1:1: error: unexpected platform", " - did you mean 'onnxruntime_onnx'?"),
    ),
    "a step's model": (
        {
            "m__1__model_py": MODEL,
            "m__config": VALID,
            "e__1__readme": "",
            "e__config": ensemble(step("mm", {"X": "I"}, {"Y": "O"})),
        },
        1,
        ("e/config.pbtxt:4:30: error: ensemble e contains models", ": mm - did you mean 'm'?"),
    ),
    "no backend": (
        {"m__1__readme": "", "m__config": VECTOR},
        1,
        ("m/config.pbtxt: error: ", "Could not determine backend", ' - write `backend: "python"`'),
    ),
    **{
        f"a data type {name}": (
            {"m__1__model_py": MODEL, "m__config": VALID.replace("TYPE_FP32", name, 1)},
            1,
            ("m/config.pbtxt:3:", f"named {name}.", f" - did you mean '{meant}'?"),
        )
        for name, meant in (
            ("TYPE_FP3", "TYPE_FP32"),
            ("fp32", "TYPE_FP32"),
            ("STR", "TYPE_STRING"),
        )
    },
    "a kind of instances": (
        {"m__1__model_py": MODEL, "m__config": VALID + "instance_group { kind: CPU }"},
        1,
        ("has no value named CPU.", " - did you mean 'KIND_CPU'?"),
    ),
    "a class": (
        {"m__1__model_py": MODEL.replace("PythonModel", "Model"), "m__config": VALID},
        1,
        ("m/1/model.py:1: error: ", "rename the class 'TritonModel' to 'TritonPythonModel'"),
    ),
    "a parameter that is no message": (
        {"m__1__model_py": MODEL, "m__config": VALID + 'parameters {\n key: "x"\n value: "y"\n}'},
        1,
        ("m/config.pbtxt:7:9: error: ", ' - write `value { string_value: "y" }`'),
    ),
    "a message without its closing bracket": (
        {"m__1__model_py": MODEL, "m__config": VALID.replace("}", "", 1)},
        1,
        ("m/config.pbtxt:4:5: error: ", " - the message 'input' of line 3 is not closed"),
    ),
    "a byte order mark": (
        {"m__1__model_py": MODEL, "m__config": "\ufeff" + VALID},
        1,
        ("m/config.pbtxt:1:1: error: ", "byte order mark - save it as UTF-8 without the mark"),
    ),
    "a placeholder for a number": (
        {"m__1__model_py": MODEL, "m__config": VALID + "max_batch_size: ${size}"},
        1,
        ("m/config.pbtxt:5:17: error: ", " - ${size} is a placeholder of a template; fill it in"),
    ),
    "a placeholder in a string": (
        {
            "m__1__model_py": MODEL,
            "m__config": VALID + 'parameters { key: "x" value { string_value: "${folder}/x" } }',
        },
        0,
        ("m/config.pbtxt:5:31: warning: ", "found '${folder}/x' - ${folder} is a placeholder"),
    ),
    "a placeholder for a backend": (
        {"m__1__model_py": MODEL, "m__config": 'backend: "${backend}"\n' + VECTOR},
        0,
        ("m/config.pbtxt:1:1: warning: unable to find", " - ${backend} is a placeholder"),
    ),
    "a version folder with a letter": (
        {"m__v2__model_py": MODEL, "m__config": VALID},
        1,
        ("m/config.pbtxt: error: at least one version", "found the folder 'v2'; rename it to '2'"),
    ),
    "code in capitals": (
        {"m__1__Model_py": MODEL, "m__config": VALID},
        1,
        ("m/1/model.py: error: Python model file not found", "found 'Model.py'; rename it to"),
    ),
    "a graph of another name": (
        {"m__1__net.onnx": "graph", "m__config": 'backend: "onnxruntime"'},
        1,
        ("model file not found: 'm/1/model.onnx' - found 'net.onnx'; rename it to 'model.onnx'",),
    ),
    "a function that Triton's module lacks": (
        {"m__1__model_py": IMPORTS + MODEL.replace("[]", "p.get_input()"), "m__config": VALID},
        0,
        ("m/1/model.py:4:16: warning: AttributeError: module ", "has no attribute 'get_input'"),
    ),
    "a misspelt class of Triton's module": (
        {"m__1__model_py": IMPORTS + MODEL.replace("[]", "p.Loger"), "m__config": VALID},
        0,
        ("m/1/model.py:4:16: warning: AttributeError", " - did you mean 'Logger'?"),
    ),
    "a call without a value": (
        {"m__1__model_py": IMPORTS + MODEL.replace("[]", "[p.Tensor('Y')]"), "m__config": VALID},
        0,
        ("m/1/model.py:4:17: warning: TypeError: Tensor(): missing a required argument",),
    ),
    "execute that returns nothing": (
        {"m__1__model_py": MODEL.replace("return []", "pass"), "m__config": VALID},
        0,
        ("m/1/model.py:2: warning: Expected a list in the execute return", " - return a list"),
    ),
    "code beside its configuration": (
        {"m__model_py": MODEL, "m__config": VALID},
        1,
        ("found 'model.py' beside config.pbtxt; move it into the folder '1'",),
    ),
    "code in a folder of its version": (
        {"m__1__src__model_py": MODEL, "m__config": VALID},
        1,
        ("m/1/model.py: error: Python model file not found", " - found 'm/1/src/model.py'; move"),
    ),
    "a graph that is not downloaded": (
        {"m__1__model.onnx": LFS, "m__config": 'backend: "onnxruntime"'},
        1,
        ("m/1/model.onnx: error: ", "is a Git LFS pointer", " - run `git lfs pull`"),
    ),
    "a file of a model that is not downloaded": (
        {"m__1__model_py": MODEL, "m__1__graph.onnx": LFS, "m__config": VALID},
        0,
        ("m/1/graph.onnx: warning: ", "is a Git LFS pointer", " - run `git lfs pull`"),
    ),
    "an input that the configuration lacks": (
        {"m__1__model_py": USES.format("'x'", "'Y'"), "m__config": VALID},
        0,
        ("m/1/model.py:3:56: warning: the code uses the input 'x'", "lacks - declare the input"),
    ),
    "an output that the configuration lacks": (
        {"m__1__model_py": USES.format("'X'", "name='YY'"), "m__config": VALID},
        0,
        ("m/1/model.py:3:76: warning: the code uses the output 'YY'", " - did you mean 'Y'?"),
    ),
    "execute without self": (
        {"m__1__model_py": MODEL.replace("self, ", ""), "m__config": VALID},
        0,
        ("m/1/model.py:2: warning: TypeError: ", "execute() takes 1 positional argument but 2"),
    ),
    "a template beside no configuration": (
        {"m__1__model_py": MODEL, "m__config.pbtxt.template": VALID},
        0,
        ("m/config.pbtxt.template: warning: ", " - rename it to config.pbtxt"),
    ),
    "a configuration with a prefix": (
        {"m__1__model_py": MODEL, "m__my_config.pbtxt": VALID},
        0,
        ("m/my_config.pbtxt: warning: ", " - rename it to config.pbtxt"),
    ),
}


@pytest.mark.parametrize("case", CURED)
def test_a_fault_is_named_once_with_its_cure(capsys, tmp_path, case):
    files, code, texts = CURED[case]
    folder = repository(tmp_path, **files)
    found, lines = checked(capsys, folder)
    assert (found, len(lines)) == (code, 2), lines
    assert re.fullmatch(cures(*texts), lines[0]), lines[0]
    assert checked(capsys, folder, "--strict")[0] == 1


@pytest.mark.parametrize(
    "code",
    [
        USES.format("'X'", "'Y'"),
        USES.format("NAME", "f'{NAME}'"),
        BLS.format("'X'", "'of another model'"),
        COMPLETING.replace("[]", "p.Tensor('added', None)"),
    ],
)
def test_code_with_declared_or_unknown_names_has_no_faults(capsys, tmp_path, code):
    folder = repository(tmp_path, m__1__model_py=code, m__config=VALID)
    assert checked(capsys, folder, "--strict") == (0, ["1 model, 0 errors, 0 warnings"])


@pytest.mark.parametrize(
    ("link", "level", "text"),
    [
        ("m/1/model.py", "error", "Python model file not found"),
        ("m/config.pbtxt", "error", "dangling link: 'm/config.pbtxt' leads to 'nowhere'"),
        ("m/1/weights.bin", "warning", "dangling link: 'm/1/weights.bin' leads to 'nowhere'"),
        ("n", "warning", "dangling link: 'n' leads to 'nowhere'"),
    ],
)
def test_a_dangling_link_is_reported_once(capsys, tmp_path, link, level, text):
    folder = repository(tmp_path, m__1__model_py=COMPLETING, m__config=VALID)
    (folder / link).unlink(missing_ok=True)
    (folder / link).symlink_to("nowhere")
    code, lines = checked(capsys, folder)
    assert (code, len(lines)) == (int(level == "error"), 2)
    assert lines[0].startswith(f"{link}: {level}: {text}")
    assert "leads to 'nowhere', which does not exist" in lines[0]


def test_several_syntax_errors_hide_nothing(capsys, tmp_path):
    config = (
        'nome: "m"\nbackend: "python"\nmax_batchsize: 8\n'
        'input [ { name: "X" data_type: FP32 dims: 0 } ]\n' + VECTOR.splitlines()[2]
    )
    folder = repository(tmp_path, m__1__model_py="(", m__config=config, n__config="x")
    code, lines = checked(capsys, folder)
    assert code == 1
    assert [line.partition(": error: ")[0] for line in lines[:-1]] == [
        "m/config.pbtxt:1:1",
        "m/config.pbtxt:3:1",
        "m/config.pbtxt:4:32",
        "m/1/model.py:1:1",
        "m/config.pbtxt:4:43",
        "n/config.pbtxt:1:1",
    ]


def test_only_groups_that_stay_on_the_gpu_are_reported(capsys, tmp_path):
    group = "\ninstance_group { kind: KIND_GPU }"
    folder = repository(
        tmp_path,
        **{"m__1__model_py": MODEL, "m__config": VALID + group, "n__1__model.onnx": "graph"},
        n__config='backend: "onnxruntime"' + group,
        without_versions__config='backend: "onnxruntime"' + group,
    )
    code, lines = checked(capsys, folder)
    assert (code, len(lines)) == (1, 3)
    assert lines[0].startswith("m/config.pbtxt:6:18: warning: instance group m_0")
    assert "available - write `kind: KIND_CPU`" in lines[0]
    assert lines[1].startswith("without_versions/config.pbtxt: error: at least one version")


@pytest.mark.parametrize(
    ("files", "given", "root"),
    [
        ({"a__models__m__config": VALID}, "", "a/models"),
        ({"models__m__config": VALID, "models__m__1__model_py": MODEL}, "models/m", "models"),
        ({"models__m__config": VALID, "models__m__1__model_py": MODEL}, "models/m/1", "models"),
        ({"docs__readme": ""}, "", None),
        ({"readme": ""}, "", None),
    ],
)
def test_a_folder_without_models_exits_with_2(capsys, tmp_path, files, given, root):
    folder = repository(tmp_path, **files)
    with pytest.raises(SystemExit) as ended:
        command.main([str(folder / given)])
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert "found no models; expected a folder with one folder for each model" in text
    assert (f" - did you mean '{folder / root}'?" in text) if root else "did you" not in text


@pytest.mark.parametrize("case", ALONE)
def test_a_fault_is_reported(capsys, tmp_path, case):
    files, expected = ALONE[case]
    code, lines = checked(capsys, repository(tmp_path, **files))
    assert (code, lines[1:]) == (1, ["1 model, 1 error, 0 warnings"])
    assert re.fullmatch(expected, lines[0]), lines[0]


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


def test_annotations_and_sarif_escape_names_and_texts(capsys, monkeypatch, tmp_path):
    folder = repository(tmp_path, m__config="backend: 'python' x", m__1__model_py=MODEL)
    (folder / "m").rename(folder / "a,b:100%")
    monkeypatch.chdir(folder)
    assert command.main([".", "--format=text"]) == 1
    where, _, text = capsys.readouterr().out.splitlines()[0].partition(": error: ")
    assert where.startswith("a,b:100%/config.pbtxt:1:")
    assert command.main([".", "--format=github"]) == 1
    annotation, *others = capsys.readouterr().out.splitlines()
    column = where.rpartition(":")[2]
    assert annotation == (
        f"::error file=a%2Cb%3A100%25/config.pbtxt,line=1,col={column}::{text.replace('%', '%25')}"
    )
    assert all(other.startswith("::") for other in others)
    assert command.main([".", "--format=sarif"]) == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "a%2Cb%3A100%25/config.pbtxt"


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
        IMPORTS + "def f():\n    if hasattr(p, 'newer'): p.newer()\n",
        IMPORTS + "def f(a):\n    p.own = p.Tensor(*a), p.Tensor(**a)\n    return p.own()\n",
    ],
)
def test_names_that_are_read_later_are_not_reported(capsys, tmp_path, source):
    folder = repository(tmp_path, m__1__model_py=source + MODEL, m__config=VALID)
    assert checked(capsys, folder) == (0, ["1 model, 0 errors, 0 warnings"])


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        (IMPORTS + "if p.np:\n    x = p.Tensor\n" + MODEL, 3, "import-names"),
        (IMPORTS + "try:\n    x = p.Tensor\nexcept Exception: pass\n" + MODEL, 3, "import-names"),
        ("class TritonPythonModel: pass\n", 1, "does not implement `execute`"),
        (MODEL + "    def f(self, t): t.triton_dtype()\n", 4, "triton-dtype"),
        (
            IMPORTS + MODEL + "    @staticmethod\n    def auto_complete_config(c):\n"
            "        p.load_model('m')\n        return c\n",
            7,
            "completion-calls",
        ),
        (
            IMPORTS + MODEL + "    def initialize(self, args): p.load_model('m')\n",
            5,
            "load-threads",
        ),
        (MODEL + "    def f(self): print(f'\u4e00 {self}')\n", 4, "stdout-encoding"),
    ],
)
def test_what_may_not_work_on_tritonserver_is_a_warning(capsys, tmp_path, source, line, text):
    folder = repository(tmp_path, m__1__model_py=source, m__config=VALID)
    code, lines = checked(capsys, folder)
    assert code == 0
    assert lines[0].startswith(f"m/1/model.py:{line}: warning: ")
    assert text in lines[0]


READS = "    def initialize(self, args):\n        {}\n"


@pytest.mark.parametrize(
    ("call", "is_fault"),
    [
        ("open('labels.txt')", True),
        ("open(args['model_repository'] + '/labels.txt', 'r')", True),
        ("Path('labels.txt').read_text()", True),
        ("open('labels.txt', encoding='utf-8')", False),
        ("open('labels.txt', 'rb')", False),
        ("open('labels.txt', args['mode'])", False),
        ("open('plain.txt')", False),
        ("Path('labels.txt').read_text('utf-8')", False),
    ],
)
def test_a_file_beyond_ascii_needs_an_encoding(capsys, tmp_path, call, is_fault):
    folder = repository(tmp_path, m__1__model_py=MODEL + READS.format(call), m__config=VALID)
    (folder / "m" / "labels.txt").write_text("\u4e00\n", encoding="utf-8")
    (folder / "m" / "1" / "plain.txt").write_text("plain\n")
    code, lines = checked(capsys, folder)
    assert code == 0
    found = [line for line in lines if "(ascii-files): labels.txt" in line]
    assert [line.startswith("m/1/model.py:5: warning: ") for line in found] == [True] * is_fault


def package(folder):
    """Write a package with a name and a module."""
    folder.mkdir()
    (folder / "__init__.py").write_text("name = 1\n")
    (folder / "part.py").touch()
    (folder.parent / "data").mkdir()
    (folder.parent / "json.py").write_text("unknown")  # the standard library's module is meant


HELPER = "def __getattr__(name): return 1\n"
COMPLETES = "    @staticmethod\n    def auto_complete_config(c):\n        {}\n"


@pytest.mark.parametrize(
    "source",
    [
        "x = [y for y in range(3) if y]\nz = {y: z for y, z in {}.items()}\n" + MODEL,
        "if (n := 3) and n: m = n\nn += m\n" + MODEL,
        "with open(__file__) as f: text = f.read()\nprint(text)\n" + MODEL,
        "for i in range(3): j = i\nprint(i, j)\n" + MODEL,
        "while False: pass\nmatch 1:\n    case x: print(x)\n" + MODEL,
        "def f():\n    global g\n    g = 1\nf()\nprint(g)\n" + MODEL,
        "try: unicode\nexcept NameError as error: print(error)\n" + MODEL,
        "try: raise ValueError\nexcept ValueError: pass\n" + MODEL,
        "from os.path import *\nprint(join)\n" + MODEL,
        "globals()['x'] = 1\nprint(x)\n" + MODEL,
        "f = lambda: unknown\n" + MODEL,
        "from __future__ import annotations\nx: unknown\ndef f(a: unknown): pass\n" + MODEL,
        "g = (unknown for x in [])\nh = True or unknown\ni = 1 if True else unknown\n" + MODEL,
        "if __name__ == '__main__': unknown\n" + MODEL,
        "import contextlib\nwith contextlib.suppress(NameError): unknown\n" + MODEL,
        "x = [unknown for y in []]\n" + MODEL,
        "import json\nif not json: del json\nprint(json)\n" + MODEL,
        "from . import data\n" + MODEL,
        "class T(type): pass\n"
        + MODEL.replace(":", "(metaclass=T):", 1)
        + "    def initialize(self): pass\n",
        "import json.decoder\nprint(json.decoder)\n" + MODEL,
        "from .helper import anything\n" + MODEL,
        "import helper\nfrom helper import anything\n" + MODEL,
        "from . import package\nfrom .package import part, name\n" + MODEL,
        "from .helper import TritonPythonModel\n",
        "if True:\n    from .helper import TritonPythonModel\n",
        "import abc\n" + MODEL.replace(":", "(abc.ABC):", 1),
        MODEL
        + "    def initialize(self, args):\n        if args: return\n        raise ValueError\n",
        MODEL + COMPLETES.format("return c if c else None"),
        MODEL + "    initialize = print\n    initialize = 5\n    def initialize(self, a): pass\n",
    ],
)
def test_code_that_can_be_imported_has_no_faults(capsys, tmp_path, source):
    folder = repository(tmp_path, m__1__model_py=source, m__config=VALID, m__1__helper_py=HELPER)
    package(folder / "m" / "1" / "package")
    assert checked(capsys, folder) == (0, ["1 model, 0 errors, 0 warnings"])


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("x = 1\ndel x\nprint(x)\n" + MODEL, 3, "NameError: name 'x'"),
        ("x += 1\n" + MODEL, 1, "NameError: name 'x'"),
        ("print(unknown)\nprint(unknown)\n" + MODEL, 1, "NameError: name 'unknown'"),
        ("x: int\nprint(x)\n" + MODEL, 2, "NameError: name 'x'"),
        ("print([x for x in unknown])\n" + MODEL, 1, "NameError: name 'unknown'"),
        ("f = lambda x=unknown: x\n" + MODEL, 1, "NameError: name 'unknown'"),
        ("try: pass\nfinally: unknown\n" + MODEL, 2, "NameError: name 'unknown'"),
        ("if False: pass\nelse: unknown\n" + MODEL, 2, "NameError: name 'unknown'"),
        ("class A:\n    x = 1\nprint(x)\n" + MODEL, 3, "NameError: name 'x'"),
        ("from .gone import x\n" + MODEL, 1, "ModuleNotFoundError: No module named '1.gone'"),
        ("from .package import gone\n" + MODEL, 1, "cannot import name 'gone' from '1.package'"),
        (MODEL + COMPLETES.replace("def", "async def").format("return c"), 5, "pb.ModelConfig"),
        (MODEL + COMPLETES.format("return {'a': 1}"), 5, "pb.ModelConfig"),
        (MODEL + COMPLETES.format("def f(): return c\n        f()"), 5, "pb.ModelConfig"),
        ("class B: pass\n" + MODEL.replace(":", "(B):", 1) + "    def initialize(self): pass\n",
         5, "initialize() takes 1 positional argument"),
    ],
)  # fmt: skip
def test_code_that_cannot_be_imported_has_a_fault(capsys, tmp_path, source, line, text):
    folder = repository(tmp_path, m__1__model_py=source, m__config=VALID)
    package(folder / "m" / "1" / "package")
    code, lines = checked(capsys, folder)
    assert (code, len(lines)) == (1, 2)
    assert lines[0].startswith(f"m/1/model.py:{line}: error: ")
    assert text in lines[0]


@pytest.mark.parametrize(
    ("source", "level"),
    [("import helper\n", "error"), ("try: import helper\nexcept NameError: pass\n", "warning")],
)
def test_the_fault_of_an_imported_module_is_reported_in_its_file(capsys, tmp_path, source, level):
    folder = repository(tmp_path, m__1__model_py=source + MODEL, m__config=VALID)
    repository(folder, m__helper_py="import other\nx = y\n", m__1__other_py="import helper\n")
    code, lines = checked(capsys, folder)
    assert code == (level == "error")
    assert lines[0] == f"m/helper.py:2: {level}: NameError: name 'y' is not defined"


# --------------------------------------------------------------------------------------- --here

ONNX = 'backend: "onnxruntime"\n' + VECTOR
EXTERNAL = "\x08\x08\x0a\x08location\x12\x06w.data"


def loading(statement: str) -> str:
    """Return the code of a model whose `initialize` runs a statement."""
    return MODEL + f"    def initialize(self, args):\n        {statement}\n"


#: Folders that load elsewhere, with the position and the text of the fault, and its cure.
NOT_HERE: dict[str, tuple[dict[str, str], str, str, str]] = {
    "a missing package": (
        {"m__1__model_py": "import no_such\n" + MODEL, "m__config": VALID},
        "m/1/model.py:1:1", "No module named 'no_such'", "pip install no-such",
    ),
    "a missing package of another name": (
        {"m__1__model_py": loading("import no_such.part"), "m__config": VALID},
        "m/1/model.py:5:9", "No module named 'no_such'", "pip install no-such",
    ),
    "a missing package of the model's own module": (
        {"m__1__model_py": "import own\n" + MODEL, "m__1__own_py": "import no_such\n",
         "m__config": VALID},
        "m/1/own.py:1:1", "No module named 'no_such'", "pip install no-such",
    ),
    "a missing part of a package": (
        {"m__1__model_py": "import pkg.b\n" + MODEL, "m__1__pkg__a_py": "", "m__config": VALID},
        "m/1/model.py:1:1", "No module named 'pkg'", "pip install pkg",
    ),
    "a GPU group": (
        {"m__1__model_py": MODEL, "m__config": VALID + "instance_group { kind: KIND_GPU }"},
        "m/config.pbtxt:5:18", "no GPUs are available", "write `kind: KIND_CPU`",
    ),
    "a GPU in the code": (
        {"m__1__model_py": loading("self.net = args.to('cuda:0')"), "m__config": VALID},
        "m/1/model.py:5:20", "needs a GPU", "choose the device by",
    ),
    "a backend that is not here": (
        {"m__1__model.dali": "x", "m__config": 'backend: "dali"\n' + VECTOR},
        "m/config.pbtxt:1:1", "unable to find backend library for backend 'dali'", "--stub-model=",
    ),
    "a pointer of Git LFS": (
        {"m__1__model.onnx": LFS, "m__config": ONNX},
        "m/1/model.onnx", "is a Git LFS pointer", "run `git lfs pull`",
    ),
    "a pointer that the code reads": (
        {"m__1__model_py": MODEL, "m__1__vocab": LFS, "m__config": VALID},
        "m/1/vocab", "is a Git LFS pointer", "run `git lfs pull`",
    ),
    "no ONNX graph": (
        {"m__1__model.onnx": "<html>", "m__config": ONNX},
        "m/1/model.onnx", "is not an ONNX graph", "export it again",
    ),
    "external weights": (
        {"m__1__model.onnx": EXTERNAL, "m__config": ONNX},
        "m/1/model.onnx", "needs its weights in 'w.data'", "copy that file beside it",
    ),
    "no TorchScript": (
        {"m__1__model.pt": "PK", "m__config": 'backend: "pytorch"\n' + VECTOR},
        "m/1/model.pt", "is not TorchScript", "save it by `torch.jit.save`",
    ),
    "no weights of OpenVINO": (
        {"m__1__model.xml": "<net/>", "m__config": 'backend: "openvino"\n' + VECTOR},
        "m/1/model.xml", "needs its weights in 'model.bin'", "copy that file beside it",
    ),
    "a placeholder": (
        {"m__1__model_py": MODEL,
         "m__config": VALID + 'parameters { key: "a" value { string_value: "${b}" } }'},
        "m/config.pbtxt:5:31", "found '${b}'", "fill it in",
    ),
    "an absolute path in a parameter": (
        {"m__1__model_py": MODEL,
         "m__config": VALID + 'parameters { key: "a" value { string_value: "/no/such/dir" } }'},
        "m/config.pbtxt:5:31", "'/no/such/dir' does not exist", "change the path",
    ),
    "an absolute path in the code": (
        {"m__1__model_py": loading("open('/no/such/file.txt')"), "m__config": VALID},
        "m/1/model.py:5:14", "'/no/such/file.txt' does not exist", "put the file into",
    ),
    "a relative path": (
        {"m__1__model_py": loading("open('data/no_such.txt')"), "m__config": VALID},
        "m/1/model.py:5:14", "does not exist in the working directory", "join it with the folder",
    ),
    "a model of a hub": (
        {"m__1__model_py": loading("args.from_pretrained('no/such-model')"), "m__config": VALID},
        "m/1/model.py:5:30", "is loaded from a model hub", "huggingface-cli download no/such-model",
    ),
    "an environment elsewhere": (
        {"m__1__model_py": MODEL, "m__config": VALID
         + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/no/env" } }'},
        "m/config.pbtxt:5:1", "Failed to get the canonical path for /no/env", "",
    ),
}  # fmt: skip


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(here, "has_gpu", lambda: False)


@pytest.mark.parametrize("case", NOT_HERE)
def test_what_this_machine_lacks_is_an_error_only_if_asked_for(capsys, tmp_path, no_gpu, case):
    files, where, text, cure = NOT_HERE[case]
    folder = repository(tmp_path, **files)
    code, lines = checked(capsys, folder, "--here")
    assert code == 1
    (line,) = (line for line in lines if text in line)
    assert line.startswith(f"{where}: error: ")
    assert cure in line.partition(text)[2]
    code, _ = checked(capsys, folder)
    assert code == (case == "a pointer of Git LFS")


@pytest.mark.parametrize(
    "statement",
    [
        "import os.path, xml.etree.ElementTree",
        "import triton_python_backend_utils, c_python_backend_utils",
        "from google.protobuf import message",
        "import numpy.linalg",
        "import own.part",
        "args.to('cuda' if args.is_available() else 'cpu')",
        "open(__file__); open('/proc/self/maps')",
        "self.url = '/v2/health/ready'.strip('/')",
        "args.get('no/such')",
    ],
)
def test_code_that_runs_here_has_no_errors(capsys, tmp_path, no_gpu, statement):
    guarded = "try:\n    import no_such\nexcept ImportError:\n    no_such = None\n"
    folder = repository(
        tmp_path,
        m__1__model_py=guarded + loading(statement),
        m__1__own__part_py="",
        m__config=VALID,
    )
    assert checked(capsys, folder, "--here") == (0, ["1 model, 0 errors, 0 warnings"])


def test_weights_larger_than_the_free_memory_are_an_error(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(here, "free_bytes", lambda: 1 << 20)
    folder = repository(tmp_path, m__1__model_py=MODEL, m__config=VALID, **{"m__1__w.onnx": ""})
    with (folder / "m/1/w.onnx").open("r+b") as file:
        file.truncate((1 << 20) + 1)
    code, lines = checked(capsys, folder, "--here")
    assert code == 1
    assert "m/config.pbtxt: error: 1 instance(s) need 1 MiB" in lines[0]


def test_a_stub_takes_the_place_of_what_is_missing(capsys, tmp_path):
    folder = repository(
        tmp_path, **{"m__1__model.plan": LFS}, m__config='platform: "tensorrt_plan"\n' + VECTOR
    )
    summary = ["1 model, 0 errors, 0 warnings"]
    assert checked(capsys, folder, "--here", "--stub-model=m=json:loads") == (0, summary)
    code, lines = checked(capsys, folder, "--here", "--stub-model=m=no_such:answer")
    assert code == 1
    assert "--stub-model: no module 'no_such'" in lines[0]


def test_the_example_models_run_here(capsys):
    examples = Path(__file__).parents[3] / "examples" / "models"
    assert checked(capsys, examples, "--here") == (0, ["4 models, 0 errors, 0 warnings"])


def test_the_projects_own_models_have_no_faults(capsys):
    root = Path(__file__).parents[3]
    code, lines = checked(capsys, root / "model_repository")
    assert (code, len(lines)) == (0, 1)
