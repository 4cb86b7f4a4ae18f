"""Experiments on small graphs: each decision of a configuration, and each rejected candidate."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import onnx
import pytest
from runtime.support.axis_graphs import attentive, recurrent, strided, valid
from runtime.support.graphs import onnx_text as graph

from ge_runtime.discovery import limits
from ge_runtime.discovery.configuration import Configuration
from ge_runtime.discovery.discover import Discovery
from ge_runtime.discovery.graph import Graph
from ge_runtime.discovery.sample import read_sample
from ge_runtime.discovery.study import Undecided
from ge_runtime.errors import ArtifactFault
from ge_runtime.memory.machine import MemoryLimit


@pytest.fixture
def discover(tmp_path):
    """Return a function that derives the configuration of a graph."""

    def derive(model: onnx.ModelProto, *, batched=True, sample=None, **options):
        path = tmp_path / "graph.onnx"
        onnx.save(model, path)
        opened = Graph(path, threads=1)
        given = {} if sample is None else read_sample(sample, opened.inputs)
        discovery = Discovery(opened, 16, sample=given, **options)
        return discovery.configuration(batched=batched)

    return derive


def parameters(found):
    return {own.key: own.value for own in found.parameters}


def names(tensors):
    return [tensor.name for tensor in tensors]


FRAMES = "(float[batch, frames, 4] x) => (float[batch, frames, 4] y)"
POOLED = "(float[batch, frames, 4] x) => (float[batch, 4] y)"
MEAN = graph(f"{POOLED} {{ y = ReduceMean <axes = [1], keepdims = 0> (x) }}")


def masked(content):
    """A sum over tokens that are multiplied by `content`, nodes that read `mask`."""
    return graph(
        "(int64[batch, tokens] ids, int64[batch, tokens] mask) => (float[batch, 4] y)"
        f"{{ v = Gather (table, ids) {content} f = Unsqueeze (w, last) k = Mul (v, f) "
        "y = ReduceSum <keepdims = 0> (k, tokens) }",
        table=np.random.default_rng(1).random((16, 4), np.float32),
        one=np.float32(1),
        last=np.array([2]),
        tokens=np.array([1]),
    )


def stateful(state="state", result="state_out", content="Mul (sum, half)"):
    """A cell whose answer is the sum of data and state, and whose state is half of that."""
    return graph(
        f"(float[batch, 1] x, float[batch, 4] {state}) => "
        f"(float[batch, 8] y, float[batch, 4] {result}) "
        f"{{ sum = Add (x, {state}) y = Concat <axis = 1> (sum, sum) {result} = {content} }}",
        half=np.float32(0.5),
        four=np.array([1, 4]),
    )


def looked_up(other, **tables):
    """The sum of two embeddings: of `ids`, and of the input `other`."""
    return graph(
        f"(int64[batch, tokens] ids, int64[batch, tokens] {other}) => (float[batch, tokens, 4] y)"
        f"{{ a = Gather (words, ids) b = Gather (others, {other}) y = Add (a, b) }}",
        words=np.eye(30, 4, dtype=np.float32),
        **tables,
    )


# Graph; parameters, None for those that are not set; inputs; the start of a note.
DECISIONS = {
    "a mask that stops the padding is generated": (
        masked("w = Cast <to = 1> (mask)"),
        {"mask.mask": "tokens"},
        "ids",
    ),
    "a mask that lets padding through is an input": (
        masked("n = Cast <to = 1> (mask) w = Add (n, one)"),
        {"mask.mask": None},
        "ids mask",
        "Input 'mask' is not generated as a mask",
    ),
    "an inverted mask is padded with 1": (
        masked("n = Cast <to = 1> (mask) w = Sub (one, n)"),
        {"pad.mask": "1", "padding.tokens": "neutral", "mask.mask": None},
        "ids mask",
    ),
    "independent frames make padding neutral": (
        graph(f"{FRAMES} {{ y = Mul (x, w) }}", w=np.arange(1, 5, dtype=np.float32)),
        {"padding.frames": "neutral"},
        "x",
    ),
    "a mean over frames leaves equal sizes": (MEAN, {"padding.frames": None}, "x"),
    # The length that experiments invent may hide all data, so their answers prove nothing.
    "padding is not neutral beside a rejected length": (
        graph(
            "(float[batch, frames, 4] x, int64[batch] n) => (float[batch, frames, 4] y)"
            "{ c = Unsqueeze (n, one) d = Cast <to = 1> (c) wide = Unsqueeze (d, one) "
            "mean = ReduceMean <axes = [1]> (x) offset = Add (mean, wide) y = Add (x, offset) }",
            one=np.array([1]),
        ),
        {"padding.frames": None, "lengths.n": None},
        "x n",
    ),
    "an answer without data proves nothing": (
        graph(f"{FRAMES} {{ y = Mul (x, none) }}", none=np.float32(0)),
        {"padding.frames": None},
        "x",
    ),
    "positions that matter are generated": (
        looked_up("position_ids", others=np.random.default_rng(2).random((90, 4), np.float32)),
        {"positions.position_ids": "tokens", "limit.tokens": "90"},
        "ids",
    ),
    "an index into another input has no range": (
        graph(
            "(float[count, 4] nodes, int64[2, links] edges) => (float[2, links, 4] y)"
            "{ y = Gather (nodes, edges) }"
        ),
        {"range.edges": None},
        "nodes edges",
        ".*depends on",
    ),
    "rows of a state at dim 1": (
        recurrent(),
        {"batch_axis.state": "1", "batch_axis.next": "1"},
        "x state",
    ),
    "attention is masked": (attentive(), {"mask.attention_mask": "tokens"}, "input_ids"),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_a_decision(case, discover):
    model, expected, inputs, *note = DECISIONS[case]
    found = discover(model)
    assert {key: parameters(found).get(key) for key in expected} == expected
    assert names(found.inputs) == inputs.split()
    assert all(any(re.match(start, own) for own in found.notes) for start in note)
    assert [own.name for own in found.inputs if own.optional] == ["mask"] * ("inverted" in case)
    assert not found.questions or "frames" not in case


def test_padding_that_is_neutral_only_as_0_is_a_question(discover):
    found = discover(graph(f"{POOLED} {{ y = ReduceL1 <axes = [1], keepdims = 0> (x) }}"))
    assert "padding.frames" not in parameters(found)
    (question,) = found.questions
    assert question.text.startswith("Is padding with 0 along frames neutral?")
    assert [own.key for own in question.added] == ["padding.frames"]


def test_first_dims_that_may_differ_are_no_rows(discover):
    model = graph(
        "(float[nodes, 4] x, float[edges, 4] y) => (float[edges, 4] z)"
        "{ total = ReduceMax <axes = [0]> (x) z = Add (y, total) }"
    )
    found = discover(model)
    assert found.max_batch_size == 0
    assert parameters(found)["axes.z"] == "edges"
    assert any("may differ from each other" in note for note in found.notes)


def test_a_graph_that_fails_with_one_row_has_no_rows(discover):
    model = graph(
        "(float[batch, 4] x) => (float[2, 4] y, int64[2, 4] places)"
        "{ y, places = TopK <axis = 0> (x, two) }",
        two=np.array([2]),
    )
    found = discover(model)
    assert found.max_batch_size == 0
    assert parameters(found)["min.rows"] == "2"


def test_strides_give_a_multiple_and_a_smallest_size(discover):
    given = parameters(discover(strided(), constants={"gain": "0.5"}))
    assert given["align.height"] == given["min.width"] == "4"
    assert given["constant.gain"] == "0.5"


def test_a_size_at_which_the_graph_fails_is_the_limit(discover):
    model = graph(
        "(float[batch, 1, frames] x) => (float[batch, 1, frames] y)"
        "{ shape = Shape (x) length = Gather (shape, two) places = Range (zero, length, one) "
        "position = Gather (table, places) y = Add (x, position) }",
        two=np.array(2),
        zero=np.array(0),
        one=np.array(1),
        table=np.ones(100, np.float32),
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
    found = discover(MEAN)
    assert parameters(found)["limit.frames"] == "64"
    assert any("larger sizes were not tried" in own.evidence for own in found.parameters)


def test_a_dim_with_one_size_is_fixed(discover):
    model = graph(
        "(float[batch, features] x) => (float[batch, 3] y) { y = MatMul (x, w) }",
        w=np.ones((64, 3), np.float32),
    )
    found = discover(model)
    assert found.inputs[0].dims == (64,)
    assert parameters(found) == {}


def test_a_fixed_batch(discover):
    found = discover(valid(batch=2))
    assert found.max_batch_size == 2
    assert "Rows: the graph has a fixed batch of 2." in found.notes
    assert "batch_axis.sums" not in parameters(found)


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


def test_a_size_that_depends_on_values_has_no_name_without_rows(discover):
    model = graph(
        "(float[frames, features] x) => (int64[2, count] y) { p = Relu (x) y = NonZero (p) }"
    )
    found = discover(model, batched=False)
    assert found.outputs[0].dims == (2, -1)
    assert "axes.y" not in parameters(found)
    assert any("Its size is not checked." in note for note in found.notes)


def test_a_named_state_is_kept_for_a_sequence(discover):
    found = discover(stateful())
    assert parameters(found) == {"state.state": "state_out"}
    assert names(found.inputs) == ["x"]
    assert names(found.outputs) == ["y"]
    assert "sequence_batching" in found.text("graph.onnx")
    found = discover(stateful(), keep_states=False)
    assert names(found.inputs) == ["x", "state"]
    assert not found.keeps_states
    text = Configuration(0, keeps_states=True).text("graph.onnx")
    assert "oldest { max_candidate_sequences: 16 }" in text


@pytest.mark.parametrize(
    ("state", "result"), [("h0", "hn"), ("state", "stateN"), ("past", "present"), ("c_in", "c_out")]
)
def test_names_of_states(state, result, discover):
    found = discover(stateful(state, result))
    assert found.keeps_states == ((state, result) != ("past", "present"))


def test_a_state_without_such_names_is_a_question(discover):
    found = discover(stateful("s", "q"))
    assert names(found.inputs) == ["x", "s"]
    (question,) = found.questions
    assert [(own.key, own.value) for own in question.added] == [("state.s", "q")]
    assert '# parameters { key: "state.s"' in found.text("graph.onnx")


@pytest.mark.parametrize("content", ["Tile (x, four)", "Identity (state)"])
def test_an_output_that_forgets_or_copies_the_state_is_no_state(content, discover):
    found = discover(stateful(content=content))
    assert not found.keeps_states
    assert not found.questions


def test_ids_and_token_types_have_the_ranges_of_their_tables(discover):
    found = discover(looked_up("token_type_ids", others=np.eye(2, 4, dtype=np.float32)))
    given = parameters(found)
    assert given["range.ids"] == "0..29"
    assert given["range.token_type_ids"] == "0..1"
    assert [tensor.optional for tensor in found.inputs] == [False, True]


def test_a_number_that_changes_nothing_is_a_constant(discover):
    model = graph(
        "(float[batch, 4] x, float gain) => (float[batch, 4] y)"
        "{ nothing = Mul (gain, zero) y = Add (x, nothing) }",
        zero=np.float32(0),
    )
    found = discover(model)
    assert parameters(found) == {"constant.gain": "1"}
    assert "does not depend on it" in found.parameters[0].evidence


def test_a_sampling_rate_is_assumed_and_asked_for(discover):
    model = graph(
        "(float[batch, 4] x, int64 sr) => (float[batch, 4] y)"
        "{ rate = Cast <to = 1> (sr) y = Mul (x, rate) }"
    )
    found = discover(model)
    assert parameters(found)["constant.sr"] == "16000"
    assert found.questions[0].text.startswith("Which sampling rate")


def chosen():
    """A graph that fails unless its input has the value 77 somewhere."""
    return graph(
        "(int64[3] codes, float[1, frames] x) => (float[1, frames] y)"
        "{ same = Equal (codes, wanted) places = NonZero (same) rows = Gather (places, zero) "
        "first = Gather (rows, zero) number = Cast <to = 1> (first) y = Add (x, number) }",
        wanted=np.array([77]),
        zero=np.array(0),
    )


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


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (
            graph("(float[1, 1, frames] x) => (float[1, frames] y) { y = Squeeze (x) }"),
            "found 1 dims in an execution, expected the 2",
        ),
        (
            graph(
                "(float[batch, 4] x) => (float[batch, 4] y)"
                "{ noise = RandomNormalLike (x) y = Add (x, noise) }"
            ),
            "draws random numbers",
        ),
        (chosen(), "--sample FILE"),
        (
            graph("(string[batch, 1] x) => (string[batch, 1] y) { y = Identity (x) }"),
            "found strings, expected numbers",
        ),
    ],
    ids=["another rank than declared", "random numbers", "meaningful values", "texts"],
)
def test_a_graph_that_cannot_be_studied_is_refused(model, error, discover):
    with pytest.raises(Undecided, match=error):
        discover(model)
