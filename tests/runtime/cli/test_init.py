"""`ge-runtime init` and `serve`: what they find in graphs, prove, print and write."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing

import numpy as np
import onnx
import pytest
from runtime.support.axis_graphs import (
    attentive,
    one_row,
    strided,
    time_major,
    valid,
)
from runtime.support.graphs import ENCODER, NONZERO, PIXELS, onnx_text

from ge_runtime import cli
from ge_runtime.cli.config_pbtxt import read_model_config


@pytest.fixture
def init(tmp_path, capfd):
    """Return a function that runs `init`: exit code, configuration, and what was printed."""

    def run(model: onnx.ModelProto, *arguments, in_process=True):
        onnx.save(model, tmp_path / "graph.onnx")
        into = tmp_path / "repository"
        if in_process:  # another process takes a second to start
            arguments = (*arguments, "--in-process")
        code = cli.main(["init", str(tmp_path / "graph.onnx"), "--into", str(into), *arguments])
        config = read_model_config(into / "graph") if code == 0 else None
        assert code == 0 or not (into / "graph").exists()
        return code, config, capfd.readouterr()

    return run


def parameters(config):
    return {key: own["string_value"] for key, own in config.get("parameters", {}).items()}


@pytest.mark.brute_force
def test_ids_with_a_mask(init):
    _, config, printed = init(attentive())
    assert config["max_batch_size"] == 16
    assert [own["name"] for own in config["input"]] == ["input_ids"]
    assert parameters(config) == {
        "axes.input_ids": "tokens",
        "limit.tokens": "1024",
        "mask.attention_mask": "tokens",
        "range.input_ids": "0..49",
    } | {key: own for key, own in parameters(config).items() if key == "limit.tokens"}
    assert "Confirmed by experiment: values behind tokens" in printed.out
    assert "The graph executes with id 49 and fails with 50." in printed.out
    assert "Proven: 6 requests" in printed.out


@pytest.mark.parametrize(
    "graph",
    [ENCODER, pytest.param(PIXELS, marks=pytest.mark.brute_force)],
    ids=lambda graph: graph.name,
)
def test_masks_of_one_and_two_axes(graph, init):
    _, config, _ = init(graph.onnx(), "--strategy", "throughput")
    assert any(key.startswith("mask.") for key in parameters(config))
    assert config["dynamic_batching"] == {
        "preferred_batch_size": [config["max_batch_size"]],
        "max_queue_delay_microseconds": 10000,
    }
    assert parameters(config)["early_answers"] == "false"


def test_a_graph_in_int8_is_proven_and_written(init, tmp_path):
    model = onnx_text(
        "(float[rows, 64] x) => (float[rows, 128] y) { y = MatMul (x, w) }",
        w=np.random.default_rng(3).standard_normal((64, 128), np.float32),
    )
    code, config, printed = init(model, "--int8", "--max-batch", "2")
    assert code == 0
    assert config["max_batch_size"] == 2
    assert "--int8: 1 of 1 linear layers" in printed.out
    written = onnx.load(tmp_path / "repository" / "graph" / "1" / "model.onnx")
    assert "MatMulIntegerToFloat" in [node.op_type for node in written.graph.node]


@pytest.mark.brute_force
def test_strides_and_a_constant(init):
    _, config, _ = init(strided(), "--constant", "gain=0.5")
    found = parameters(config)
    assert found["align.height"] == found["align.width"] == "4"
    assert found["axes.map"] == found["axes.image"] == "height, width"
    assert found["constant.gain"] == "0.5"


def test_a_number_without_rows_is_a_question(init):
    code, config, printed = init(strided())
    assert code == 0
    assert parameters(config)["batch_axis.gain"] == "none"
    assert "# Question: Has 'gain' the same value in all requests?" in printed.out


@pytest.mark.brute_force
def test_rows_that_are_not_first(init):
    _, config, _ = init(time_major())
    assert parameters(config)["mask.mask"] == "frames"
    assert parameters(config)["batch_axis.frames"] == "1"
    assert parameters(config)["batch_axis.mask"] == "1"
    assert "padding.frames" not in parameters(config)
    assert "gears.batch" not in parameters(config)


def test_a_convolution_without_padding_of_a_fixed_batch(init):
    _, config, printed = init(valid(batch=1))
    assert config["max_batch_size"] == 1
    assert "the graph has a fixed batch of 1" in printed.out
    found = parameters(config)
    assert found["axes.sums"] == "(samples - 6) // 2"
    assert found["min.samples"] == "8"


@pytest.mark.brute_force
def test_a_graph_that_fails_with_two_rows(init):
    _, config, printed = init(one_row(), in_process=False)
    assert parameters(config) == {"gears.batch": "1"}
    assert "the graph fails with 2 rows" in printed.out


def test_rows_that_see_each_other_are_executed_alone(init):
    model = onnx_text(
        "(float[batch, 4] x) => (float[batch, 4] y)"
        "{ most = ReduceMax <axes = [0]> (x) y = Div (x, most) }"
    )
    _, config, printed = init(model)
    assert parameters(config) == {"gears.batch": "1"}
    assert "load check" in printed.out


@pytest.mark.brute_force
def test_sizes_that_depend_on_values_are_refused(init):
    code, _, printed = init(NONZERO.onnx(), in_process=False)
    assert code == 1
    assert "found no configuration" in printed.err


def test_external_weights_are_copied(tmp_path, capfd):
    model = onnx_text(
        "(float[batch, 64] x) => (float[batch, 64] y) { y = MatMul (x, w) }",
        w=np.eye(64, dtype=np.float32),
    )
    (tmp_path / "weights").mkdir()
    external = {"save_as_external_data": True, "location": "weights/w.bin", "size_threshold": 0}
    onnx.save(model, tmp_path / "graph.onnx", **external)
    arguments = [str(tmp_path / "graph.onnx"), "--into", str(tmp_path / "r"), "--in-process"]
    assert cli.main(["init", *arguments]) == 0
    assert (tmp_path / "r" / "graph" / "1" / "weights" / "w.bin").is_file()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "found nothing, expected an .onnx or .pt2 file"),
        (b"no graph", "onnxruntime cannot open it"),
    ],
)
def test_bad_files_exit_with_2_and_leave_nothing(content, error, tmp_path, capfd):
    file = tmp_path / "graph.onnx"
    if content is not None:
        file.write_bytes(content)
    assert cli.main(["init", str(file), "--into", str(tmp_path / "r"), "--in-process"]) == 2
    assert error in capfd.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_serve_prints_requests_that_work(tmp_path):
    onnx.save(attentive(), tmp_path / "encoder.onnx")
    ports = [str(port) for port in free_ports(3)]
    flags = zip(("--http-port", "--grpc-port", "--metrics-port"), ports, strict=True)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "ge_runtime.cli", "serve", str(tmp_path / "encoder.onnx")),
            *("--into", str(tmp_path / "repository")),
            *(part for pair in flags for part in pair),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        printed = []
        for line in process.stdout:
            printed.append(line)
            if line.startswith("Ctrl-C"):
                break
        url, body = next(
            found.groups()
            for line in printed
            if (found := re.match(r"curl -s http://localhost:\d+(\S+) -d '(.*)'", line))
        )
        with closing(http.client.HTTPConnection("127.0.0.1", int(ports[0]))) as connection:
            connection.request("POST", url, body)
            response = connection.getresponse()
            answer = json.loads(response.read())
        assert response.status == 200
        assert answer["outputs"]
        program = "".join(printed[printed.index("import numpy as np\n") : -1])
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.startswith("[")
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.communicate()
    assert process.returncode == 0
    assert (tmp_path / "repository" / "encoder" / "1" / "model.py").is_file()


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
