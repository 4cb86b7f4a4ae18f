"""Python-based backends on both servers: models without code, including models of `ge`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from contract.probes import MODELS
from contract.recordings import Recording, asked_live, own_path, repository_folder
from contract.wire import index, said
from runtime.support.axis_graphs import attentive, one_row, saved, summing
from support.servers import Server, start_reference_server, start_tritonserver

from ge_runtime.cli import backend
from reference_server.repository.model_files import SHIPPED
from tools import oracle

pytestmark = pytest.mark.oracle

LIVE = "/v2/health/live"
#: A line of the runtime's own code.
_LINE = re.compile(r"/\S+?/(?:plugin/(?=ge_runtime/)|backends/(?=ge/))(\S+?)\(\d+\)")
RUINED = "class TritonPythonModel(:\n"
#: Models of the test's own backends, by name: config.pbtxt, or none, and files.
PROBES: dict[str, tuple[str | None, dict[str, str]]] = {
    "plain": ('backend: "echo"', {}),
    "other_code": (
        'backend: "echo"',
        {"1/model.py": RUINED, "1/helper.py": "WHO = 'the model'"},
    ),
    "filename": ('backend: "echo" default_model_filename: "other.py"', {}),
    "runtime": ('backend: "echo" runtime: "model.py"', {}),
    "runtime_unknown": ('backend: "echo" runtime: "libtriton_echo.so"', {}),
    "two_instances": ('backend: "echo" instance_group { count: 2 }', {}),
    "named.echo": (None, {}),
    "configured.echo": ("max_batch_size: 2", {}),
    "named.nobody": (None, {}),
    "boom": ('backend: "echo"', {}),
    "hollow": ('backend: "hollow"', {}),
    "rotten": ('backend: "rotten"', {}),
    "nobody": ('backend: "nobody" runtime: "model.py"', {}),
    "python": ('backend: "python" runtime: "model.py"', {"1/model.py": RUINED}),
}
#: Models that the shipped backend completes from their file, on both servers.
STEPS = ("bare", "stepped")
#: Models with names of Triton's backends, and their handling by the server's core.
NAMED = ("pytorch", "tensorrt", "tensorflow", "openvino", "dali")
PROBES |= {
    "file_onnx": (None, {"1/model.onnx": ""}),
    "file_pt": (None, {"1/model.pt": ""}),
    "file_plan": (None, {"1/model.plan": ""}),
    "file_graphdef": (None, {"1/model.graphdef": ""}),
    "file_savedmodel": (None, {"1/model.savedmodel/saved": ""}),
    "file_openvino": (None, {"1/model.xml": ""}),
    "file_pt2": (None, {"1/model.pt2": ""}),
    "file_configured": ("max_batch_size: 2", {"1/model.pt": ""}),
    "platform_pt": ('platform: "pytorch_libtorch"', {}),
    "platform_plan": ('platform: "tensorrt_plan"', {}),
    "platform_graphdef": ('platform: "tensorflow_graphdef"', {}),
    "platform_savedmodel": ('platform: "tensorflow_savedmodel"', {}),
    "platform_aoti": ('platform: "torch_aoti"', {}),
    "backend_plan": ('backend: "tensorrt"', {}),
    "backend_tensorflow": ('backend: "tensorflow"', {}),
    "backend_openvino": ('backend: "openvino"', {}),
    "backend_dali": ('backend: "dali"', {}),
    "name_alone": ('default_model_filename: "model.pt"', {}),
    "name_unknown": ('default_model_filename: "net.pt"', {"1/model.pt": ""}),
    "pair": ('backend: "pytorch" platform: "tensorrt_plan"', {}),
    "group": ('backend: "tensorflow" platform: "tensorflow_graphdef" instance_group { }', {}),
    "group_counted": ('backend: "pytorch" instance_group { count: 3 }', {}),
}


#: Models of `ge` whose configuration is completed from their graph, by name: config.pbtxt, graph.
COMPLETED: dict[str, tuple[str, Callable[[], onnx.ModelProto]]] = {
    "empty": ('backend: "ge"', attentive),
    "own_code": ('backend: "python"', one_row),
    "stateful": ('backend: "ge"', summing),
    "partial": (
        """
        backend: "ge"
        max_batch_size: 4
        input { name: "input_ids" data_type: TYPE_INT64 dims: -1 }
        parameters { key: "limit.words" value { string_value: "40" } }
        """,
        attentive,
    ),
}
#: Models of `ge` that contradict their graph.
CONTRADICTING = {
    "typed": 'backend: "ge" input { name: "input_ids" data_type: TYPE_FP32 dims: -1 }',
}


def write_backends(folder: Path) -> None:
    """Write the test's backends, Triton's Python backend that runs them, and `ge`."""
    for name in ("echo", "hollow", "rotten", *NAMED):
        (folder / name).mkdir(parents=True)
    for name in NAMED:
        shutil.copy(MODELS / "echo_backend.py", folder / name / "model.py")
        (folder / name / "helper.py").write_text("WHO = 'the backend'\n")
    (folder / "onnxruntime").mkdir()
    shutil.copy(SHIPPED, folder / "onnxruntime" / "model.py")
    shutil.copy(MODELS / "echo_backend.py", folder / "echo" / "model.py")
    (folder / "echo" / "helper.py").write_text("WHO = 'the backend'\n")
    (folder / "rotten" / "model.py").write_text(RUINED)
    (folder / "python").symlink_to(oracle.SERVER / "backends" / "python")
    (folder / backend.NAME).mkdir()
    (folder / backend.NAME / "model.py").write_text(backend.MODEL)


def write_models(folder: Path, classifier: Path) -> None:
    """Write the probes, and the image classifier without its code."""
    for name, (config, files) in PROBES.items():
        (folder / name / "1").mkdir(parents=True)
        if config is not None:
            (folder / name / "config.pbtxt").write_text(config)
        for path, text in files.items():
            (folder / name / path).parent.mkdir(exist_ok=True)
            (folder / name / path).write_text(text)
    ignored = shutil.ignore_patterns("model.py", "__pycache__")
    shutil.copytree(classifier, folder / "digits", ignore=ignored)
    config = folder / "digits" / "config.pbtxt"
    config.write_text(config.read_text().replace('backend: "python"', 'backend: "ge"'))
    for name, (text, graph) in COMPLETED.items():
        saved(graph(), folder / name)
        (folder / name / "config.pbtxt").write_text(text)
    (folder / "own_code" / "1" / "model.py").write_text(backend.MODEL)
    for name, text in CONTRADICTING.items():
        saved(attentive(), folder / name)
        (folder / name / "config.pbtxt").write_text(text)
    for name in STEPS:
        shutil.copytree(classifier, folder / name, ignore=ignored)
        (folder / name / "config.pbtxt").unlink()
    (folder / "stepped" / "config.pbtxt").write_text(
        'platform: "onnxruntime_onnx" instance_group { kind: KIND_CPU }'
    )


@dataclass(frozen=True)
class Row:
    """A model, and the parts of a server's responses about it that are compared."""

    name: str

    @property
    def files(self) -> object:
        """Return everything that determines the answers."""
        graph = COMPLETED[self.name][0] if self.name in COMPLETED else CONTRADICTING.get(self.name)
        return PROBES.get(self.name), graph, self.name in ECHOING


#: Models whose backend returns its arguments.
ECHOING = (
    *("plain", "other_code", "filename", "runtime", "named.echo", "configured.echo"),
    "two_instances",
)
ROWS = [*map(Row, (*PROBES, *STEPS, *COMPLETED, *CONTRADICTING))]
Answers = Recording[tuple[str, ...]]


@pytest.fixture(scope="module")
def root(real_repository: Path) -> Iterator[Path]:
    """Create the folder of the models and backends."""
    with repository_folder("backends") as folder:
        write_backends(folder / "backends")
        write_models(folder / "repository", real_repository / "ge_classifier")
        yield folder


@pytest.fixture(scope="module")
def servers(oracle_installed: None, root: Path) -> Iterator[tuple[Server, Server]]:
    """Run the real server with the models to play on it, and the reference server with all."""
    flags: dict[str, Any] = {
        "ready_path": LIVE,
        "backend_directory": str(root / "backends"),
        "backend_config": "echo,some=thing",
        "exit_on_error": False,
        "model_load_thread_count": 8,
        "allow_grpc": False,
        "allow_metrics": False,
    }
    asked = {row.name for row in asked_live(ROWS)} | {"digits", *STEPS, *COMPLETED}
    some = flags | {"model_control_mode": "explicit", "load_model": sorted(asked)}
    with (
        start_tritonserver(root / "repository", **some) as real,
        start_reference_server(root / "repository", **flags) as ours,
    ):
        yield real, ours


@pytest.fixture(scope="module")
def recorded(root: Path) -> Iterator[Answers]:
    own = own_path(root / "repository")
    opened: Answers = Recording("python_backends", (), lambda row: row.files, own, ROWS)
    yield opened
    opened.close()


def entry(server: Server, model: str) -> str:
    """Return the model's row of the index, with only the common part of Python's errors."""
    row = json.dumps(index(server.http)[model])
    return _LINE.sub(r"\1", re.sub(r"\\n  <frozen importlib[^\\]*", "", row))


def infer(server: Server, model: str) -> str:
    shape = [1, 1] if model == "configured.echo" else [1]
    given = {"name": "X", "datatype": "FP32", "shape": shape, "data": [1]}
    return said(server.http, "POST", f"/v2/models/{model}/infer", {"inputs": [given]})


def shown(server: Server, row: Row) -> tuple[str, ...]:
    """Return the index, configuration and metadata of a model, and the answer of an echo."""
    pages = ("/config", "")
    return (
        entry(server, row.name),
        *(said(server.http, "GET", f"/v2/models/{row.name}{page}") for page in pages),
        *([_without_instance(infer(server, row.name))] if row.name in ECHOING else []),
    )


@pytest.mark.parametrize("row", asked_live(ROWS), ids=lambda row: row.name)
def test_the_real_server_answers_as_recorded(
    row: Row, servers: tuple[Server, Server], recorded: Answers
):
    recorded.check(row, shown(servers[0], row), lambda _, said: said)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_both_servers_show_the_same_of_a_model(
    row: Row, servers: tuple[Server, Server], recorded: Answers
):
    ours = shown(servers[1], row)
    assert ours == recorded.said(row)
    assert row.name not in ECHOING or "the backend" in ours[-1]


def _without_instance(text: str) -> str:
    """Remove the instance's name: either of two instances may answer."""
    return re.sub(r"two_instances_0_[01]", "INSTANCE", text)


def test_a_model_of_backend_ge_answers_alike(servers: tuple[Server, Server]):
    rows = np.random.default_rng(7).random((1, 1, 12, 9), np.float32)
    given = {
        "name": "image",
        "datatype": "FP32",
        "shape": list(rows.shape),
        "data": rows.ravel().tolist(),
    }
    logits = []
    for server in servers:
        status, _, body = said(
            server.http, "POST", "/v2/models/digits/infer", {"inputs": [given]}
        ).partition(" ")
        assert status == "200", body
        logits.append(json.loads(body)["outputs"][0]["data"])
    assert len(logits[0]) == 10
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", STEPS)
def test_a_model_of_backend_onnxruntime_answers_alike_by_the_shipped_code(
    model: str, servers: tuple[Server, Server]
):
    image = np.random.default_rng(8).random((1, 1, 12, 9), np.float32)
    given = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": list(array.shape),
            "data": array.ravel().tolist(),
        }
        for name, array in {"image": image, "mask": np.ones((1, 12, 9), np.float32)}.items()
    ]
    path, replies = f"/v2/models/{model}/infer", []
    for server in servers:
        status, _, body = said(server.http, "POST", path, {"inputs": given}).partition(" ")
        assert status == "200", body
        replies.append(json.loads(body)["outputs"])
    real, ours = replies
    assert [own["shape"] for own in ours] == [own["shape"] for own in real]
    for own, theirs in zip(ours, real, strict=True):
        np.testing.assert_allclose(own["data"], theirs["data"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["empty", "own_code", "partial"])
def test_a_completed_model_answers_alike(model: str, servers: tuple[Server, Server]):
    """The answer needs masks, limits and axes, which the configuration does not have."""
    if model == "own_code":
        data: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 2, 4]}
        data["data"] = [number / 8 for number in range(8)]
    else:
        data = {"name": "input_ids", "datatype": "INT64", "shape": [2, 5]}
        data["data"] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    replies = []
    for server in servers:
        status, _, body = said(
            server.http, "POST", f"/v2/models/{model}/infer", {"inputs": [data]}
        ).partition(" ")
        assert status == "200", body
        replies.append(json.loads(body)["outputs"])
    real, ours = replies
    for own, theirs in zip(ours, real, strict=True):
        assert own["shape"] == theirs["shape"]
        np.testing.assert_allclose(own["data"], theirs["data"], rtol=1e-5, atol=1e-6)


def test_written_limits_hold_in_both_servers(servers: tuple[Server, Server]):
    ids = {"name": "input_ids", "datatype": "INT64", "shape": [1, 41], "data": [1] * 41}
    real, ours = (
        said(server.http, "POST", "/v2/models/partial/infer", {"inputs": [ids]})
        for server in servers
    )
    assert ours == real
    assert "words" in ours


def test_decisions_are_in_the_log_with_their_evidence(servers: tuple[Server, Server]):
    for server in servers:
        assert "empty: config.pbtxt lacks inputs, outputs" in server.log
        assert "range.input_ids: 0..49 (The graph executes with id 49" in server.log
