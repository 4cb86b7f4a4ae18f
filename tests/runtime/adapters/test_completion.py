"""Completion of partial configurations: what is derived, kept, merged and refused."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from runtime.support.axis_graphs import (
    attentive,
    one_row,
    rated,
    recurrent,
    saved,
    strided,
    summing,
    valid,
)
from runtime.support.configs import encoder_config, model_config, tensor
from runtime.support.graphs import onnx_model
from runtime.support.triton import InferenceRequest, PbUtils, Tensor

from ge_runtime import child_process
from ge_runtime.adapters import completion
from ge_runtime.adapters.completion import Completion, complete, lacking, restore
from ge_runtime.adapters.triton import GraphModel
from ge_runtime.cli.complete import derive
from ge_runtime.cli.config_pbtxt import read_model_config
from ge_runtime.errors import ArtifactFault

MODELS = Path(__file__).parents[3] / "model_repository"
OWN = [file.parents[1] for file in MODELS.glob("*/1/model.py") if "GraphModel" in file.read_text()]
EMPTY = {"name": "m", "max_batch_size": 0, "input": [], "output": [], "parameters": {}}
IDS = tensor("input_ids", "INT64", [-1])
FOUND = Completion(
    {"max_batch_size": 16, "input": [IDS], "output": [tensor("embedding", "FP32", [4])]},
    {"axes.input_ids": "tokens", "limit.tokens": "32", "mask.attention_mask": "tokens"},
    ["max_batch_size: 16"],
)


class ModelConfig:
    """The argument of `auto_complete_config`."""

    def __init__(self, config):
        self._config = config

    def as_dict(self):
        return self._config


@pytest.fixture
def folder(tmp_path):
    return saved(attentive(), tmp_path / "m")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GE_RUNTIME_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "configurations"


@pytest.fixture
def derivations(monkeypatch, cache):
    """The configurations that were derived; each derivation returns FOUND."""
    made = []

    def derived(config, graph, wanted):
        made.append(config)
        return FOUND

    monkeypatch.setattr(completion, "_derive", derived)
    return made


def completed(folder, config=EMPTY):
    """Return a configuration as a server passes it to `initialize`, and the log."""
    given, log = json.loads(json.dumps(config)), []
    complete(given, folder, log.append)
    return given, log


def entries(config):
    return {key: own["string_value"] for key, own in config["parameters"].items()}


@pytest.mark.parametrize("folder", OWN, ids=lambda folder: folder.name)
def test_complete_configurations_are_not_touched(folder, derivations, monkeypatch, tmp_path):
    (tmp_path / "model.onnx").touch()
    given = read_model_config(folder)
    before = json.dumps(given)
    monkeypatch.setattr(completion, "_file", pytest.fail)
    complete(given, tmp_path, pytest.fail)
    merged, lines = restore(given, tmp_path)
    assert json.dumps(given) == before
    assert merged is given
    assert (derivations, lines) == ([], [])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (encoder_config(), []),
        (EMPTY, ["inputs", "outputs"]),
        (model_config([tensor("x", "FP32", [2])], []), ["outputs"]),
        (model_config([tensor("x", "FP32", [-1])], [tensor("y", "FP32", [2])]), ["axes.x"]),
        (
            model_config([tensor("x", "FP32", [-1])], [tensor("y", "FP32", [2])], {"axes.x": "n"}),
            ["limit.n"],
        ),
        (model_config([tensor("x", "FP32", [2])], [tensor("y", "FP32", [-1])]), ["axes.y"]),
        (model_config([tensor("x", "FP32", [2])], [tensor("y", "FP32", [-1])], batch=0), []),
        (
            model_config([tensor("x", "INVALID", [])], [tensor("y", "FP32", [2])]),
            ["data_type of input 'x'", "dims of input 'x'"],
        ),
        (
            model_config(
                [tensor("x", "FP32", [1], reshape={"shape": []})], [tensor("y", "FP32", [2])]
            ),
            [],
        ),
        (
            model_config(
                [tensor("x", "FP32", [2]), tensor("tag", "STRING", [-1])],
                [tensor("y", "FP32", [2]), tensor("tags", "STRING", [-1])],
                {"pass.tags": "tag"},
            ),
            [],
        ),
    ],
)
def test_lacking_lines(config, expected):
    assert lacking(config) == expected


def test_initialize_gets_the_derived_parameters_without_another_derivation(folder, derivations):
    config, log = completed(folder)
    assert (config["max_batch_size"], config["input"]) == (16, [IDS])
    assert config["parameters"] == {}
    assert log[0] == (
        "m: config.pbtxt lacks inputs, outputs: deriving it from executions of model.onnx"
    )
    assert log[1:] == ["m: max_batch_size: 16"]
    for _ in range(2):  # as many instances
        merged, lines = restore(config, folder)
        assert entries(merged) == FOUND.parameters
        assert "mask.attention_mask='tokens'" in lines[0]
    assert len(derivations) == 1


def test_the_next_load_derives_nothing(folder, derivations):
    first, _ = completed(folder)
    second, log = completed(folder)
    assert first == second
    assert "an earlier load has derived it" in log[0]
    assert log[-1] == "m: max_batch_size: 16"
    assert len(derivations) == 1


def test_a_changed_graph_or_line_derives_again(folder, derivations):
    completed(folder)
    completed(folder, {**EMPTY, "max_batch_size": 4})
    (folder / "weights.bin").touch()
    completed(folder)
    assert len(derivations) == 3


@pytest.mark.parametrize("content", ["[]", '{"format": 1}', "{broken"])
def test_invalid_entries_are_derived_again(content, folder, derivations, cache):
    config, _ = completed(folder)
    for entry in cache.iterdir():
        entry.write_text(content)
    merged, _ = restore(config, folder)
    assert entries(merged) == FOUND.parameters
    assert len(derivations) == 2


def test_entries_with_another_content_are_ignored(folder, derivations, cache):
    completed(folder)
    for entry in cache.iterdir():
        entry.write_text(json.dumps({**json.loads(entry.read_text()), "parameters": ["x"]}))
    completed(folder)
    assert len(derivations) == 2


@pytest.mark.parametrize("place", ["a file", "no folder"])
def test_without_a_cache_initialize_derives_again(place, folder, derivations, cache, monkeypatch):
    cache.parent.parent.joinpath("cache").write_text("")  # no folder can be made here
    if place == "no folder":
        for name in ("GE_RUNTIME_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
    config, _ = completed(folder)
    merged, _ = restore(config, folder)
    assert entries(merged) == FOUND.parameters
    assert len(derivations) == 2


def test_old_entries_are_removed(folder, derivations, cache, monkeypatch):
    monkeypatch.setattr(completion, "_ENTRIES_MOST", 3)
    for size in range(1, 6):
        completed(folder, {**EMPTY, "max_batch_size": size})
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"stages": {"string_value": "a, b"}}},
        {"parameters": {"prepared.ids": {"string_value": "TYPE_INT64 [tokens]"}}},
        {"parameters": {"engine": {"string_value": "torch"}}},
        {"batch_input": [{"kind": "BATCH_ELEMENT_COUNT"}]},
    ],
)
def test_models_that_are_not_one_graph_are_left_alone(more, folder, derivations):
    config, log = completed(folder, {**EMPTY, **more})
    assert (config, log, derivations) == ({**EMPTY, **more}, [], [])


def test_a_compiled_model_alone_is_refused_with_the_cure(folder, derivations):
    (folder / "model.onnx").rename(folder / "model.om")
    with pytest.raises(ArtifactFault, match=r"lacks inputs, outputs: found model\.om, "):
        completed(folder)
    inputs = {**EMPTY, "input": [IDS], "output": [tensor("embedding", "FP32", [4])]}
    assert completed(folder, inputs) == (inputs, [])


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os; os.kill(os.getpid(), 11)", "(crashed: signal 11); write these lines by hand"),
        ("raise MemoryError('too large')", "(failed: MemoryError: too large)"),
        ("print('{\"lines\": 3}')", "(done: "),
        ('print(\'{"error": "found no rows"}\')', "failed: found no rows"),
    ],
)
def test_errors_of_the_other_process_are_one_sentence(code, error, folder, cache, monkeypatch):
    monkeypatch.setattr(child_process, "_BOOT", code)
    with pytest.raises(ArtifactFault) as caught:
        completed(folder)
    text = str(caught.value)
    assert text.startswith("m: config.pbtxt lacks inputs, outputs, and deriving it from model.onnx")
    assert error in text
    assert "\n" not in text


def test_a_crash_leaves_no_files(folder, cache, monkeypatch, tmp_path):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    code = "import os, tempfile; tempfile.mkdtemp(); os.kill(os.getpid(), 9)"
    monkeypatch.setattr(child_process, "_BOOT", code)
    with pytest.raises(ArtifactFault, match="crashed: signal 9"):
        completed(folder)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.brute_force
def test_a_completed_model_answers(tmp_path, cache):
    """The whole way: another process derives, and `initialize` gets the parameters."""
    folder = saved(one_row(), tmp_path / "m")
    pb_utils = PbUtils()
    pb_utils.get_model_dir = lambda: str(folder)
    config = GraphModel.complete(ModelConfig(json.loads(json.dumps(EMPTY))), pb_utils).as_dict()
    assert config["max_batch_size"] == 1
    args = {
        "model_config": json.dumps(config),
        "model_instance_name": "m_0",
        "model_repository": str(folder.parent),
        "model_version": "1",
        "model_name": "m",
    }
    model = GraphModel(args, pb_utils)
    try:
        rows = [np.ones((count, 2, 4), np.float32) for count in (1, 2)]
        requests = [InferenceRequest([Tensor("x", own)], ["y"]) for own in rows]
        one, two = (
            [*request.get_response_sender().sent, *filter(None, [returned])][0]
            for request, returned in zip(requests, model.execute(requests), strict=True)
        )
        assert not one.has_error()
        assert "expected 1 to 1 (max_batch_size)" in two.error().message()
    finally:
        model.close()


def derived(graph, folder, parameters=None, **written):
    """Return the completed sections, and the parameters, of written lines."""
    given = {key: {"string_value": text} for key, text in (parameters or {}).items()}
    found = derive(
        saved(graph, folder) / "model.onnx", {"name": "m", "parameters": given, **written}
    )
    return found.sections, found.parameters


def test_written_names_of_axes_are_used(tmp_path):
    _, found = derived(attentive(), tmp_path, {"limit.words": "40", "range.input_ids": "0..9"})
    assert found == {"axes.input_ids": "words", "mask.attention_mask": "words"}


def test_a_written_mask_comes_from_requests(tmp_path):
    mask = tensor("attention_mask", "INT64", [-1], optional=False)
    sections, found = derived(attentive(), tmp_path, {"limit.tokens": "32"}, input=[mask])
    assert sections["input"][0] == mask
    assert [own["name"] for own in sections["input"]] == ["attention_mask", "input_ids"]
    assert found["axes.attention_mask"] == "tokens"
    assert "mask.attention_mask" not in found


def test_written_outputs_are_the_only_ones(tmp_path):
    sections, found = derived(rated(), tmp_path, output=[tensor("y", "INVALID", [])])
    assert sections["output"] == [tensor("y", "FP32", [2])]
    assert "batch_axis.rates" not in found


def test_rows_that_are_not_first_are_not_among_written_dims(tmp_path):
    inputs = [tensor("x", "FP32", [3]), tensor("state", "FP32", [2, 3])]
    sections, found = derived(recurrent(), tmp_path, input=inputs)
    assert (sections["max_batch_size"], sections["input"]) == (16, inputs)
    assert found["batch_axis.state"] == "1"


def test_dims_with_the_rows_of_the_graph_mean_no_rows(tmp_path):
    sections, _ = derived(one_row(), tmp_path, input=[tensor("x", "FP32", [1, 2, 4])])
    assert sections["max_batch_size"] == 0
    assert "dynamic_batching" not in sections


def test_a_written_scheduler_stays(tmp_path):
    sections, _ = derived(rated(), tmp_path, sequence_batching={}, max_batch_size=2)
    assert "dynamic_batching" not in sections


def test_states_are_kept_for_sequences(tmp_path):
    sections, found = derived(summing(), tmp_path)
    assert [own["name"] for own in sections["input"]] == ["x"]
    assert [own["name"] for own in sections["output"]] == ["y"]
    assert sections["sequence_batching"] == {"oldest": {"max_candidate_sequences": 16}}
    assert found == {"state.state": "state_out"}


def test_a_written_line_that_the_load_check_refuses_is_a_contradiction(tmp_path):
    """The proof needs another value than the written one."""
    with pytest.raises(ArtifactFault) as caught:
        derived(mixing(), tmp_path, {"gears.batch": "2, 4"})
    assert "parameter 'gears.batch': found 2, 4 in config.pbtxt, but the proof gives 1" in str(
        caught.value
    )


def test_a_written_constant_is_used(tmp_path):
    limits = {"limit.height": "16", "limit.width": "16"}
    _, found = derived(strided(), tmp_path, {"constant.gain": "0.5", **limits})
    assert found["align.height"] == found["min.width"] == "4"


def mixing():
    """Each row is divided by the largest number of all rows."""
    return onnx_model(
        [
            helper.make_node("ReduceMax", ["x"], ["most"], axes=[0], keepdims=1),
            helper.make_node("Div", ["x", "most"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["batch", 4])],
        [("y", TensorProto.FLOAT, ["batch", 4])],
        {},
    )


def pair():
    """Two inputs of equal size."""
    names = ("left", "right")
    return onnx_model(
        [helper.make_node("Add", [*names], ["both"])],
        [(name, TensorProto.FLOAT, ["batch", f"{name}_size"]) for name in names],
        [("both", TensorProto.FLOAT, ["batch", "size"])],
        {},
    )


PAIR = [tensor("left", "FP32", [-1]), tensor("right", "FP32", [-1])]
# Graph, written parameters, other written lines; the line of the error, and its experiment.
CONTRADICTIONS = [
    (attentive, {}, {"input": [tensor("input_ids", "FP32", [-1])]}, "TYPE_FP32", "TYPE_INT64"),
    (attentive, {}, {"input": [tensor("input_ids", "INT64", [-1, 3, 4])]}, "[-1, 3, 4]", "[-1]"),
    (attentive, {}, {"input": [tensor("words", "INT64", [-1])]}, "'words'", "input_ids"),
    (rated, {}, {"output": [tensor("y", "FP32", [5])]}, "[5]", "[2]"),
    (attentive, {"range.input_ids": "0..60"}, {}, "0..60", "range.input_ids = 0..49"),
    (attentive, {"mask.input_ids": "tokens"}, {}, "mask.input_ids", "an input of requests"),
    (strided, {"constant.gain": "1", "align.height": "2"}, {}, "found 2", "align.height = 4: The"),
    (valid, {"limit.samples": "4"}, {}, "found 4", "min.samples = 8"),
    (one_row, {"gears.batch": "4"}, {}, "found 4", "gears.batch = 1"),
    (pair, {"axes.left": "a", "axes.right": "b"}, {"input": PAIR}, "axis 'b'", "'axes.lef"),
    (one_row, {"positions.x": "batch"}, {}, "config.pbtxt gives positions.x", "no configuration"),
]


@pytest.mark.brute_force
@pytest.mark.parametrize(("graph", "parameters", "written", "line", "experiment"), CONTRADICTIONS)
def test_a_contradiction_names_the_line_and_the_experiment(
    graph, parameters, written, line, experiment, tmp_path
):
    with pytest.raises(ArtifactFault) as caught:
        derived(graph(), tmp_path, parameters, **written)
    assert line in str(caught.value)
    assert experiment in str(caught.value)
