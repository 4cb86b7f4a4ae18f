"""Faults that are seeded into models: a replay to both servers finds each, and names its cause."""

import dataclasses
import itertools
import textwrap

import numpy as np
from replay.traffic import MS, request
from support.servers import start_reference_server
from tritonclient.grpc import service_pb2

from triton_replay.__main__ import main
from triton_replay.capture.files import CaptureWriter, read_capture
from triton_replay.capture.records import Closing, Opening, Request
from triton_replay.comparing.comparison import compare_captures
from triton_replay.comparing.tolerances import Tolerances

CONFIG = """
backend: "python"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        y = np.float32(2) * x
        {fault}
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])
"""
STREAM = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            sender = request.get_response_sender()
            for n in range(len(x) {fault}):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x[n : n + 1])]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FAULTS = {
    "rounding": "y = y.astype(np.float16).astype(np.float32)",
    "row": "y[1:2] = np.where(len(y) > 2, -y[1:2], y[1:2])",
    "shape": "y = y[:, :32]",
}
LOST = "- (len(x) > 2)"
COUNT = 48


def write_models(folder, faulty):
    """One model for each fault; without `faulty` all of them are right."""
    for name in [*FAULTS, "stream"]:
        version = folder / name / "1"
        version.mkdir(parents=True)
        streaming = name == "stream"
        (folder / name / "config.pbtxt").write_text(CONFIG + DECOUPLED * streaming)
        fault = (LOST if streaming else FAULTS[name]) if faulty else ""
        source = STREAM if streaming else MODEL
        (version / "model.py").write_text(textwrap.dedent(source).format(fault=fault))
    return folder


def write_load(path):
    """Requests of 1 to 4 rows and of lengths on both sides of 32, to each model."""
    rng = np.random.default_rng(0)
    writer = CaptureWriter.create(path)
    writer.write([Opening("s:1", "2026-01-01T00:00:00", "0", {})])
    for number, name in zip(range(COUNT * 4), itertools.cycle([*FAULTS, "stream"])):
        x = rng.uniform(0.5, 1, (1 + number // 4 % 4, 16 + number % 37)).astype(np.float32)
        asked = stream_request(number, x) if name == "stream" else request(number, x)
        target = asked.target.replace("/m/", f"/{name}/")
        connection = int(name == "stream")
        writer.write([dataclasses.replace(asked, target=target, connection=connection)])
    writer.write([Closing(0, "stopped", {})])
    writer.close()


def stream_request(number, x):
    message = service_pb2.ModelInferRequest(model_name="stream", id=str(number))
    message.inputs.add(name="x", datatype="FP32", shape=x.shape)
    message.raw_input_contents.append(x.tobytes())
    data = message.SerializeToString()
    body = b"\0" + len(data).to_bytes(4, "big") + data
    target = "/inference.GRPCInferenceService/ModelStreamInfer"
    at = number * 10 * MS
    return Request(number, 1, at, at, "POST", target, (), len(body), body, protocol="grpc")


def only(condition, count):
    """Return the text of a condition that holds for all differing requests, and no others."""
    counts = f"{count} of {count} that differ, 0 of {COUNT - count} that are equal"
    return f"only where {condition}: {counts}"


def test_each_fault_is_found_and_its_cause_is_named(tmp_path, capsys):
    load = tmp_path / "load.trc"
    write_load(load)
    captures = []
    for side in ("right", "faulty"):
        repository = write_models(tmp_path / side, faulty=side == "faulty")
        captures.append(tmp_path / f"{side}.trc")
        with start_reference_server(repository, allow_metrics=False) as server:
            addresses = [f"--server={server.http}", f"--grpc-server={server.grpc}"]
            words = [*addresses, f"--output={captures[-1]}", "--speed=max"]
            assert main(["replay", str(load), *words]) == 0, capsys.readouterr().err
    found = compare_captures(*map(read_capture, captures), Tolerances())
    groups = {one.model: (one.kind, len(one.requests), one.condition) for one in found.groups}
    assert len(found.groups) == len(groups)
    long = groups["shape"][1]
    assert groups == {
        "rounding": ("rounding", COUNT, "always"),
        "row": ("values of some rows", 24, only("rows is 3 or more", 24)),
        "shape": ("shape", long, only("size of axis 1 of x is 33 or more", long)),
        "stream": ("stream responses missing", 24, only("rows is 3 or more", 24)),
    }
    assert 0 < long < COUNT
