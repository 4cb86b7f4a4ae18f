"""Exports have the content of the clients' requests."""

import base64
import json

import numpy as np
from replay.traffic import MS, inputs, write_capture
from support.http2 import message
from tritonclient.grpc import service_pb2

from ge_runtime.planning.histogram import read_histogram
from triton_replay.__main__ import main
from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request
from triton_replay.exporting import export_loads


def infer(*tensors, number=0):
    document = {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": shape, "data": data}
            for name, datatype, shape, data in tensors
        ]
    }
    body = json.dumps(document).encode()
    sent = Request(number, 0, 0, 0, "POST", "/v2/models/m/infer", (), len(body), body)
    return Exchange(sent, None)


def exported(*exchanges, rows=False):
    loads, left_out = export_loads(exchanges, rows=rows)
    return {model: load.entries for model, load in loads.items()}, dict(left_out)


def test_texts_and_integers_are_readable_and_floats_exact():
    one = infer(
        *(("t", "BYTES", [2], ["a", "数"]), ("n", "INT64", [1, 2], [2**62 + 1, -3])),
        *(("b", "BOOL", [2], [True, False]), ("x", "FP32", [2], [0.1, 2])),
    )
    ((entry,),) = exported(one)[0].values()
    assert entry["t"] == {"content": ["a", "数"], "shape": [2]}
    assert entry["n"] == {"content": [2**62 + 1, -3], "shape": [1, 2]}
    assert entry["b"] == {"content": [1, 0], "shape": [2]}
    assert base64.b64decode(entry["x"]["b64"]) == np.array([0.1, 2], np.float32).tobytes()


def test_each_row_of_a_batch_becomes_an_entry_without_that_axis():
    one = infer(("t", "BYTES", [2, 1], ["a", "b"]), ("n", "INT32", [2, 2], [1, 2, 3, 4]))
    assert exported(one, rows=True)[0]["m"] == [
        {"t": {"content": ["a"], "shape": [1]}, "n": {"content": [1, 2], "shape": [2]}},
        {"t": {"content": ["b"], "shape": [1]}, "n": {"content": [3, 4], "shape": [2]}},
    ]
    unequal = infer(("a", "INT8", [2], [1, 2]), ("b", "INT8", [3], [1, 2, 3]))
    assert exported(unequal, rows=True) == ({}, {"requests with unreadable inputs": 1})


def test_grpc_calls_are_exported_alike_and_binary_bytes_keep_their_lengths():
    request = service_pb2.ModelInferRequest(model_name="g")
    request.inputs.add(name="t", datatype="BYTES", shape=[1])
    request.inputs.add(name="h", datatype="BF16", shape=[1])
    raw = b"\2\0\0\0\xff\xfe", b"\x80\x3f"
    request.raw_input_contents.extend(raw)
    body = message(request.SerializeToString())
    target = "/inference.GRPCInferenceService/ModelInfer"
    sent = Request(0, 0, 0, 0, "POST", target, (), len(body), body, protocol="grpc")
    ((entry,),) = exported(Exchange(sent, None))[0].values()
    assert tuple(base64.b64decode(entry[name]["b64"]) for name in "th") == raw


def test_requests_without_values_are_skipped_and_counted():
    empty = infer(("x", "FP32", [0], []))
    region = infer(("x", "FP32", [1], [1]), ("shared_memory_region", "FP32", [1], [1]))
    cut = Exchange(Request(0, 0, 0, 0, "POST", "/v2/models/m/infer", (), 9), None)
    other = Exchange(Request(0, 0, 0, 0, "GET", "/v2/models/m", (), 0), None)
    assert exported(empty, region, cut, other) == (
        {},
        {
            "requests with unreadable inputs": 2,
            "requests without a body in the capture": 1,
        },
    )


def test_the_files_are_readable_by_ge_runtime(tmp_path, capsys):
    values = inputs(30)
    capture = write_capture(tmp_path / "a.trc", lambda n, x: x, values)
    assert main(["export", str(capture), f"--output={tmp_path / 'out'}", "--rows"]) == 0
    rows = sum(map(len, values))
    assert f"{rows} entries from 30 requests" in capsys.readouterr().err
    intervals = (tmp_path / "out" / "m.intervals").read_text().split()
    assert intervals == [str(10 * MS // 1000)] * 29
    sizes = read_histogram(tmp_path / "out" / "m.json", axes=["n"], tensors={"x": ["n"]})
    assert sizes.total == rows


def test_a_capture_without_inferences_is_reported(tmp_path, capsys):
    capture = write_capture(tmp_path / "a.trc", lambda n, x: x, [])
    assert main(["export", str(capture), f"--output={tmp_path / 'out'}"]) == 2
    assert "no inference with exportable inputs" in capsys.readouterr().err
