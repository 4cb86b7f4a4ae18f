"""`ge-runtime compare` on the simulated card, which rounds FP16 as a card does."""

import json
import math
import shutil
from itertools import pairwise

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from runtime.cli.test_build import GEARS, ON_CARD, environment  # noqa: F401
from runtime.support.configs import ENCODER_CONFIG
from runtime.support.graphs import ENCODER, onnx_model, write

from ascend_simulator.codes import Code, Refused
from ascend_simulator.models.dumps import DumpConfig
from ge_runtime import cli
from ge_runtime.cli.compare import compare
from ge_runtime.cli.compare.cut_graphs import CutGraph, first_exceeding, spread
from ge_runtime.cli.compare.report import Comparison, Difference, First, Layer, difference
from ge_runtime.errors import ArtifactFault

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node
WEIGHT = np.random.default_rng(5).standard_normal((4, 4)).astype(np.float32)

LOSSY_CONFIG = """
name: "lossy"
backend: "python"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "range.x" value { string_value: "-1..1" } }
"""


def lossy():
    """Add and subtract 2048, which rounds to multiples of 2 in FP16."""
    return onnx_model(
        [
            node("MatMul", ["x", "weight"], ["product"], name="project"),
            node("Relu", ["product"], ["positive"], name="activate"),
            node("Mul", ["one", "two"], ["offset"], name="constant"),
            node("Add", ["positive", "offset"], ["far"], name="push"),
            node("Sub", ["far", "offset"], ["back"], name="pull"),
            node("Relu", ["back"], ["y"], name="last"),
        ],
        [("x", FLOAT, ["n", 4])],
        [("y", FLOAT, ["n", 4])],
        {"weight": WEIGHT, "one": np.float32(1024), "two": np.float32(2)},
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A model compiled for FP16 by the first test that uses it."""
    return {}, tmp_path_factory.mktemp("compiled") / "lossy"


@pytest.fixture
def folder(tmp_path, compiled, environment):  # noqa: F811
    """A copy of the compiled model's folder."""
    done, source = compiled
    if not done:
        (source / "1").mkdir(parents=True)
        onnx.save(lossy(), source / "1" / "model.onnx")
        (source / "config.pbtxt").write_text(LOSSY_CONFIG + ON_CARD)
        assert run("build", source, "--precision", "fp16") == 0
        done["compiled"] = True
    return shutil.copytree(source, tmp_path / "lossy")


def run(*arguments):
    return cli.main([*map(str, arguments)])


def printed_json(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_parts_find_the_layer_that_loses_accuracy(folder, tmp_path):
    found = compare(folder, None, by="parts")
    assert found.exceeds_limit
    report = found.as_json()
    json.dumps(report, allow_nan=False)
    assert report["first"]["node"] == "pull"
    assert report["first"]["relative"] > 0.05
    assert report["first"]["alone"]["relative"] > 0.05  # it rounds its inputs
    assert report["outputs"]["y"]["relative"] > 0.05
    errors = {layer["tensor"]: layer["relative"] for layer in report["layers"]}
    assert errors.keys() >= {"back", "far", "y"}
    assert errors["far"] < 0.01
    assert report["compiled"] <= 3
    printed = "\n".join(found.lines())
    assert "model.om on npu:0, AscendSimulator, against model.onnx on the CPU" in printed
    assert "inputs of seed 0 at batch 4" in printed
    assert "first layer beyond 0.01: pull (Sub), tensor back, relative error 0." in printed
    assert "computed alone, on the CPU's inputs: 0." in printed
    found.draw(tmp_path / "layers.png")
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


def test_a_layer_with_a_small_error_of_its_own_amplifies_earlier_errors():
    small, large = Difference(1, 0.001, 0.1), Difference(0.9, 0.5, 9)
    layer = Layer(7, "t", "n", "Sub", large)
    found = Comparison("title", "inputs", 0.01, {"y": large}, [layer], 9, 2, First(layer, small))
    assert found.lines()[-1] == (
        "computed alone, on the CPU's inputs: 0.001, so it amplifies earlier errors"
    )


@pytest.mark.brute_force
def test_a_dump_finds_the_layer_that_loses_accuracy(folder):
    found = compare(folder, None)
    report = found.as_json()
    json.dumps(report, allow_nan=False)
    assert report["dumped"]
    assert not report["compiled"]
    assert report["first"]["node"] == "pull"
    assert report["first"]["relative"] > 0.05
    # Alone it is exact: its inputs are rounded, within the limit.
    assert report["first"]["alone"]["relative"] < 0.01
    assert [layer["tensor"] for layer in report["layers"]] == [
        *("product", "positive", "far", "back", "y")
    ]
    assert (
        report["unmatched_layers"]
        == report["unmatched_operators"]
        == report["first"]["unmeasured"]
        == []
    )
    printed = "\n".join(found.lines())
    assert "5 of 5 layers, by the card's dump" in printed
    assert "computed alone, on the card's inputs: " in printed
    assert ", so it amplifies earlier errors" in printed


@pytest.mark.brute_force
def test_fused_layers_are_listed(tmp_path, environment):  # noqa: F811
    """ATC names a fused operator by its parts."""
    folder = tmp_path / "lossy"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(LOSSY_CONFIG + ON_CARD)
    ends = ([("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])], {"far": np.float32(2048)})
    separate = [
        node("Neg", ["x"], ["negative"], name="turn"),
        node("Abs", ["negative"], ["positive"], name="lift"),
        node("Add", ["positive", "far"], ["y"], name="push"),
    ]
    fused = [node("Abs", ["x"], ["both"], name="turnlift"), node("Add", ["both", "far"], ["y"])]
    onnx.save(onnx_model(fused, *ends), folder / "1" / "model.onnx")
    assert run("build", folder, "--precision", "fp16") == 0
    onnx.save(onnx_model(separate, *ends), folder / "1" / "model.onnx")
    compared = compare(folder, None, limit=0.0001)  # smaller than the error of the input in FP16
    found = compared.as_json()
    assert [layer["tensor"] for layer in found["layers"]] == ["positive", "y"]
    assert found["unmatched_layers"] == ["negative"]
    assert found["unmatched_operators"] == ["Add_1"]  # without a name, only the output is found
    assert (found["first"]["tensor"], found["first"]["unmeasured"]) == ("positive", ["negative"])
    printed = "\n".join(compared.lines())
    assert "not found on the card, because fused or folded: turn (Neg)" in printed
    assert "only on the card: Add_1" in printed
    assert printed.endswith("or a layer that the card has fused with it: turn (Neg)")


@pytest.mark.brute_force
def test_without_a_dump_layers_are_measured_by_parts(folder, monkeypatch, capsys):
    # CANN's documents say that containers do not support dumps.
    monkeypatch.setattr(DumpConfig, "read", refuse)
    assert run("compare", folder, "--by", "dump") == 2
    assert "--by dump: found no dump of model.om, expected CANN to write one" in (
        capsys.readouterr().err
    )
    found = compare(folder, None)
    assert not found.dumped
    assert found.first.layer.node == "pull"


def refuse(_config, what):
    if what.startswith("set_dump"):  # acl.init also reads a configuration
        raise Refused(Code.INVALID_DUMP_CONFIG, "found no dump here")


@pytest.mark.slow
def test_every_layer_can_be_measured(folder, capsys):
    assert run("build", folder, "--precision", "origin") == 0
    capsys.readouterr()
    assert (
        run("compare", folder, "--every", "--by", "parts", "--cuts", "2", "--format", "json") == 0
    )
    found = printed_json(capsys)
    assert found["first"] is None
    assert [layer["tensor"] for layer in found["layers"]] == [
        *("product", "positive", "far", "back", "y")
    ]
    assert found["layer_count"] == 5
    assert found["compiled"] == 3
    assert all(layer["relative"] < 1e-6 for layer in found["layers"])
    assert run("compare", folder) == 0
    assert "all outputs are within 0.01" in capsys.readouterr().out


def test_inputs_of_a_file(folder, capsys, tmp_path):
    np.savez(tmp_path / "zeros.npz", x=np.zeros((4, 4), np.float32))
    capsys.readouterr()
    assert run("compare", folder, "--inputs", tmp_path / "zeros.npz") == 0
    assert f"inputs of {tmp_path / 'zeros.npz'}" in capsys.readouterr().out
    np.savez(tmp_path / "other.npz", y=np.zeros((4, 4), np.float32))
    assert run("compare", folder, "--inputs", tmp_path / "other.npz") == 2


@pytest.mark.slow
def test_inputs_have_the_runtimes_masks_and_gears(tmp_path, capsys):
    folder = tmp_path / "encoder"
    write(ENCODER, "onnxruntime", folder / "1")
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + GEARS + ON_CARD)
    assert run("build", folder) == 0
    capsys.readouterr()
    assert run("compare", folder, "--every") == 0
    assert "at batch 1, tokens 8" in capsys.readouterr().out
    assert run("compare", folder, "--gear", "batch=8,tokens=32", "--seed", "3") == 0
    assert "inputs of seed 3 at batch 8, tokens 32" in capsys.readouterr().out
    assert run("compare", folder, "--gear", "tokens=9", "--limit", "0.5") == 2
    assert "found tokens=9, expected one of: batch=1,tokens=8; " in capsys.readouterr().err


def test_models_that_cannot_be_compared_are_refused(folder, capsys):
    (folder / "1" / "model.om").unlink()
    capsys.readouterr()
    assert run("compare", folder) == 2
    err = capsys.readouterr().err
    assert "found none, expected model.simulator.om or model.om, for AscendSimulator: " in err
    (folder / "1" / "model.onnx").unlink()
    assert run("compare", folder) == 2
    assert "model.onnx: file not found, expected the graph" in capsys.readouterr().err
    with (folder / "config.pbtxt").open("a") as config:
        config.write('parameters { key: "stages" value { string_value: "a, b" } }\n')
    assert run("compare", folder) == 2
    assert "found parameter 'stages', expected one graph" in capsys.readouterr().err
    for limit in ("-1", "inf", "small"):
        with pytest.raises(SystemExit):
            run("compare", folder, "--limit", limit)


# -- the graph, cut ------------------------------------------------------------------------------


def test_tensors_that_depend_on_the_inputs(tmp_path):
    onnx.save(lossy(), tmp_path / "model.onnx")
    graph = CutGraph(tmp_path / "model.onnx")
    assert graph.tensors == ["product", "positive", "far", "back", "y"]
    assert graph.before("far") == ["product", "positive"]
    assert graph.inputs_of("far") == ["positive"]
    assert graph.fixed("far") == ["offset"]


def test_a_part_contains_only_the_needed_nodes(tmp_path):
    onnx.save(lossy(), tmp_path / "model.onnx")
    part = CutGraph(tmp_path / "model.onnx").computing(["positive"], None)
    assert [own.op_type for own in part.graph.node] == ["MatMul", "Relu"]
    assert [own.name for own in part.graph.initializer] == ["weight"]


def test_a_node_with_a_subgraph_is_not_cut_out(tmp_path):
    branch = helper.make_graph(
        [node("Add", ["product", "product"], ["twice"])],
        "branch",
        [],
        [helper.make_tensor_value_info("twice", FLOAT, None)],
    )
    model = onnx_model(
        [
            node("MatMul", ["x", "weight"], ["product"]),
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Cast", ["sum"], ["positive"], to=TensorProto.BOOL),
            node("If", ["positive"], ["y"], then_branch=branch, else_branch=branch),
        ],
        [("x", FLOAT, ["n", 4])],
        [("y", FLOAT, None)],
        {"weight": WEIGHT},
    )
    onnx.save(model, tmp_path / "model.onnx")
    graph = CutGraph(tmp_path / "model.onnx")
    assert sorted({*graph.inputs_of("y")}) == ["positive", "product"]
    assert graph.alone("y", {}) is None


def test_an_unreadable_graph_is_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"not ONNX")
    with pytest.raises(ArtifactFault, match="not a readable ONNX file"):
        CutGraph(tmp_path / "model.onnx")


INF, NAN = math.inf, math.nan


def floats(*values):
    return np.array(values, np.float32)


def test_difference_of_floats():
    found = difference(floats(3, 4.5), floats(3, 4))
    assert found.relative == pytest.approx(0.1)
    assert found.largest == 0.5
    assert found.cosine == pytest.approx(27 / 5 / math.hypot(3, 4.5))
    assert found.exceeds(0.09)
    assert not found.exceeds(0.11)


def test_equal_arrays_are_within_any_limit():
    for equal in (floats(1, 2), floats(0, 0), floats(), floats(INF, -INF, NAN, 1)):
        found = difference(equal, equal.copy())
        assert (found.relative, found.largest, found.cosine) == (0, 0, pytest.approx(1))
        assert not found.exceeds(0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (floats(INF, 1), floats(70000, 1)),
        (floats(NAN, 1), floats(2, 1)),
        (floats(INF), floats(-INF)),
        (floats(1), floats(0)),
        (floats(1, 2), floats(1)),
        (floats(1), np.array([1], np.float16)),
    ],
)
def test_infinite_differences(found, expected):
    assert difference(found, expected).relative == INF
    assert difference(found, expected).exceeds(1e9)


def test_difference_of_integers_and_booleans():
    found = difference(np.array([1, 2, 3, 9]), np.array([1, 2, 3, 4]))
    assert found.relative == 0.25
    assert found.largest == 5
    assert math.isnan(found.cosine)
    found = difference(np.array([True, False]), np.array([True, True]))
    assert found.relative == 0.5
    assert math.isnan(found.largest)
    assert difference(np.array([1]), np.array([1])).relative == 0


class NameGraph:
    """Tensors t0, t1, ...; `inputs` has the numbers of the inputs of each."""

    def __init__(self, inputs):
        self._inputs = {f"t{at}": [f"t{each}" for each in own] for at, own in enumerate(inputs)}

    def before(self, name):
        found = set()
        rest = [*self._inputs[name]]
        while rest:
            each = rest.pop()
            if each not in found:
                found.add(each)
                rest += self._inputs[each]
        return sorted(found, key=lambda each: int(each[1:]))

    def inputs_of(self, name):
        return self._inputs[name]


@st.composite
def graphs(draw):
    """A graph, its last tensor, and the tensors beyond the limit, which include the last."""
    count = draw(st.integers(1, 40))
    inputs = [
        draw(st.lists(st.integers(0, place - 1), unique=True, max_size=3)) if place else []
        for place in range(count)
    ]
    beyond = {f"t{place}" for place in draw(st.sets(st.integers(0, count - 1)))}
    return NameGraph(inputs), f"t{count - 1}", beyond | {f"t{count - 1}"}


@given(graphs(), st.integers(1, 9))
def test_the_found_tensor_is_beyond_and_its_inputs_are_not(case, cuts):
    graph, last, beyond = case
    found = first_exceeding(graph, last, lambda names: {n: n in beyond for n in names}, cuts)
    assert found in beyond
    assert not beyond & {*graph.inputs_of(found)}
    assert found == last or found in graph.before(last)


@pytest.mark.parametrize("first", [0, 1, 499, 998, 999])
def test_a_chain_needs_few_cuts(first):
    graph = NameGraph([[]] + [[place] for place in range(999)])
    calls = []

    def measure(names):
        calls.append(names)
        return {name: int(name[1:]) >= first for name in names}

    assert first_exceeding(graph, "t999", measure, 8) == f"t{first}"
    assert len(calls) <= 5  # 9**4 > 999, and one call for the inputs
    assert all(len(names) <= 8 for names in calls)


@given(st.integers(-1, 50), st.integers(1, 60), st.integers(1, 9))
def test_cuts_are_evenly_spaced(low, gap, most):
    points = spread(low, low + gap, most)
    assert len(points) == min(most, gap - 1)
    assert len({*points}) == len(points)
    ends = [low, *points, low + gap]
    widths = [b - a for a, b in pairwise(ends)]
    assert max(widths) - min(widths) <= 1
