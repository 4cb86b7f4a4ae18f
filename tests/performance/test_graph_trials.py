"""`benchmarks.graph_trials` separates healthy graphs from graphs whose rows are not independent."""

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

graph_trials = pytest.importorskip("benchmarks.graph_trials")

CONFIG = """\
# source: this test
# truth: {truth}
backend: "python"
max_batch_size: 8
input {{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }}
parameters {{ key: "load_check" value {{ string_value: "{load_check}" }} }}
"""
HALF = numpy_helper.from_array(np.float32(0.5), "half")
NODES = {
    "healthy": [helper.make_node("Mul", ["x", "half"], ["y"])],
    "leaking": [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Mul", ["x", "most"], ["y"]),
    ],
}


def write_model(folder, name, truth, load_check="on"):
    """Write a model folder with the graph `truth`."""
    tensors = [
        helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["rows", 4]) for tensor in "xy"
    ]
    graph = helper.make_graph(NODES[truth], truth, tensors[:1], tensors[1:], [HALF])
    (folder / name / "1").mkdir(parents=True)
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, folder / name / "1" / "model.onnx")
    text = CONFIG.format(truth=truth, load_check=load_check)
    (folder / name / "config.pbtxt").write_text(text)


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["graph_trials", *map(str, arguments)])
    graph_trials.main()


@pytest.mark.brute_force
def test_table_shows_refusals_and_wrong_answers(tmp_path, monkeypatch, capsys):
    write_model(tmp_path, "healthy", "healthy")
    write_model(tmp_path, "refused", "leaking")
    write_model(tmp_path, "unchecked", "leaking", load_check="off")
    markdown = tmp_path / "table.md"
    run(monkeypatch, tmp_path, "--loads", 1, "--busy", 1, "--markdown", markdown)
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["healthy"][2:5] == ["1/1", "1/1", "1"]
    assert lines["healthy"][6:] == ["24/24", "24/24", "served"]
    assert lines["refused"][2:5] == ["0/1", "0/1", "1"]
    assert lines["refused"][-1] == "refused"
    assert lines["refused"][7].startswith("(")
    assert lines["unchecked"][-2:] == ["wrong", "answers"]
    text = markdown.read_text()
    assert "- truth: leaking" in text
    assert "2 x ConfigFault: 1 fault in the configuration of model 'refused'" in text


def test_only_named_models_are_tried_and_replace_the_table_of_a_page(tmp_path, monkeypatch, capsys):
    write_model(tmp_path, "first", "healthy")
    write_model(tmp_path, "second", "healthy")
    page = tmp_path / "page.md"
    page.write_text("## Other\n\n| a |\n\n## Graphs\n\nText.\n\n| old |\n| --- |\n\nEnd.\n")
    arguments = ["--loads", 1, "--requests", 2, "--models", "second", "--page", page]
    run(monkeypatch, tmp_path, *arguments)
    shown = capsys.readouterr().out
    assert "second" in shown
    assert "first" not in shown
    written = page.read_text()
    assert written.startswith("## Other\n\n| a |\n\n## Graphs\n\nText.\n\n| graph | origin | ")
    assert "\n| second | this test | healthy | 1/1 | 2/2 | 2/2 | " in written
    assert written.endswith(" | served |\n\nEnd.\n")


def test_failure_of_a_process_is_a_result():
    assert graph_trials.in_process(np.zeros, -1).startswith("ValueError: ")
