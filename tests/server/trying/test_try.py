"""`reference-server try`: a first answer from somebody else's models, without changing them."""

import argparse
import io
import json
import re
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from server.support.configs import ensemble, step

from reference_server.testing import open_repository
from reference_server.trying import command
from reference_server.trying.overlay import Choices, Overlay
from reference_server.trying.roots import find_roots
from reference_server.trying.samples import Samples, body, shown
from reference_server.trying.templates import Values
from reference_server.trying.trial import Trial

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n"
TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
PYTHON = 'backend: "python"\n' + TENSORS
GPU = "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]\n"
CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.kind = args["model_instance_kind"]
        {line}

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(each, "X").as_numpy())]
            )
            for each in requests
        ]
"""
BLS = """
import triton_python_backend_utils as pb_utils
CALLED = "net"

class TritonPythonModel:
    def execute(self, requests):
        return []
"""
#: Files of a clone whose models stop at a GPU, LFS weights, a backend, a package, a template, a
#: missing model and missing version folders.
CLONE = {
    "README.md": "A service.",
    "fill.sh": "export SIZE=4\npython3 fill_template.py -i models/sized/config.pbtxt n:$SIZE",
    "deploy/models/gpu/config.pbtxt": PYTHON + GPU,
    "deploy/models/gpu/1/model.py": CODE.format(line='open("/models/gpu/1/labels.txt").close()'),
    "deploy/models/gpu/1/labels.txt": "a",
    "deploy/models/net/config.pbtxt": 'platform: "onnxruntime_onnx"\n' + TENSORS,
    "deploy/models/net/1/model.onnx": POINTER,
    "deploy/models/trt/config.pbtxt": 'platform: "tensorrt_plan"\n' + TENSORS + GPU,
    "deploy/models/needs/config.pbtxt": PYTHON,
    "deploy/models/needs/1/model.py": CODE.format(line="import no_such"),
    "deploy/models/sized/config.pbtxt.template": PYTHON.replace("-1", "${n}"),
    "deploy/models/sized/1/model.py": CODE.format(line="pass"),
    "deploy/models/calls/config.pbtxt": PYTHON,
    "deploy/models/calls/1/model.py": BLS,
    "deploy/models/bare/config.pbtxt": 'platform: "tensorrt_plan"',
    "deploy/models/all/config.pbtxt": ensemble(
        step("gpu", {"X": "I"}, {"Y": "a"}),
        step("net", {"X": "a"}, {"Y": "b"}),
        step("trt", {"X": "b"}, {"Y": "c"}),
        step("sized", {"X": "c"}, {"Y": "d"}),
        step("absent", {"X": "d"}, {"Y": "O"}),
    ),
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Return each file of a folder, and its folders."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


def overlay(tmp_path: Path, files: dict[str, str], **choices) -> Overlay:
    clone = write(tmp_path / "clone", files)
    return Overlay(clone, find_roots(clone)[0], tmp_path / "scratch", Choices(**choices))


def ports() -> list[str]:
    """Return options with ports that are free."""
    found = []
    for kind in ("http", "grpc", "metrics"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            found.append(f"--{kind}-port={server.getsockname()[1]}")
    return found


def tried(*arguments: object) -> tuple[int, str]:
    """Run the command; return its exit code and its output."""
    words = [sys.executable, "-m", "reference_server", "try", *map(str, arguments)]
    done = subprocess.run([*words, "--once", *ports()], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.brute_force
def test_each_model_of_a_clone_answers_or_has_a_reason(tmp_path):
    clone = write(tmp_path / "clone", CLONE)
    before = contents(clone)
    code, out = tried(clone)
    assert contents(clone) == before
    rows = dict(re.findall(r"^(\w+) +((?:runs really|with stand-ins|does not run).*)$", out, re.M))
    assert rows == {
        "gpu": "runs really",
        "sized": "runs really",
        "net": "with stand-ins  1/model.onnx is a Git LFS pointer / git lfs pull",
        "trt": "with stand-ins  the backend tensorrt is not installed / export the model to ONNX, "
        "or serve with --stub-model",
        "needs": "with stand-ins  needs pip install no-such: ModuleNotFoundError: No module named "
        "'no_such' / pip install no-such, or --install",
        "absent": "with stand-ins  the repository has no model 'absent' / add the folder of the "
        "model",
        "all": "with stand-ins  stand-ins for absent, net, trt / see those models",
        "bare": "does not run    Invalid argument: unable to find backend library for backend "
        "'tensorrt' / export the model to ONNX, or serve with --stub-model; or declare its inputs "
        "and outputs, for a stand-in",
        "calls": rows["calls"],
    }, out
    assert rows["calls"].startswith("does not run    Failed to process the request(s)")
    assert code == 1
    assert "sized: placeholder n: '4' (fill.sh)" in out
    assert "gpu: its instances are moved from the GPU to the CPU" in out
    assert re.search(r"gpu: path /models/gpu/1/labels.txt is mapped to \S+/gpu/1/labels.txt", out)
    assert "trt: the missing version folder '1' is created" in out
    assert re.search(r"curl -s http://localhost:\d+/v2/models/gpu/infer -d '\{\"inputs\"", out)


def test_a_single_model_of_an_archive_is_tried_alone(tmp_path, monkeypatch):
    clone = write(tmp_path / "clone", CLONE)
    archive = tmp_path / "models.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(clone / "deploy/models/gpu", "gpu")
    if hasattr(tarfile, "data_filter"):
        prepared, _ = command.prepare(archive, tmp_path / "scratch", Choices())
        assert list(prepared.models) == ["gpu"]
        monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(ValueError, match=r"models.tar.gz: found Python 3.*Unpack the archive, and"):
        command.prepare(archive, tmp_path / "other", Choices())


def test_an_ensemble_is_tried_with_the_models_of_its_steps(tmp_path):
    clone = write(tmp_path / "clone", CLONE)
    prepared, _ = command.prepare(clone / "deploy/models/all", tmp_path / "scratch", Choices())
    assert sorted(prepared.models) == ["absent", "all", "gpu", "net", "sized", "trt"]
    assert sorted(path.name for path in prepared.root.iterdir()) == sorted(prepared.models)


def test_stand_ins_are_marked_in_the_index_and_by_a_header(tmp_path):
    prepared = overlay(tmp_path, CLONE)
    models = ["gpu", "net", "all"]
    with open_repository(prepared.root, models=models) as repository:
        reasons = {entry.name: entry.reason for entry in repository.index() if entry.version}
        assert reasons["net"] == "STAND-IN: 1/model.onnx is a Git LFS pointer"
        assert reasons["all"] == "STAND-IN: uses stand-ins for absent, net, trt"
        assert reasons["gpu"] == ""
        sent = {"name": "X", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}

        def reply(model: str, name: str):
            request = json.dumps({"inputs": [{**sent, "name": name}]}).encode()
            return repository.http("POST", f"/v2/models/{model}/infer", request)

        assert reply("gpu", "X").headers["Stand-In"] is None
        found = reply("net", "X")
        assert found.headers["Stand-In"] == "1/model.onnx is a Git LFS pointer"
        generated = repository.http("POST", "/v2/models/net/generate", b'{"X": [1, 2, 3]}')
        assert generated.headers["Stand-In"] == found.headers["Stand-In"]
        assert generated.json()["Y"] == [0.0, 0.125, 0.25]
        output = {"name": "Y", "datatype": "FP32", "shape": [3], "data": [0.0, 0.125, 0.25]}
        assert found.json()["outputs"] == [output]


def test_missing_packages_are_installed_into_a_folder_of_the_run(tmp_path, monkeypatch):
    prepared = overlay(tmp_path, CLONE)
    commands = []

    def run(command, *, check):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "path", [*sys.path])
    given = argparse.Namespace(install=True)
    trial = Trial(prepared, tmp_path, io.StringIO(), given)
    trial.install()
    target = str(tmp_path / "packages")
    assert commands[0][1:] == ["-m", "pip", "install", "-q", "--target", target, "no-such"]
    assert sys.path[-1] == target
    needs = prepared.models["needs"]
    assert (needs.packages, needs.cure) == ([], "")


def test_an_absolute_path_is_mapped_to_the_given_folder(tmp_path):
    files = {
        "m/a/config.pbtxt": PYTHON + 'parameters { key: "p" value { string_value: "/opt/ml/w" } }',
        "m/a/1/model.py": CODE.format(line='open("/opt/ml/w/x.txt")'),
    }
    prepared = overlay(tmp_path, files, maps={"/opt/ml": tmp_path / "data"})
    assert f'"{tmp_path}/data/w"' in (prepared.root / "a/config.pbtxt").read_text()
    assert f'"{tmp_path}/data/w/x.txt"' in (prepared.root / "a/1/model.py").read_text()


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/models/a/1/x.txt", "models/a/1/x.txt"),
        ("/mnt/b", "models/b"),  # the folder of a model
        ("/app/data/x.txt", "data/x.txt"),
        ("/app/data", None),  # a name alone
        ("/app/other/y.txt", None),
        ("/usr/bin", None),  # it exists
    ],
)
def test_an_absolute_path_leads_to_the_same_place_in_the_copy(tmp_path, path, place):
    files = {
        "data/x.txt": "",
        "bin/x": "",
        "models/a/config.pbtxt": PYTHON,
        "models/a/1/x.txt": "",
        "models/a/1/model.py": CODE.format(line=f'self.path = "{path}"'),
        "models/b/config.pbtxt": PYTHON,
        "models/b/1/model.py": "",
    }
    prepared = overlay(tmp_path, files)
    expected = path if place is None else prepared.clone / place
    assert f'self.path = "{expected}"' in (prepared.root / "a/1/model.py").read_text()


def test_cuda_in_the_code_becomes_the_cpu(tmp_path):
    code = CODE.format(line='self.m = net.to("cuda:0"); self.n = net.cuda()')
    prepared = overlay(tmp_path, {"m/a/config.pbtxt": PYTHON, "m/a/1/model.py": code})
    if not Path("/dev/nvidiactl").exists():
        text = (prepared.root / "a/1/model.py").read_text()
        assert 'self.m = net.to("cpu"); self.n = net.cpu()' in text


def test_names_versions_and_missing_environments_are_repaired(tmp_path):
    files = {
        "m/folder/config.pbtxt": 'name: "model"\nversion_policy { specific { versions: 7 } }\n'
        + PYTHON,
        "m/folder/2/model.py": CODE.format(line="pass"),
        "m/flat/config.pbtxt": PYTHON
        + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/no/env.tar.gz" } }',
        "m/flat/model.py": CODE.format(line="pass"),
    }
    prepared = overlay(tmp_path, files)
    assert sorted(prepared.models) == ["flat", "model"]
    assert (prepared.root / "flat/1/model.py").is_file()
    assert "EXECUTION_ENV_PATH" not in (prepared.root / "flat/config.pbtxt").read_text()
    assert "version_policy" not in (prepared.root / "model/config.pbtxt").read_text()


def test_files_beside_the_models_are_links_and_large_files_too(tmp_path):
    files = {"data/x.txt": "x", "m/a/config.pbtxt": PYTHON, "m/a/1/model.py": "", "m/b.txt": "b"}
    clone = write(tmp_path / "clone", files)
    with (clone / "m/a/1/large.bin").open("wb") as file:
        file.truncate((1 << 20) + 1)
    prepared = Overlay(clone, clone / "m", tmp_path / "scratch", Choices())
    assert (prepared.clone / "data").is_symlink()
    assert (prepared.root / "b.txt").is_symlink()
    assert (prepared.root / "a/1/large.bin").is_symlink()
    assert not (prepared.root / "a/1/model.py").is_symlink()


def test_the_repository_with_a_complete_ensemble_is_preferred(tmp_path):
    files = {
        **{f"many/{name}/config.pbtxt": PYTHON for name in "abc"},
        "deep/models/e/config.pbtxt": ensemble(step("s", {"X": "I"}, {"Y": "O"})),
        "deep/models/s/config.pbtxt": PYTHON,
        "node_modules/x/config.pbtxt": PYTHON,
        "plain/m/1/model.onnx": "",
    }
    clone = write(tmp_path, files)
    found = [str(root.relative_to(clone)) for root in find_roots(clone)]
    assert found == ["deep/models", "many", "plain"]


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("max_batch_size: ${size}", "max_batch_size: 8"),
        ("count: $COUNT", "count: 1"),
        ("dims: [ 1, ${n} ]", "dims: [ 1, -1 ]"),
        ("data_type: {{ t }}", "data_type: TYPE_FP32"),
        ("decoupled: ${mode}", "decoupled: false"),
        ('string_value: "${dir}"', 'string_value: ""'),
        (
            'string_value: "$$TRITON_MODEL_DIRECTORY/x"',
            'string_value: "$$TRITON_MODEL_DIRECTORY/x"',
        ),
        ("count: ${given}", "count: 3"),
        ("count: $FROM_SCRIPT", "count: 5"),
    ],
)
def test_placeholders_get_given_found_or_proposed_values(tmp_path, text, filled):
    clone = write(tmp_path, {"run.sh": "export FROM_SCRIPT=5\n"})
    values = Values(clone, {"given": "3"})
    assert values.fill(text, "m")[0] == filled
    other = values.fill("max_batch_size: ${size} count: ${size}", "m")[0]
    assert other == "max_batch_size: 8 count: 8"


CONFIG = {
    "max_batch_size": 4,
    "input": [
        {"name": "X", "data_type": "TYPE_FP32", "dims": ["-1"]},
        {"name": "image", "data_type": "TYPE_STRING", "dims": ["1"]},
        {"name": "extra", "data_type": "TYPE_INT32", "dims": ["1"], "optional": True},
    ],
}


def test_samples_have_the_shapes_of_the_signature_and_files_of_the_clone(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8photo")
    requests = list(Samples(tmp_path).requests(CONFIG))
    assert [sorted(each) for each in requests] == [["X", "image"]] * len(requests)
    first = requests[0]
    assert (first["X"].shape, first["X"].dtype) == ((1, 8), np.float32)
    assert first["image"].tolist() == [[b"\xff\xd8photo"]]
    assert len(requests) > 2
    assert shown(first).startswith("X FP32 1x8 [0.5, 0.5, 0.5, ...]; image BYTES 1x1 [")


def test_requests_that_the_clone_contains_come_first(tmp_path):
    x = '{"name": "X", "shape": [1, 2], "datatype": "FP32", "data": [3, 4]}'
    image = '{"name": "image", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}'
    text = f"""# curl -d '{{"id": "7", "inputs": [
    #   {x},
    #   {image}
    # ]}}'
    {{"inputs": [{x}, ...]}}
    {{"inputs": [{x}]}}
    {{"inputs": [{{"name": "other", "shape": [1], "datatype": "FP32", "data": [3]}}]}}
    """
    write(tmp_path, {"docs/use.md": text})
    first, second, *_ = Samples(tmp_path).requests(CONFIG)
    assert first["X"].tolist() == [[3, 4]]
    assert first["image"].tolist() == [[b"a"]]
    assert second["X"].shape == (1, 8)


def test_a_request_body_is_json_if_it_is_short_and_binary_otherwise():
    short = {"X": np.full((1, 2), 0.5, np.float32), "image": np.array([[b"a"]], object)}
    text, length = body(short, CONFIG)
    assert length == 0
    assert json.loads(text)["inputs"][1]["data"] == ["a"]
    content, length = body({"image": np.array([[b"\xff"]], object)}, CONFIG)
    assert json.loads(content[:length])["inputs"][0]["parameters"] == {"binary_data_size": 5}
    assert content[length:] == b"\x01\x00\x00\x00\xff"


def test_a_folder_without_models_exits_with_2(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        command.main([str(tmp_path)])
    assert ended.value.code == 2
    assert "found no models; expected folders with config.pbtxt" in capsys.readouterr().err


def test_only_chosen_changes_are_made(tmp_path):
    gpu = {name: text for name, text in CLONE.items() if "/gpu/" in name or "/net/" in name}
    prepared = overlay(tmp_path, gpu, gpu_to_cpu=False, stand_ins=False)
    assert "kind: KIND_GPU" in (prepared.root / "gpu/config.pbtxt").read_text()
    assert not any(model.stand_in for model in prepared.models.values())
