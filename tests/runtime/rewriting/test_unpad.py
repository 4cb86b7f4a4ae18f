"""Encoders without padding: equal answers, the nodes that are packed, and refusals."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser
from runtime.rewriting.encoders import FAMILIES, LONGEST, VOCABULARY, exported, write

from ge_runtime.errors import ArtifactFault
from ge_runtime.rewriting.graph import save
from ge_runtime.rewriting.proof import Proof
from ge_runtime.rewriting.unpad import unpad

LENGTHS = st.lists(st.integers(1, LONGEST), min_size=1, max_size=5)


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def feed(names, masks, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(2, VOCABULARY, masks.shape)
    ids[masks == 0] = 1
    given = {"input_ids": ids, "attention_mask": masks, "ids": ids, "mask": masks}
    given["token_type_ids"] = rng.integers(0, 2, masks.shape)
    return {name: given[name] for name in names}


def masks_of(lengths):
    return (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)


def assert_equal_answers(original, rewritten, masks):
    """Compare the answers; places of outputs without a token have no meaning."""
    inputs = feed([value.name for value in original.get_inputs()], masks)
    for one, other in zip(original.run(None, inputs), rewritten.run(None, inputs), strict=True):
        assert one.shape == other.shape
        if one.shape[:2] == masks.shape and one.ndim > 2:
            one, other = one[masks != 0], other[masks != 0]
        np.testing.assert_allclose(other, one, atol=2e-5)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """The family, the sessions of the original and the rewritten graph, and the rewrite."""
    path = write(tmp_path_factory.mktemp("encoder"), exported(request.param))
    found = unpad(path)
    return request.param, session(path.read_bytes()), session(found.model), found


class TestFamilies:
    @settings(max_examples=10, deadline=None)
    @given(lengths=LENGTHS)
    def test_answers_are_those_of_the_original(self, family, lengths):
        _, original, rewritten, _ = family
        assert_equal_answers(original, rewritten, masks_of(lengths))

    def test_all_layers_are_packed(self, family):
        name, _, _, found = family
        assert found.mask == "attention_mask"
        layers = 2 * (4 if name == "modernbert" else 6)
        assert sum(kind in ("MatMul", "Gemm") for kind in found.packed) == layers

    def test_inputs_and_outputs_stay_the_same(self, family):
        _, original, rewritten, _ = family
        for one, other in (
            (original.get_inputs(), rewritten.get_inputs()),
            (original.get_outputs(), rewritten.get_outputs()),
        ):
            assert [(v.name, v.type, v.shape) for v in one] == [
                (v.name, v.type, v.shape) for v in other
            ]


@pytest.mark.parametrize("opset", [13, 18])
def test_each_opset_of_the_exporter(tmp_path, opset):
    path = write(tmp_path, exported("bert", opset))
    found = unpad(path)
    assert_equal_answers(session(path.read_bytes()), session(found.model), masks_of([5, 2, 9]))
    onnx.checker.check_model(found.model)


@pytest.mark.parametrize(
    "masks",
    [
        pytest.param([[0, 0, 1, 1], [1, 1, 1, 1]], id="padded on the left"),
        pytest.param([[1, 0, 1, 0], [0, 1, 0, 1]], id="with holes"),
    ],
)
def test_any_mask(tmp_path, masks):
    path = write(tmp_path, exported("max"))
    original, rewritten = session(path.read_bytes()), session(unpad(path).model)
    assert_equal_answers(original, rewritten, np.array(masks))


def test_rows_do_not_see_each_other_in_padded_places(tmp_path):
    path = write(tmp_path, exported("bert"))
    rewritten = session(unpad(path).model)
    masks = masks_of([3, 7])
    inputs = feed([value.name for value in rewritten.get_inputs()], masks)
    found = rewritten.run(["last_hidden_state"], inputs)[0]
    np.testing.assert_array_equal(found[0, 3:], np.broadcast_to(found[0, 2], (4, 16)))


def test_a_row_without_tokens_leaves_the_others_unchanged(tmp_path):
    path = write(tmp_path, exported("minilm"))
    original, rewritten = session(path.read_bytes()), session(unpad(path).model)
    masks = np.array([[1, 1, 1], [0, 0, 0], [1, 0, 0]])
    inputs = feed(["input_ids", "attention_mask"], masks)
    one, other = original.run(None, inputs)[0], rewritten.run(None, inputs)[0]
    np.testing.assert_allclose(other[[0, 2]], one[[0, 2]], atol=2e-5)


LAYER = """
<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>
encoder (int64[b,t] ids, int64[b,t] mask) => (float[b,t,8] y)
{{
  x = Gather (table, ids)
  {snippet}
  q = MatMul (z, w)
  k = Transpose <perm = [0, 2, 1]> (q)
  s = MatMul (q, k)
  f = Cast <to = 1> (mask)
  n = Sub (one, f)
  g = Mul (n, low)
  u = Reshape (g, middle)
  a = Add (s, u)
  p = Softmax <axis = -1> (a)
  c = MatMul (p, q)
  y = MatMul (c, w)
}}
"""


def layer(snippet, opset=17):
    """Return a graph that computes z [b, t, 8] of x [b, t, 8] by `snippet`."""
    rng = np.random.default_rng(5)

    def random(*shape):
        return rng.normal(0, 0.5, shape).astype(np.float32)

    weights = {
        "table": random(VOCABULARY, 8),
        "w": random(8, 8),
        "wide": random(8, 16),
        "narrow": random(16, 8),
        "bias": random(8),
        "places": random(LONGEST, 8),
        "one": np.float32(1),
        "low": np.float32(-1e4),
        "scale": np.float32(0.05),
        "zero8": np.uint8(128),
        "hundred": np.float32(100),
        "w8": rng.integers(-3, 4, (8, 8)).astype(np.int8),
        "channels": np.abs(random(8)) + np.float32(0.1),
        "zeros8": np.zeros(8, np.uint8),
    }
    weights |= {f"at{n}": np.array([n], np.int64) for n in (0, 1, 2, 3, 4, 8)}
    weights |= {
        "many": np.array([2**31], np.int64),
        "last": np.array([-1], np.int64),
        "flat8": np.array([-1, 8], np.int64),
        "halves": np.array([4, 4], np.int64),
        "middle": np.array([0, 1, -1], np.int64),
        "heads": np.array([0, 0, 2, 4], np.int64),
        "joined": np.array([0, 0, 8], np.int64),
        "at12": np.array([1, 2], np.int64),
        "nought2": np.array([0, 0], np.int64),
        "many2": np.array([2**31, 2**31], np.int64),
    }
    model = parser.parse_model(LAYER.format(snippet=snippet, opset=opset))
    text = model.SerializeToString()
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in weights.items()
        if name.encode() in text
    )
    return model


IDENTITY = "z = Identity (x)"


def unpadded(model):
    with TemporaryDirectory() as folder:
        return unpad(write(Path(folder), model.SerializeToString()))


RULES = {
    "mean of the features": "m = ReduceMean <axes = [2]> (x) z = Sub (x, m)",
    "mean by a negative axis": "m = ReduceMean <axes = [-1]> (x) z = Sub (x, m)",
    "sum by an input": "m = ReduceSum (x, at2) z = Mul (x, m)",
    "normalisation": "z = LayerNormalization <axis = 2> (x, channels, bias)",
    "softmax of the features": "z = Softmax <axis = 2> (x)",
    "split": "a0, b0 = Split <axis = 2> (x, halves) z = Concat <axis = 2> (b0, a0)",
    "slice": "a0 = Slice (x, at4, many, at2) z = Concat <axis = -1> (a0, a0)",
    "flat layer": (
        "v = Reshape (x, flat8) l = Gemm <transB = 1> (v, w, bias) "
        "rt = Shape (x) z = Reshape (l, rt)"
    ),
    "flat shape": (
        "v = Reshape (x, flat8) l = MatMul (v, w) r0 = Shape (l) o = Expand (one, r0) "
        "i = Mul (l, o) rt = Shape (x) z = Reshape (i, rt)"
    ),
    "shape": "rt = Shape (x) o = Expand (one, rt) z = Add (x, o)",
    "part of a shape": (
        "rt = Shape <start = 1> (x) o = Expand (one, rt) o1 = Unsqueeze (o, at0) z = Add (x, o1)"
    ),
    "heads and back in one order": (
        "h0 = Reshape (x, heads) h1 = Transpose <perm = [0, 2, 1, 3]> (h0) h2 = Tanh (h1) "
        "h3 = Transpose <perm = [0, 2, 1, 3]> (h2) z = Reshape (h3, joined)"
    ),
    "positions": (
        "rt = Shape (ids) l = Slice (rt, at1, at2) o = Slice (places, at0, l) z = Add (x, o)"
    ),
    "positions with rows": (
        "rt = Shape (ids) l = Slice (rt, at1, at2) o = Slice (places, at0, l) "
        "o2 = Unsqueeze (o, at0) z = Add (x, o2)"
    ),
    "a vector for each row": (
        "r0 = Cast <to = 1> (ids) v = ReduceMax <axes = [1], keepdims = 1> (r0) "
        "o = Unsqueeze (v, at2) z = Add (x, o)"
    ),
    "one number in three dimensions": (
        "i1 = Unsqueeze (one, at0) i2 = Unsqueeze (i1, at0) i3 = Unsqueeze (i2, at0) "
        "z = Add (x, i3)"
    ),
    "views": ("i1 = Unsqueeze (x, at2) t1 = Tanh (i1) z = Squeeze (t1, at2)"),
    "int8 of a tensor": (
        "q8 = QuantizeLinear (x, scale, zero8) z = DequantizeLinear (q8, scale, zero8)"
    ),
    "int8 of rows": (
        "h0 = Abs (x) h1 = ReduceMax <axes = [-1]> (h0) h2 = Div (h0, h1) q1 = Mul (h2, hundred) "
        "q2 = Cast <to = 2> (q1) q3 = MatMulInteger (q2, w8, zero8) h3 = Cast <to = 1> (q3) "
        "z = Mul (h3, h1)"
    ),
    "wide layer": "h1 = MatMul (x, wide) h2 = Relu (h1) z = MatMul (h2, narrow)",
    "two values with tokens": "h1 = MatMul (x, w) h2 = Sigmoid (h1) z = Mul (x, h2)",
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_keeps_the_answers_and_packs_its_nodes(rule):
    model = layer(RULES[rule])
    found = unpadded(model)
    assert_equal_answers(session(model), session(found.model), masks_of([4, 1, 6]))
    # Every node that computes tokens is packed, and so is each embedding and linear layer.
    kept = {node.op_type for node in found.model.graph.node if node.output[0] in "xzhqm"}
    assert not kept - {"Gather"}, kept


KEPT = {
    "zeros before a sum": (
        "e = Unsqueeze (mask, at2) f2 = Cast <to = 1> (e) k0 = Mul (x, f2) "
        "s0 = ReduceSum (k0, at1) z = Add (x, s0)"
    ),
    "low numbers before a maximum": (
        "e = Unsqueeze (mask, at2) f2 = Cast <to = 9> (e) k0 = Where (f2, x, low) "
        "s0 = ReduceMax <axes = [1]> (k0) z = Add (x, s0)"
    ),
    "int8 of channels": (
        "q8 = QuantizeLinear <axis = 2> (x, channels, zeros8) "
        "z = DequantizeLinear <axis = 2> (q8, channels, zeros8)"
    ),
    "heads and back": (
        "h0 = Reshape (x, heads) h1 = Transpose <perm = [0, 2, 3, 1]> (h0) h2 = Tanh (h1) "
        "h3 = Transpose <perm = [0, 3, 1, 2]> (h2) z = Reshape (h3, joined)"
    ),
    "transposed heads": (
        "h0 = Reshape (x, heads) h1 = Transpose <perm = [0, 1, 3, 2]> (h0) z = Reshape (h1, joined)"
    ),
    "slice of tokens and features": "z = Slice (x, nought2, many2, at12)",
    "mean of tokens and features": "m = ReduceMean <axes = [1, 2]> (x) z = Add (x, m)",
    "pairs of tokens": (
        "r = ReduceSum (x, at2) k2 = Transpose <perm = [0, 2, 1]> (r) d = Mul (r, k2) "
        "z = MatMul (d, x)"
    ),
    "pairs of tokens by a table": (
        "i1 = Unsqueeze (mask, at1) i2 = Unsqueeze (mask, at2) i0 = Mul (i1, i2) "
        "e = Gather (table, i0) s0 = ReduceSum <keepdims = 0> (e, at2) z = Add (x, s0)"
    ),
    "the mask beside features": (
        "e = Unsqueeze (mask, at2) f2 = Cast <to = 1> (e) c9 = Concat <axis = 2> (x, f2) "
        "c1 = Slice (c9, at8, many, at2) s0 = ReduceSum (c1, at1) z = Add (x, s0)"
    ),
    "flat and transposed": (
        "v = Reshape (x, flat8) t1 = Transpose <perm = [1, 0]> (v) "
        "t2 = Transpose <perm = [1, 0]> (t1) rt = Shape (x) z = Reshape (t2, rt)"
    ),
    "a layer with a bias for each token": (
        "v = Reshape (x, flat8) t1 = Transpose <perm = [1, 0]> (v) "
        "t2 = Transpose <perm = [1, 0]> (t1) l = Gemm (v, w, t2) rt = Shape (x) "
        "z = Reshape (l, rt)"
    ),
    "a table of tokens": (
        "v = Reshape (x, flat8) i0 = Sub (mask, mask) e = Gather (v, i0) z = Add (x, e)"
    ),
    "split of the tokens": (
        "n0 = Shape (x) l = Slice (n0, at1, at2) l1 = Sub (l, at1) l2 = Concat <axis = 0> (at1, l1)"
        " a0, b0 = Split <axis = 1> (x, l2) z = Concat <axis = 1> (a0, b0)"
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_node_that_sees_padding_keeps_it(case):
    model = layer(KEPT[case])
    found = unpadded(model)
    # Those that compute padding into answers have equal answers without it.
    lengths = [5, 5] if case.endswith(" tokens") or " tokens " in case else [4, 1, 6]
    assert_equal_answers(session(model), session(found.model), masks_of(lengths))


def test_a_scale_of_rows_after_attention_is_packed():
    model = layer(IDENTITY)
    last = model.graph.node[-1]
    last.output[0] = "product"
    model.graph.node.extend(
        [
            onnx.helper.make_node("ReduceMax", ["c"], ["scale of rows"], axes=[-1]),
            onnx.helper.make_node("Mul", ["product", "scale of rows"], ["y"]),
        ]
    )
    found = unpadded(model)
    assert "Mul" in found.packed
    assert_equal_answers(session(model), session(found.model), masks_of([4, 1, 6]))


def test_softmax_before_opset_13_flattens_all_later_dimensions():
    model = layer(
        "h0 = Reshape (x, heads) h1 = Softmax <axis = 2> (h0) z = Reshape (h1, joined)", 12
    )
    assert_equal_answers(session(model), session(unpadded(model).model), masks_of([4, 1, 6]))


def test_weights_of_tokens_are_not_the_mask():
    model = layer("e = Cast <to = 1> (other) e1 = Unsqueeze (e, at2) z = Mul (x, e1)")
    add_mask(model)
    assert unpadded(model).mask == "mask"


def test_a_mask_that_is_computed_from_token_ids():
    model = layer(
        "pad = Constant <value = int64 {1}> () e = Equal (ids, pad) valid = Not (e) "
        "z = Identity (x)"
    )
    rewire(model, "f", 0, "valid")
    found = unpadded(model)
    assert found.mask == "f"
    assert_equal_answers(session(model), session(found.model), masks_of([4, 1, 6]))


def test_padding_on_the_left_is_filled_with_own_tokens(tmp_path):
    path = write(tmp_path, exported("bert"))
    rewritten = session(unpad(path).model)
    inputs = feed([v.name for v in rewritten.get_inputs()], np.array([[1, 1, 1], [0, 1, 1]]))
    found = rewritten.run(["last_hidden_state"], inputs)[0]
    inputs["input_ids"][0] = inputs["input_ids"][0][::-1]
    changed = rewritten.run(["last_hidden_state"], inputs)[0]
    np.testing.assert_array_equal(found[1], changed[1])
    assert not np.array_equal(found[0], changed[0])


def test_an_execution_without_valid_tokens_has_an_answer(tmp_path):
    path = write(tmp_path, exported("bge"))
    rewritten = session(unpad(path).model)
    inputs = feed([v.name for v in rewritten.get_inputs()], np.zeros((2, 3), np.int64))
    assert rewritten.run(None, inputs)[0].shape == (2, 16)


def test_values_and_weights_that_only_padding_needs_are_removed():
    found = unpadded(layer(RULES["shape"]))
    assert "x" not in {name for node in found.model.graph.node for name in node.output}
    found = unpadded(layer(IDENTITY))
    used = {name for node in found.model.graph.node for name in node.input}
    assert {tensor.name for tensor in found.model.graph.initializer} <= used


def drop(model, op_type):
    for node in model.graph.node:
        if node.op_type == op_type:
            node.op_type = "Identity"
            del node.attribute[:]


def rewire(model, output, place, name):
    for node in model.graph.node:
        if node.output[0] == output:
            node.input[place] = name


def add_mask(model):
    """Add the input `other`, of the type of the mask."""
    model.graph.input.add().CopyFrom(model.graph.input[1])
    model.graph.input[2].name = "other"


def two_masks(model):
    add_mask(model)
    rewire(model, "g", 1, "e2")


def without_layers(model):
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] == "w":
            node.op_type = "Mul"
            node.input[1] = "one"


def old_opset(model):
    model.opset_import[0].version = 10


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: drop(m, "Softmax"), "found no Softmax"),
        (lambda m: rewire(m, "a", 1, "one"), "expected a mask"),
        (old_opset, "found opset 10"),
        (without_layers, "found no linear layer"),
        (two_masks, "'mask' and 'other'"),
        (lambda m: m.CopyFrom(unpadded(layer(IDENTITY)).model), "unpadded before"),
    ],
    ids=["no attention", "no mask", "old", "no layer", "two masks", "unpadded"],
)
def test_a_graph_without_the_pattern_is_refused(change, reason):
    model = layer(
        "e2 = Cast <to = 1> (other) z = Identity (x)" if change is two_masks else IDENTITY
    )
    change(model)
    with pytest.raises(ArtifactFault, match=reason):
        unpadded(model)


def test_a_graph_that_computes_padding_into_answers_is_refused(tmp_path):
    path = write(
        tmp_path, layer("m = ReduceMean <axes = [1]> (x) z = Add (x, m)").SerializeToString()
    )
    found = unpad(path)
    target = tmp_path / "rewritten.onnx"
    save(found.model, path, target)
    with pytest.raises(ArtifactFault, match="found another answer to rows of 12, 7, 1, 3"):
        Proof(path, target, found, 1).verify()
