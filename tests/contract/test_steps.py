"""Models of Triton's own backends in the reference server: whole folders, through its schedulers.

These backends are not in the oracle. docs/backends.md lists the public sources for comparison.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from reference_server.testing import Model, ModelRepository, ServerError, open_repository

HOSTS = ["inline", "process"]


def write_onnx(
    folder: Path,
    nodes: Any,
    inputs: Any,
    outputs: Any,
    constants: dict[str, Any] | None = None,
    config: str | None = None,
    file: str = "1/model.onnx",
) -> None:
    """Write a model's folder, without a config.pbtxt if `config` is None."""
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        weights,
    )
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)


ROWS = ("n", 2)
LOOKUP = [helper.make_node("Gather", ["table", "x"], ["y"], axis=0)]
ADD_STATE = [
    helper.make_node("Add", ["x", "total"], ["y"]),
    helper.make_node("Identity", ["y"], ["kept"]),
]
STATEFUL = """
    backend: "onnxruntime"
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
    sequence_batching {
        STRATEGY
        state { input_name: "total" output_name: "kept" data_type: TYPE_FP32 dims: [1] }
    }
"""
BATCHER = """
    platform: "onnxruntime_onnx"
    max_batch_size: 4
    input { name: "x" data_type: TYPE_INT64 dims: [2] }
    output { name: "y" data_type: TYPE_FP32 dims: [2] }
    instance_group { count: 1 }
    dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 10000000 }
"""


def write_models(root: Path) -> None:
    float_rows = ("x", TensorProto.FLOAT, ROWS), ("y", TensorProto.FLOAT, ROWS)
    negate = [helper.make_node("Neg", ["x"], ["y"])]
    write_onnx(root / "bare", negate, float_rows[:1], float_rows[1:])
    write_onnx(
        root / "bare",
        [helper.make_node("Abs", ["x"], ["y"])],
        float_rows[:1],
        float_rows[1:],
        file="3/model.onnx",
    )
    write_onnx(
        root / "named",
        negate,
        float_rows[:1],
        float_rows[1:],
        config='backend: "onnxruntime" default_model_filename: "net.onnx"',
        file="1/net.onnx",
    )
    write_onnx(
        root / "folder",
        negate,
        float_rows[:1],
        float_rows[1:],
        config='backend: "onnxruntime" default_model_filename: "net"',
        file="1/net/model.onnx",
    )
    write_onnx(
        root / "lookup",
        LOOKUP,
        [("x", TensorProto.INT64, ROWS)],
        [("y", TensorProto.FLOAT, ROWS)],
        {"table": np.arange(8, dtype=np.float32)},
        BATCHER,
    )
    shape = ("n", 1)
    for strategy in ("direct { }", "oldest { }"):
        write_onnx(
            root / strategy.split()[0],
            ADD_STATE,
            [("x", TensorProto.FLOAT, shape), ("total", TensorProto.FLOAT, shape)],
            [("y", TensorProto.FLOAT, shape), ("kept", TensorProto.FLOAT, shape)],
            config=STATEFUL.replace("STRATEGY", strategy),
        )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("steps")
    write_models(root)
    return root


@pytest.fixture(scope="module", params=HOSTS)
def served(models: Path, request: pytest.FixtureRequest) -> Iterator[ModelRepository]:
    options = [f"--backend-config=python,host={request.param}"]
    with open_repository(models, options=options) as opened:
        yield opened


def configuration(repository: ModelRepository, model: str) -> Any:
    return json.loads(repository.http("GET", f"/v2/models/{model}/config").body)


def test_a_bare_file_is_a_model(served: ModelRepository) -> None:
    config = configuration(served, "bare")
    assert (config["platform"], config["runtime"]) == ("onnxruntime_onnx", "")
    assert (config["max_batch_size"], config["dynamic_batching"]["preferred_batch_size"]) == (
        4,
        [4],
    )
    assert config["instance_group"][0]["count"] == 2
    rows = np.array([[1, -2]], np.float32)
    assert served.model("bare").infer({"x": rows}).outputs["y"].tolist() == [[1, 2]]


@pytest.mark.parametrize("model", ["named", "folder"])
def test_the_file_may_have_another_name(served: ModelRepository, model: str) -> None:
    rows = np.array([[1, -2]], np.float32)
    assert served.model(model).infer({"x": rows}).outputs["y"].tolist() == [[-1, 2]]


def together(model: Model, *inputs: Any) -> list[Any]:
    """Return the output or the error's text of each of several concurrent requests."""

    def ask(rows: Any) -> Any:
        try:
            return model.infer({"x": np.array(rows)}).outputs["y"].tolist()
        except ServerError as error:
            return error.message

    with ThreadPoolExecutor(len(inputs)) as pool:
        return list(pool.map(ask, inputs))


def test_requests_share_an_execution(served: ModelRepository) -> None:
    before = _counts(served, "lookup")
    assert together(served.model("lookup"), [[1, 2]], [[3, 4], [5, 6]], [[7, 0]]) == [
        [[1, 2]],
        [[3, 4], [5, 6]],
        [[7, 0]],
    ]
    after = _counts(served, "lookup")
    assert [new - old for new, old in zip(after, before, strict=True)] == [4, 1]


def _counts(repository: ModelRepository, model: str) -> list[int]:
    statistics = json.loads(repository.http("GET", f"/v2/models/{model}/stats").body)
    (own,) = statistics["model_stats"]
    return [own["inference_count"], own["execution_count"]]


def test_a_request_that_fails_leaves_its_company_alone(served: ModelRepository) -> None:
    first, second, third = together(served.model("lookup"), [[1, 1]], [[1, 99], [1, 1]], [[2, 2]])
    assert (first, third) == ([[1, 1]], [[2, 2]])
    assert second.startswith("onnx runtime error 2: ")
    assert "indices element out of data bounds" in second


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_states_go_from_request_to_request(served: ModelRepository, model: str) -> None:
    totals = [
        served.model(model)
        .infer(
            {"x": np.array([[own]], np.float32)},
            sequence_id=7,
            sequence_start=own == 1,
            sequence_end=own == 4,
        )
        .outputs["y"]
        .item()
        for own in (1, 2, 3, 4)
    ]
    assert totals == [1, 3, 6, 10]


@pytest.mark.parametrize(
    ("option", "size"),
    [
        ("onnxruntime,default-max-batch-size=2", 2),
        ("pytorch,default-max-batch-size=2", 4),
    ],
)
def test_the_default_batch_size_is_an_option(models: Path, option: str, size: int) -> None:
    with open_repository(
        models, models=["bare"], options=[f"--backend-config={option}"]
    ) as repository:
        assert configuration(repository, "bare")["max_batch_size"] == size


def test_a_file_that_does_not_agree_is_refused_with_the_backends_text(tmp_path: Path) -> None:
    tensor = [("x", TensorProto.FLOAT, ROWS)], [("y", TensorProto.FLOAT, ROWS)]
    config = """
        backend: "onnxruntime" max_batch_size: 4
        input { name: "z" data_type: TYPE_FP32 dims: [2] }
        output { name: "y" data_type: TYPE_FP32 dims: [2] }
    """
    write_onnx(tmp_path / "m", [helper.make_node("Neg", ["x"], ["y"])], *tensor, config=config)
    with (
        pytest.raises(ServerError, match="unexpected inference input 'z', allowed inputs are: x"),
        open_repository(tmp_path),
    ):
        pass


@pytest.mark.parametrize("host", HOSTS)
def test_a_folder_with_nothing_but_openvinos_file_is_served(tmp_path: Path, host: str) -> None:
    openvino = pytest.importorskip("openvino", reason="the backend openvino needs openvino")
    x = openvino.opset13.parameter([-1, 2], np.float32, name="x")
    graph = openvino.Model([openvino.opset13.result(openvino.opset13.negative(x))], [x], "m")
    for port, name in ((graph.inputs[0], "x"), (graph.outputs[0], "y")):
        port.set_names({name})
        openvino.layout_helpers.set_layout(port, openvino.Layout("NC"))
    (tmp_path / "m" / "1").mkdir(parents=True)
    openvino.save_model(graph, tmp_path / "m" / "1" / "model.xml")
    with open_repository(tmp_path, options=[f"--backend-config=python,host={host}"]) as repository:
        assert repository.model("m").infer({"x": [[1, 2]]}).outputs["y"].tolist() == [[-1, -2]]
        config = json.loads(repository.http("GET", "/v2/models/m/config").body)
        assert (config["backend"], config["max_batch_size"]) == ("openvino", 4)
