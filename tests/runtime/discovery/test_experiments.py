"""Experiments on small graphs: each decision of a configuration, and each rejected candidate."""

from __future__ import annotations

import itertools
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from runtime.support.axis_graphs import attentive, rated, recurrent, strided, valid
from runtime.support.graphs import onnx_model

from ge_runtime.discovery import limits
from ge_runtime.discovery.configuration import Configuration
from ge_runtime.discovery.discover import Discovery
from ge_runtime.discovery.graph import Graph
from ge_runtime.discovery.sample import read_sample
from ge_runtime.discovery.study import Undecided
from ge_runtime.errors import ArtifactFault
from ge_runtime.memory.machine import MemoryLimit

BOOL, FLOAT, INT64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


@pytest.fixture
def discover(tmp_path):
    """Return a function that derives the configuration of a graph."""

    def derive(model: onnx.ModelProto, *, batched=True, sample=None, **options):
        path = tmp_path / "graph.onnx"
        onnx.save(model, path)
        graph = Graph(path, threads=1)
        given = {} if sample is None else read_sample(sample, graph.inputs)
        discovery = Discovery(graph, 16, sample=given, **options)
        return discovery.configuration(batched=batched)

    return derive


def parameters(found):
    return {own.key: own.value for own in found.parameters}


def names(tensors):
    return [tensor.name for tensor in tensors]


def pooled(kind="ReduceSum", **attributes):
    """A graph without a mask: FP32 [batch, frames, 4], reduced over the frames."""
    return onnx_model(
        [node(kind, ["x"], ["y"], keepdims=0, **attributes)],
        [("x", FLOAT, ["batch", "frames", 4])],
        [("y", FLOAT, ["batch", 4])],
    )


def affine():
    """A graph that computes each frame by itself."""
    return onnx_model(
        [node("Mul", ["x", "weights"], ["y"])],
        [("x", FLOAT, ["batch", "frames", 4])],
        [("y", FLOAT, ["batch", "frames", 4])],
        {"weights": np.arange(1, 5, dtype=np.float32)},
    )


def masked(content):
    """A sum over tokens that are multiplied by `content`, a node that reads `mask`."""
    return onnx_model(
        [
            node("Gather", ["table", "ids"], ["vectors"]),
            *content,
            node("Unsqueeze", ["weights", "last"], ["factors"]),
            node("Mul", ["vectors", "factors"], ["kept"]),
            node("ReduceSum", ["kept", "tokens"], ["y"], keepdims=0),
        ],
        [("ids", INT64, ["batch", "tokens"]), ("mask", INT64, ["batch", "tokens"])],
        [("y", FLOAT, ["batch", 4])],
        {
            "table": np.random.default_rng(1).random((16, 4), np.float32),
            "one": np.float32(1),
            "last": np.array([2]),
            "tokens": np.array([1]),
        },
    )


def stateful(state="state", result="state_out", **kept):
    """A cell whose answer is the sum of data and state, and whose state is half of that."""
    return onnx_model(
        [
            node("Add", ["x", state], ["sum"]),
            node("Concat", ["sum", "sum"], ["y"], axis=1),
            kept.get("next") or node("Mul", ["sum", "half"], [result]),
        ],
        [("x", FLOAT, ["batch", 1]), (state, FLOAT, ["batch", 4])],
        [("y", FLOAT, ["batch", 8]), (result, FLOAT, ["batch", 4])],
        {"half": np.float32(0.5), "four": np.array([1, 4])},
    )


# -- masks and padding


def test_a_mask_that_stops_the_padding_is_generated(discover):
    found = discover(masked([node("Cast", ["mask"], ["weights"], to=FLOAT)]))
    assert parameters(found)["mask.mask"] == "tokens"
    assert names(found.inputs) == ["ids"]


def test_a_mask_that_lets_padding_through_is_an_input(discover):
    weak = [
        node("Cast", ["mask"], ["number"], to=FLOAT),
        node("Add", ["number", "one"], ["weights"]),
    ]
    found = discover(masked(weak))
    assert "mask.mask" not in parameters(found)
    assert names(found.inputs) == ["ids", "mask"]
    assert any("not generated as a mask" in note for note in found.notes)


def test_an_inverted_mask_is_padded_with_1(discover):
    inverted = [
        node("Cast", ["mask"], ["number"], to=FLOAT),
        node("Sub", ["one", "number"], ["weights"]),
    ]
    found = discover(masked(inverted))
    assert parameters(found).items() >= {"pad.mask": "1", "padding.tokens": "neutral"}.items()
    assert "mask.mask" not in parameters(found)
    assert [own.name for own in found.inputs if own.optional] == ["mask"]


def test_frames_that_are_independent_make_padding_neutral(discover):
    found = discover(affine())
    assert parameters(found)["padding.frames"] == "neutral"
    assert not found.questions


def test_a_mean_over_frames_leaves_equal_sizes(discover):
    found = discover(pooled("ReduceMean", axes=[1]))
    assert "padding.frames" not in parameters(found)
    assert not found.questions


def test_padding_that_is_neutral_only_as_0_is_a_question(discover):
    found = discover(pooled("ReduceL1", axes=[1]))
    assert "padding.frames" not in parameters(found)
    (question,) = found.questions
    assert question.text.startswith("Is padding with 0 along frames neutral?")
    assert [own.key for own in question.added] == ["padding.frames"]


def test_padding_is_not_neutral_beside_a_rejected_length(discover):
    """The length that experiments invent may hide all data, so their answers prove nothing."""
    model = onnx_model(
        [
            node("Unsqueeze", ["n", "one"], ["column"]),
            node("Cast", ["column"], ["count"], to=FLOAT),
            node("Unsqueeze", ["count", "one"], ["wide"]),
            node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1),
            node("Add", ["mean", "wide"], ["offset"]),
            node("Add", ["x", "offset"], ["y"]),
        ],
        [("x", FLOAT, ["batch", "frames", 4]), ("n", INT64, ["batch"])],
        [("y", FLOAT, ["batch", "frames", 4])],
        {"one": np.array([1])},
    )
    found = discover(model)
    assert names(found.inputs) == ["x", "n"]
    assert not {"padding.frames", "lengths.n"} & parameters(found).keys()


def test_an_answer_without_data_proves_nothing(discover):
    model = onnx_model(
        [node("Mul", ["x", "none"], ["nothing"])],
        [("x", FLOAT, ["batch", "frames", 4])],
        [("nothing", FLOAT, ["batch", "frames", 4])],
        {"none": np.float32(0)},
    )
    assert "padding.frames" not in parameters(discover(model))


# -- rows, axes, limits


def test_first_dims_that_may_differ_are_no_rows(discover):
    model = onnx_model(
        [
            node("ReduceMax", ["x"], ["total"], axes=[0], keepdims=1),
            node("Add", ["y", "total"], ["z"]),
        ],
        [("x", FLOAT, ["nodes", 4]), ("y", FLOAT, ["edges", 4])],
        [("z", FLOAT, ["edges", 4])],
    )
    found = discover(model)
    assert found.max_batch_size == 0
    assert parameters(found)["axes.z"] == "edges"
    assert any("may differ from each other" in note for note in found.notes)


def test_a_graph_that_fails_with_one_row_has_no_rows(discover):
    model = onnx_model(
        [node("TopK", ["x", "two"], ["y", "places"], axis=0)],
        [("x", FLOAT, ["batch", 4])],
        [("y", FLOAT, [2, 4]), ("places", INT64, [2, 4])],
        {"two": np.array([2])},
    )
    found = discover(model)
    assert found.max_batch_size == 0
    assert parameters(found)["min.rows"] == "2"


def test_strides_give_a_multiple_and_a_smallest_size(discover):
    found = discover(strided(), constants={"gain": "0.5"})
    given = parameters(found)
    assert given["align.height"] == given["min.width"] == "4"
    assert given["constant.gain"] == "0.5"


def test_a_size_at_which_the_graph_fails_is_the_limit(discover):
    model = onnx_model(
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "two"], ["length"]),
            node("Range", ["zero", "length", "one"], ["places"]),
            node("Gather", ["table", "places"], ["position"]),
            node("Add", ["x", "position"], ["y"]),
        ],
        [("x", FLOAT, ["batch", 1, "frames"])],
        [("y", FLOAT, ["batch", 1, "frames"])],
        {
            "two": np.array(2),
            "zero": np.array(0),
            "one": np.array(1),
            "table": np.ones(100, np.float32),
        },
    )
    found = discover(model)
    assert parameters(found)["limit.frames"] == "100"
    assert any(own.evidence.startswith("The graph fails above 100") for own in found.parameters)


@pytest.mark.parametrize("scarce", ["memory", "time"])
def test_no_larger_size_is_tried_without_memory_or_time(scarce, discover, monkeypatch):
    if scarce == "memory":
        full = MemoryLimit("RAM", 2**30, 0, "/proc/meminfo")
        monkeypatch.setattr(limits, "read_limits", lambda: (full,))
    else:
        clock = itertools.count()
        monkeypatch.setattr(limits.time, "process_time", lambda: float(next(clock)))
    found = discover(pooled("ReduceMean", axes=[1]))
    assert parameters(found)["limit.frames"] == "64"
    assert any("larger sizes were not tried" in own.evidence for own in found.parameters)


def test_a_dim_with_one_size_is_fixed(discover):
    model = onnx_model(
        [node("MatMul", ["x", "weights"], ["y"])],
        [("x", FLOAT, ["batch", "features"])],
        [("y", FLOAT, ["batch", 3])],
        {"weights": np.ones((64, 3), np.float32)},
    )
    found = discover(model)
    assert found.inputs[0].dims == (64,)
    assert parameters(found) == {}


def test_a_fixed_batch(discover):
    found = discover(valid(batch=2))
    assert found.max_batch_size == 2
    assert "Rows: the graph has a fixed batch of 2." in found.notes


# -- outputs


def test_a_size_that_depends_on_values_has_no_name_without_rows(discover):
    model = onnx_model(
        [node("NonZero", ["x"], ["places"])],
        [("x", FLOAT, ["frames", "features"])],
        [("places", INT64, [2, "count"])],
    )
    found = discover(onnx_model_of_signs(model), batched=False)
    assert found.outputs[0].dims == (2, -1)
    assert "axes.places" not in parameters(found)
    assert any("Its size is not checked." in note for note in found.notes)


def onnx_model_of_signs(model):
    """Let the first node read only the positive elements."""
    model.graph.node[0].input[0] = "positive"
    model.graph.node.insert(0, node("Relu", ["x"], ["positive"]))
    return model


def test_an_output_of_another_rank_than_declared_is_refused(discover):
    model = onnx_model(
        [node("Squeeze", ["x"], ["y"])],
        [("x", FLOAT, [1, 1, "frames"])],
        [("y", FLOAT, [1, "frames"])],
    )
    with pytest.raises(Undecided, match="found 1 dims in an execution, expected the 2"):
        discover(model)


def test_a_graph_that_draws_random_numbers_is_refused(discover):
    model = onnx_model(
        [node("RandomNormalLike", ["x"], ["noise"]), node("Add", ["x", "noise"], ["y"])],
        [("x", FLOAT, ["batch", 4])],
        [("y", FLOAT, ["batch", 4])],
    )
    with pytest.raises(Undecided, match="draws random numbers"):
        discover(model)


# -- states


def test_a_named_state_is_kept_for_a_sequence(discover):
    found = discover(stateful())
    assert parameters(found) == {"state.state": "state_out"}
    assert names(found.inputs) == ["x"]
    assert names(found.outputs) == ["y"]
    assert "sequence_batching" in found.text("graph.onnx")


@pytest.mark.parametrize(
    ("state", "result"), [("h0", "hn"), ("state", "stateN"), ("past", "present"), ("c_in", "c_out")]
)
def test_names_of_states(state, result, discover):
    found = discover(stateful(state, result))
    assert found.keeps_states == ((state, result) != ("past", "present"))


def test_a_model_without_rows_keeps_several_sequences():
    text = Configuration(0, keeps_states=True).text("graph.onnx")
    assert "oldest { max_candidate_sequences: 16 }" in text


def test_requests_may_send_the_states(discover):
    found = discover(stateful(), keep_states=False)
    assert names(found.inputs) == ["x", "state"]
    assert not found.keeps_states


def test_a_state_without_such_names_is_a_question(discover):
    found = discover(stateful("s", "q"))
    assert names(found.inputs) == ["x", "s"]
    (question,) = found.questions
    assert [(own.key, own.value) for own in question.added] == [("state.s", "q")]
    assert '# parameters { key: "state.s"' in found.text("graph.onnx")


def test_an_output_that_forgets_the_state_is_no_state(discover):
    found = discover(stateful(next=node("Tile", ["x", "four"], ["state_out"])))
    assert not found.keeps_states
    assert not found.questions


def test_an_output_that_copies_the_input_is_no_state(discover):
    assert not discover(stateful(next=node("Identity", ["state"], ["state_out"]))).keeps_states


def test_rows_of_a_state_at_dim_1(discover):
    given = parameters(discover(recurrent()))
    assert given["batch_axis.state"] == given["batch_axis.next"] == "1"


# -- values


def test_ids_and_token_types_have_the_ranges_of_their_tables(discover):
    model = onnx_model(
        [
            node("Gather", ["words", "ids"], ["a"]),
            node("Gather", ["types", "token_type_ids"], ["b"]),
            node("Add", ["a", "b"], ["y"]),
        ],
        [(name, INT64, ["batch", "tokens"]) for name in ("ids", "token_type_ids")],
        [("y", FLOAT, ["batch", "tokens", 4])],
        {"words": np.eye(30, 4, dtype=np.float32), "types": np.eye(2, 4, dtype=np.float32)},
    )
    found = discover(model)
    given = parameters(found)
    assert given["range.ids"] == "0..29"
    assert given["range.token_type_ids"] == "0..1"
    assert [tensor.optional for tensor in found.inputs] == [False, True]


def test_an_index_into_another_input_has_no_range(discover):
    model = onnx_model(
        [node("Gather", ["nodes", "edges"], ["y"])],
        [("nodes", FLOAT, ["count", 4]), ("edges", INT64, [2, "links"])],
        [("y", FLOAT, [2, "links", 4])],
    )
    found = discover(model)
    assert "range.edges" not in parameters(found)
    assert any("depends on" in note for note in found.notes)


def test_positions_that_matter_are_generated(discover):
    model = onnx_model(
        [
            node("Gather", ["words", "ids"], ["a"]),
            node("Gather", ["places", "position_ids"], ["b"]),
            node("Add", ["a", "b"], ["y"]),
        ],
        [(name, INT64, ["batch", "tokens"]) for name in ("ids", "position_ids")],
        [("y", FLOAT, ["batch", "tokens", 4])],
        {
            "words": np.eye(30, 4, dtype=np.float32),
            "places": np.random.default_rng(2).random((90, 4), np.float32),
        },
    )
    found = discover(model)
    assert parameters(found)["positions.position_ids"] == "tokens"
    assert parameters(found)["limit.tokens"] == "90"
    assert names(found.inputs) == ["ids"]


def test_a_number_that_changes_nothing_is_a_constant(discover):
    model = onnx_model(
        [node("Mul", ["gain", "zero"], ["nothing"]), node("Add", ["x", "nothing"], ["y"])],
        [("x", FLOAT, ["batch", 4]), ("gain", FLOAT, [])],
        [("y", FLOAT, ["batch", 4])],
        {"zero": np.float32(0)},
    )
    found = discover(model)
    assert parameters(found) == {"constant.gain": "1"}
    assert "does not depend on it" in found.parameters[0].evidence


def test_a_sampling_rate_is_assumed_and_asked_for(discover):
    model = onnx_model(
        [
            node("Cast", ["sr"], ["rate"], to=FLOAT),
            node("Mul", ["x", "rate"], ["y"]),
        ],
        [("x", FLOAT, ["batch", 4]), ("sr", INT64, [])],
        [("y", FLOAT, ["batch", 4])],
    )
    found = discover(model)
    assert parameters(found)["constant.sr"] == "16000"
    assert found.questions[0].text.startswith("Which sampling rate")


def test_a_value_for_all_rows_is_asked_for(discover):
    found = discover(rated())
    assert parameters(found).get("batch_axis.rate") == "none" or not found.max_batch_size


# -- samples


def chosen():
    """A graph that fails unless its input has the value 77 somewhere."""
    return onnx_model(
        [
            node("Equal", ["codes", "wanted"], ["same"]),
            node("NonZero", ["same"], ["places"]),
            node("Gather", ["places", "zero"], ["rows"]),
            node("Gather", ["rows", "zero"], ["first"]),
            node("Cast", ["first"], ["number"], to=FLOAT),
            node("Add", ["x", "number"], ["y"]),
        ],
        [("codes", INT64, [3]), ("x", FLOAT, [1, "frames"])],
        [("y", FLOAT, [1, "frames"])],
        {"wanted": np.array([77]), "zero": np.array(0)},
    )


def test_a_graph_that_needs_meaningful_values_asks_for_a_sample(discover):
    with pytest.raises(Undecided, match="--sample FILE"):
        discover(chosen())


@pytest.mark.parametrize("kind", ["npz", "json"])
def test_the_values_of_a_sample_are_used(kind, discover, tmp_path):
    file = tmp_path / f"sample.{kind}"
    codes, x = np.array([5, 77, 3]), np.ones((1, 6), np.float32)
    if kind == "npz":
        np.savez(file, codes=codes, x=x)
    else:
        inputs = [
            {"name": name, "shape": list(own.shape), "datatype": kind, "data": own.tolist()}
            for name, own, kind in (("codes", codes, "INT64"), ("x", x, "FP32"))
        ]
        file.write_text(json.dumps({"inputs": inputs}))
    found = discover(chosen(), sample=file)
    assert names(found.inputs) == ["codes", "x"]
    assert parameters(found)["axes.y"] == "frames"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"{}", "expected an .npz file or a JSON request"),
        (b'{"inputs": [{"name": "z", "shape": [1], "data": [1]}]}', "found 'z', expected inputs"),
        (b'{"inputs": [{"name": "codes", "shape": [2], "data": [1, 2]}]}', "expected INT64"),
        (b'{"inputs": [{"name": "codes", "shape": [3], "data": [1.5, 2, 3]}]}', "expected INT64"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused(content, error, discover, tmp_path):
    file = tmp_path / "sample.json"
    file.write_bytes(content)
    with pytest.raises(ArtifactFault, match=error):
        discover(chosen(), sample=file)


def test_texts_are_refused(discover):
    model = onnx_model(
        [node("Identity", ["x"], ["y"])],
        [("x", TensorProto.STRING, ["batch", 1])],
        [("y", TensorProto.STRING, ["batch", 1])],
    )
    with pytest.raises(Undecided, match="found strings, expected numbers"):
        discover(model)


def test_attention_over_ids_is_masked(discover):
    assert parameters(discover(attentive()))["mask.attention_mask"] == "tokens"


@pytest.mark.parametrize(
    ("works", "multiple"),
    [
        (lambda size: size < 64 or size % 32 == 0, 32),  # small sizes work because of rounding
        (lambda size: size % 4 == 0, 4),
        (lambda size: size <= 64, 1),  # the base is the largest size
        (lambda size: size <= 64 and size % 8 == 0, 8),
        (lambda size: size == 64, 64),
    ],
)
def test_the_multiple_is_that_of_larger_sizes_if_there_are_any(works, multiple):
    assert limits._multiple(64, works) == multiple
