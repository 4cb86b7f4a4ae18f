"""INT8 with a scale per row: equal to its NumPy reference, and independent of other rows."""

import functools

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic
from runtime.support.configs import model_config, tensor
from runtime.support.graphs import onnx_model, onnx_text

from ge_runtime import Runtime, cli
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import ArtifactFault
from ge_runtime.rewriting.at_load import rewrite_graphs
from ge_runtime.rewriting.gelu import approximate_gelu
from ge_runtime.rewriting.int8 import Form, computed, find_layers, quantize, read_model
from ge_runtime.rewriting.int8_choice import quantized, write_int8

WIDTH = 64
RNG = np.random.default_rng(5)
UP = RNG.standard_normal((WIDTH, 2 * WIDTH)).astype(np.float32)
DOWN = RNG.standard_normal((2 * WIDTH, WIDTH)).astype(np.float32)
TABLE = RNG.standard_normal((4096, WIDTH)).astype(np.float32)
TABLE[:, 0] *= 8
node = helper.make_node


def feed_forward(opset=17):
    """Return a graph, x [batch, n, 64] to y: two linear layers, and Relu between them."""
    model = onnx_text(
        "(float[batch, n, 64] x) => (float[batch, n, 64] y) { wide = MatMul (x, up) "
        "moved = Add (wide, bias) positive = Relu (moved) y = MatMul (positive, down) }",
        up=UP,
        bias=RNG.standard_normal(2 * WIDTH).astype(np.float32),
        down=DOWN,
    )
    model.opset_import[0].version = opset
    return model


def one_layer(kind):
    """Return a graph of one layer of a kind, whose rows are x, and its inputs."""
    x = RNG.standard_normal((6, WIDTH)).astype(np.float32)
    weights = {"w": UP, "b": np.arange(2 * WIDTH, dtype=np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    dims, result = ["n", WIDTH], ["n", 2 * WIDTH]
    if kind == "Gemm":
        nodes, weights["w"] = [node("Gemm", ["x", "w", "b"], ["y"], transB=1)], UP.T.copy()
    elif kind == "Conv":
        nodes, weights["w"] = [node("Conv", ["x", "w", "b"], ["y"])], UP.T[:, :, None].copy()
        x, dims, result = x.reshape(2, 3, WIDTH).swapaxes(1, 2), ["b", WIDTH, "n"], ["b", "c", "n"]
    inputs = [("x", TensorProto.FLOAT, dims)]
    return onnx_model(nodes, inputs, [("y", TensorProto.FLOAT, result)], weights), x


@functools.cache
def session_of(content):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options)


def run(model, **inputs):
    return session_of(model.SerializeToString()).run(None, inputs)[0]


@functools.cache
def in_int8(blocks=1, zero=128):
    """Return `feed_forward` with both layers in INT8, the second in this form."""
    model = feed_forward()
    forms = {"positive": Form(zero, blocks=blocks)}
    quantize(model, find_layers(model), forms)
    return model


@pytest.fixture
def saved(tmp_path):
    """Return a function: a graph -> its path."""

    def save(model, name="model.onnx"):
        onnx.save(model, tmp_path / name)
        return tmp_path / name

    return save


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 5),
    tokens=st.integers(1, 6),
    size=st.sampled_from([0.0, 1e-20, 1e-3, 1.0, 1e3, 1e18]),
    form=st.sampled_from([(1, 128), (4, 128), (1, 24), (4, 24)]),
)
def test_a_row_has_the_same_bits_beside_rows_of_any_size(seed, rows, tokens, size, form):
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((1, tokens, WIDTH)).astype(np.float32)
    others = (size * rng.standard_normal((rows, tokens, WIDTH))).astype(np.float32)
    model = in_int8(*form)
    alone = run(model, x=own)
    place = int(rng.integers(rows + 1))
    together = run(model, x=np.insert(others, place, own, axis=0))
    np.testing.assert_array_equal(together[place], alone[0])


@given(
    seed=st.integers(0, 2**32 - 1),
    zero=st.sampled_from([24, 128]),
    blocks=st.sampled_from([1, 2, 4]),
    divided=st.booleans(),
    kind=st.sampled_from(["MatMul", "Gemm", "Conv"]),
)
def test_layers_equal_the_reference(seed, zero, blocks, divided, kind):
    rng = np.random.default_rng(seed)
    model, x = one_layer(kind)
    x = (x * rng.uniform(0.01, 10, x.shape)).astype(np.float32)
    divisors = rng.uniform(0.5, 4, WIDTH).astype(np.float32) if divided else None
    (layer,) = find_layers(model)
    form = Form(zero, divisors, blocks)
    expected = computed(layer, layer.rows(x), form)
    quantize(model, [layer], {"x": form})
    found = run(model, x=x)
    if kind == "Conv":
        found = found.swapaxes(1, 2).reshape(-1, 2 * WIDTH)
    bias = 0 if kind == "MatMul" else np.arange(2 * WIDTH)
    np.testing.assert_allclose(found, expected + bias, rtol=1e-5, atol=1e-4)
    if zero == 128:  # the low zero point is for rows that are mostly positive
        assert np.abs(expected - layer.rows(x) @ UP).max() < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("opset", [11, 13, 17, 18])
def test_each_opset_executes(opset):
    model = feed_forward(opset)
    x = RNG.standard_normal((2, 3, WIDTH)).astype(np.float32)
    expected = run(model, x=x)
    quantize(model, find_layers(model), {"positive": Form(24, blocks=4)})
    np.testing.assert_allclose(run(model, x=x), expected, atol=0.02 * np.abs(expected).max())


def test_dynamically_quantized_graph_gets_its_own_weights_back(saved, tmp_path):
    source = saved(feed_forward())
    target = tmp_path / "model_quantized.onnx"
    quantize_dynamic(source, target, per_channel=True)
    found = write_int8(target, tmp_path / "rows.onnx", threads=1)
    assert [layer.is_table for layer in found.chosen] == [False, False]
    operators = {each.op_type for each in found.model.graph.node}
    assert operators.isdisjoint({"DynamicQuantizeLinear", "MatMulInteger"})
    for layer, exact in zip(found.chosen, (UP, DOWN), strict=True):
        np.testing.assert_allclose(layer.weight, exact, atol=np.abs(exact).max() / 100)


def test_dynamically_quantized_convolutions_are_restored(saved, tmp_path):
    model, x = one_layer("Conv")
    target = tmp_path / "model_quantized.onnx"
    quantize_dynamic(saved(model), target)
    found = read_model(target)
    expected = run(model, x=x)
    np.testing.assert_allclose(run(found, x=x), expected, atol=0.02 * np.abs(expected).max())


def embedding():
    """Return a graph, ids [batch, n] to y: a large and a small embedding, and a linear layer."""
    return onnx_text(
        "(int64[batch, n] ids, int64[batch, n] kinds) => (float[batch, n, 128] y)"
        "{ x = Gather (table, ids) kind = Gather (small, kinds) sum = Add (x, kind) "
        "y = MatMul (sum, up) }",
        table=TABLE,
        small=TABLE[:4],
        up=UP,
    )


def test_large_embeddings_are_int8_if_their_error_is_small(saved):
    path = saved(embedding())
    sample = {name: RNG.integers(0, n, (2, 50)) for name, n in (("ids", 4096), ("kinds", 4))}
    found = quantized(path, sample, 0.99, threads=1)
    assert [layer.name for layer in found.chosen] == ["table", "up"]
    stored = {own.name: own.data_type for own in found.model.graph.initializer}
    assert "table" not in stored
    assert TensorProto.INT8 in stored.values()
    assert "1 embedding(s)" in str(found)
    found = quantized(path, sample, 0.9998, threads=1)
    assert [layer.name for layer in found.kept] == ["table"]


def test_random_ids_are_below_the_sizes_of_all_embeddings(saved):
    found = quantized(saved(embedding()), least_cosine=0.99, threads=1)
    assert "up" in {layer.name for layer in found.chosen}


def test_layers_with_too_much_error_stay_fp32(saved):
    # The second layer cancels almost all of its input, so an error in it is large.
    weak = np.repeat(DOWN[:, :1], WIDTH, axis=1) + 1e-4 * DOWN
    model = feed_forward()
    model.graph.node.append(node("MatMul", ["y", "steep"], ["z"]))
    centre = (np.eye(WIDTH) - 1 / WIDTH).astype(np.float32)
    model.graph.initializer.extend(
        [numpy_helper.from_array(centre, "steep"), numpy_helper.from_array(weak, "weak")]
    )
    model.graph.node[3].input[1] = "weak"
    model.graph.output[0].name = "z"
    found = quantized(saved(model), least_cosine=0.995, threads=1)
    assert {"weak", "steep"} <= {layer.name for layer in found.kept}
    assert [layer.name for layer in found.chosen] == ["up"]


def test_memory_of_the_results_is_planned(saved, tmp_path):
    from ge_runtime.engines.analysis.onnx_file import OnnxFile
    from ge_runtime.engines.analysis.onnx_graph import OnnxGraph

    write_int8(saved(feed_forward()), tmp_path / "rows.onnx", threads=1)
    graph = OnnxGraph.read(OnnxFile.read(tmp_path / "rows.onnx"))
    found = graph.intermediates({"x": (2, 3, WIDTH)})
    sizes = {own.name: own.nbytes for own in found.lifetimes}
    assert sizes["positive"] == 2 * 3 * 2 * WIDTH * 4
    assert sizes["int8/MatMulIntegerToFloat"] == 2 * 3 * 2 * WIDTH * 4


def no_linear_layer():
    return onnx_text("(float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }")


def foreign_product():
    return onnx_text(
        "(uint8[n, 64] x) => (int32[n, 64] y) { y = MatMulInteger (x, w) }",
        w=np.ones((WIDTH, WIDTH), np.int8),
    )


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (no_linear_layer, "found no linear layer, expected MatMul, Gemm or Conv"),
        (foreign_product, "found a product that `quantize_dynamic` does not write"),
        (lambda: feed_forward(opset=9), "found opset 9, expected 11 or later"),
        (in_int8, "found INT8 with a scale per row already, expected FP32"),
        (lambda: b"\xff\xff", "found no ONNX graph"),
        (lambda: None, "found no file, expected an ONNX graph"),
    ],
)
def test_command_refuses_with_the_reason(model, text, tmp_path, capsys):
    path, content = tmp_path / "model.onnx", model()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    assert cli.main(["quantize", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ge-runtime: {path}: found") or "MatMulInteger" in error
    assert text in error
    assert len(error.splitlines()) == 1
    assert {each.name for each in tmp_path.iterdir()} <= {"model.onnx"}


def test_command_writes_a_file_beside_the_graph(saved, tmp_path, capsys):
    np.savez(tmp_path / "sample.npz", x=np.ones((1, 2, WIDTH), np.float32))
    path = saved(feed_forward())
    arguments = ["--sample", str(tmp_path / "sample.npz"), "--least-cosine", "0.99"]
    assert cli.main(["quantize", str(path), *arguments]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"{tmp_path / 'model.int8.onnx'}: 2 of 2 linear layers (100% of")
    onnx.checker.check_model(onnx.load(tmp_path / "model.int8.onnx"))
    assert cli.main(["quantize", str(path), "-o", str(path)]) == 2
    with pytest.raises(SystemExit, match="2"):
        cli.main(["quantize", str(path), "--least-cosine", "1.5"])


def test_error_that_no_layer_keeps_is_refused(saved):
    with pytest.raises(
        ArtifactFault, match=r"whose INT8 keeps a mean cosine of 0\.9999999 to FP32"
    ):
        quantized(saved(feed_forward()), least_cosine=0.9999999, threads=1)


def test_model_is_rewritten_at_its_first_load(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("GE_RUNTIME_CACHE", str(tmp_path / "cache"))
    path = saved(feed_forward())
    config = model_config(
        [tensor("x", "FP32", [-1, WIDTH], allow_ragged_batch=True)],
        [tensor("y", "FP32", [-1, WIDTH])],
        {"axes.x": "n", "axes.y": "n", "limit.n": "8", "int8": "rows", "warmup": "none"},
    )
    lines = []
    for _ in range(2):
        runtime = Runtime.open(path.parent, config, instance_name="rows_0")
        (line,) = [own for own in runtime.report if "int8 model.onnx" in own]
        lines.append(line)
        runtime.close()
    assert "2 of 2 linear layers" in lines[0]
    assert lines[1] == f"{lines[0]}; kept in {tmp_path / 'cache' / 'graphs'}"
    torch = [Artifact(path.with_suffix(".pt2"), "torch", "")]
    with pytest.raises(ArtifactFault, match="found engine torch on cpu, expected onnxruntime"):
        rewrite_graphs(RuntimeConfig.parse(config, cores=1), torch, 1)
    monkeypatch.delenv("GE_RUNTIME_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    with pytest.raises(ArtifactFault, match="no cache folder for the rewritten graph"):
        Runtime.open(path.parent, config, instance_name="rows_0")


GELU = {
    "erf": "a = Div (x, root) e = Erf (a) s = Add (e, one) m = Mul (x, s) y = Mul (m, half)",
    "erf of half": "h = Mul (half, x) a = Mul (x, factor) e = Erf (a) s = Add (one, e) "
    "y = Mul (h, s)",
    "erf of another value": "a = Div (x, root) n = Neg (x) e = Erf (a) s = Add (e, one) "
    "m = Mul (n, s) y = Mul (m, half)",
    "erf that is read twice": "a = Div (x, root) e = Erf (a) s = Add (e, one) m = Mul (x, s) "
    "h = Mul (m, half) y = Add (h, e)",
    "gelu": "y = com.microsoft.Gelu (x)",
}
NUMBERS = {"root": 2**0.5, "one": 1.0, "half": 0.5, "factor": 0.5**0.5}


@pytest.mark.parametrize("name", GELU)
def test_gelu_is_approximated_where_the_graph_computes_it(name):
    weights = ", ".join(f"float {key} = {{{value}}}" for key, value in NUMBERS.items())
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>\n'
        f"g (float[n] x) => (float[n] y) <{weights}> {{ {GELU[name]} }}"
    )
    x = np.linspace(-6, 6, 400, dtype=np.float32)
    exact = run(model, x=x)
    approximate_gelu(model)
    is_gelu = name in ("erf", "erf of half", "gelu")
    assert [own.op_type for own in model.graph.node].count("FastGelu") == is_gelu
    np.testing.assert_allclose(run(model, x=x), exact, atol=5e-4)


def test_a_stage_without_linear_layers_stays_fp32(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("GE_RUNTIME_CACHE", str(tmp_path / "cache"))
    other = tmp_path / "other.onnx"
    onnx.save(no_linear_layer(), other)
    stages = [Artifact(path, "onnxruntime", "named") for path in (saved(feed_forward()), other)]
    parameters = {"int8": "rows", "cost": "launch_us=1, element_ns=1, element2_ns=0"}
    config = RuntimeConfig.parse(
        model_config([tensor("x", "FP32", [WIDTH])], [tensor("y", "FP32", [WIDTH])], parameters),
        cores=1,
    )
    (first, second), lines = rewrite_graphs(config, stages, 1)
    assert first.path != stages[0].path
    assert second is stages[1]
    assert "other.onnx: FP32 is kept: parameter 'int8'" in lines[1]
    with pytest.raises(ArtifactFault, match="found no linear layer"):
        rewrite_graphs(config, stages[1:], 1)
