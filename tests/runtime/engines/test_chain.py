import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from runtime.engines.conformance_engine import EngineConformance, token_batch
from runtime.support.graphs import ENCODER, NONZERO, onnx_model, write

from ge_runtime.devices import HostDevice
from ge_runtime.engines.artifact import find_artifacts
from ge_runtime.engines.backend import open_engine
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.engines.chain import ChainEngine
from ge_runtime.errors import ArtifactFault, EngineFault, EngineLost, OutOfMemory
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.specs import DType

pytestmark = pytest.mark.brute_force

WEIGHTS = np.arange(4 * 3, dtype=np.float32).reshape(4, 3) - 5


class Memory(HostDevice):
    """Bytes full of what no answer may contain; `given` is the last that was allocated."""

    def _obtain(self, nbytes):
        self.given = super()._obtain(nbytes)
        self.given[...] = 0xFF
        return self.given


def bind(chain, *largest):
    """Binds the chain for inputs of up to these shapes; returns its arena."""
    memory = Memory()
    chain.bind(largest, memory)
    assert memory.allocated_bytes.keys() <= {"between stages"}
    return memory.given


# -- the suite that every engine passes -------------------------------------------------------


def save_split(graph, folder):
    """The graph in two stages: one that copies its inputs, and the rest."""
    back = graph.onnx()
    values = [(v.name, v.type.tensor_type.elem_type, dims_of(v)) for v in back.graph.input]
    front = onnx_model(
        [helper.make_node("Identity", [name], [f"{name}.handed"]) for name, _, _ in values],
        values,
        [(f"{name}.handed", element, dims) for name, element, dims in values],
    )
    names = {name for name, _, _ in values}
    for node in back.graph.node:
        node.input[:] = [f"{name}.handed" if name in names else name for name in node.input]
    for value in back.graph.input:
        value.name += ".handed"
    onnx.save(front, folder / "front.onnx")
    onnx.save(back, folder / "back.onnx")


def dims_of(value):
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


class Declared:
    """A chain as a config.pbtxt declares it: without the tensors between its stages."""

    def __init__(self, chain):
        self._chain = chain
        inputs, outputs = chain.signature.inputs, chain.signature.outputs
        shown = tuple(tensor for tensor in outputs if not tensor.name.endswith(".handed"))
        self.signature = Signature(inputs, shown)

    def __getattr__(self, name):
        return getattr(self._chain, name)


class TestChainEngine(EngineConformance):
    @pytest.fixture
    def opened(self, tmp_path):
        def open_chain(graph, threads=1):
            save_split(graph, tmp_path)
            artifacts = find_artifacts(tmp_path, "onnxruntime", ("front", "back"))
            outputs = [value.name for value in graph.onnx().graph.output]
            chain = open_engine(*artifacts, threads=threads, outputs=outputs)
            bind(chain, {t.name: largest(t) for t in chain.signature.inputs})
            return Declared(chain)

        return open_chain


def largest(graph_tensor):
    return tuple(64 if dim is None else dim for dim in graph_tensor.dims)


# -- what is handed over ----------------------------------------------------------------------


class Stage:
    """An engine of one NumPy function, from arrays by name to results by name."""

    def __init__(self, inputs, outputs, function):
        self.signature = Signature(tuple(inputs), tuple(outputs))
        self.function = function
        self.runs = []
        self.closed = 0

    def run(self, inputs, outputs):
        self.runs.append((dict(inputs), dict(outputs)))
        for target in outputs.values():
            if target is not None:
                target[...] = 0  # an engine may write its outputs before it has read all inputs
        results = self.function(inputs)
        given = {}
        for name, target in outputs.items():
            if target is None:
                given[name] = results[name]
            else:
                target[...] = results[name]
                given[name] = target
        return given

    shapes = None
    lost = False

    def bind(self, largest, memory):
        self.bound = largest

    def weights_bytes(self):
        return 100

    def device_io_bytes(self):
        return 10

    def intermediates(self, shapes):
        """Two buffers, the second of which lives longer: a byte for each element of the inputs."""
        nbytes = sum(math.prod(shape) for shape in shapes.values())
        return Intermediates((Lifetime("early", nbytes, 0, 0), Lifetime("late", nbytes, 0, 2)))

    def close(self):
        self.closed += 1


def row(name, dtype=DType.FP32, symbol="n"):
    return GraphTensor(name, dtype, (None,), (symbol,))


def plus_one(source, target):
    return Stage([row(source)], [row(target)], lambda inputs: {target: inputs[source] + 1})


def counting(*names):
    """A chain that adds 1 from each name to the next, in stages named after what they give."""
    stages = {target: plus_one(source, target) for source, target in pairwise(names)}
    return stages, ChainEngine.of(stages, names[-1:])


ONES = np.ones(5, np.float32)


def test_consumer_reads_the_array_that_its_producer_wrote():
    stages, chain = counting("a", "b", "c")
    arena = bind(chain, {"a": (8,)})
    assert chain.run({"a": ONES}, {"c": None})["c"].tolist() == [3] * 5
    written, read = stages["b"].runs[0][1]["b"], stages["c"].runs[0][0]["b"]
    assert written is read
    assert np.shares_memory(read, arena)


def test_callers_array_is_handed_on_if_the_tensor_is_wanted_as_well():
    stages, _ = counting("a", "b", "c")
    chain = ChainEngine.of(stages, ["b", "c"])
    assert bind(chain, {"a": (8,)}).nbytes == 0
    wanted = {"b": np.empty(5, np.float32), "c": np.empty(5, np.float32)}
    results = chain.run({"a": ONES}, wanted)
    assert results["b"] is stages["c"].runs[0][0]["b"] is wanted["b"]
    assert results["c"] is wanted["c"]
    assert (wanted["c"] == 3).all()


def test_tensors_that_no_stage_needs_together_share_bytes():
    _, chain = counting("a", "b", "c", "d", "e")
    handover = chain.plan([{"a": (16,)}])
    assert handover.sizes == {"b": 64, "c": 64, "d": 64}
    assert handover.packing.peak == handover.packing.lower_bound == 128


def test_plan_holds_the_largest_of_all_shapes():
    wide = Stage(
        [GraphTensor("x", DType.FP16, (None, None), ("rows", "tokens"))],
        [
            GraphTensor("by_row", DType.FP32, (None, 100), ("rows", None)),
            GraphTensor("by_token", DType.FP64, (None,), ("tokens",)),
        ],
        lambda _: {},
    )
    head = Stage(wide.signature.outputs, [row("y")], lambda _: {})
    chain = ChainEngine.of({"wide": wide, "head": head}, ["y"])
    handover = chain.plan([{"x": (8, 10)}, {"x": (2, 40)}])
    assert handover.sizes == {"by_row": 8 * 400, "by_token": 40 * 8}


def test_a_size_that_depends_on_data_is_not_planned(tmp_path):
    write(NONZERO, "onnxruntime", tmp_path)
    (tmp_path / "model.onnx").rename(tmp_path / "find.onnx")
    back = onnx_model(
        [helper.make_node("Shape", ["where"], ["shape"])],
        [("where", TensorProto.INT64, [1, "n"])],
        [("shape", TensorProto.INT64, [2])],
    )
    onnx.save(back, tmp_path / "count.onnx")
    artifacts = find_artifacts(tmp_path, "auto", ("find", "count"))
    chain = open_engine(*artifacts, threads=1, outputs=["shape"])
    assert bind(chain, {"x": (9,)}).nbytes == 0
    for count in (1, 3):
        x = np.array([0] * 5 + [7] * count, np.float32)
        assert chain.run({"x": x}, {"shape": None})["shape"].tolist() == [1, count]


def test_later_stages_get_c_order_from_arrays_that_an_engine_allocates():
    image = GraphTensor("image", DType.FP32, (None, None))
    turned = Stage([row("a")], [image], lambda i: {"image": np.outer(i["a"], [1, 2]).T})
    flat = Stage([image], [row("y")], lambda i: {"y": i["image"].reshape(-1)})
    chain = ChainEngine.of({"turned": turned, "flat": flat}, ["y"])
    assert chain.run({"a": ONES[:2]}, {"y": None})["y"].tolist() == [1, 1, 2, 2]
    assert flat.runs[0][0]["image"].flags.c_contiguous


def test_intermediates_follow_stage_by_stage_and_span_what_is_handed_over():
    _, chain = counting("a", "b", "c", "d")
    assert chain.intermediates({"a": (5,)}) == Intermediates(
        (
            Lifetime("b/early", 5, 0, 0),
            Lifetime("b/late", 5, 0, 2),
            Lifetime("c/early", 5, 3, 3),
            Lifetime("c/late", 5, 3, 5),
            Lifetime("d/early", 5, 6, 6),
            Lifetime("d/late", 5, 6, 8),
            Lifetime("b", 20, 0, 5),
            Lifetime("c", 20, 3, 8),
        )
    )


@given(data=st.data())
def test_planned_answers_are_those_of_arrays_of_their_own(data):
    """Random stages, each a sum of some earlier tensors, weighted so that all differ."""
    sizes = {"small": data.draw(st.integers(1, 6)), "large": data.draw(st.integers(1, 6))}
    known, stages = {"x": "small", "y": "large"}, {}
    for index in range(data.draw(st.integers(1, 7))):
        sources = data.draw(st.lists(st.sampled_from(sorted(known)), min_size=1, unique=True))
        symbol = known[sources[0]]
        name = f"t{index}"
        stages[name] = weighted_sum(sources, known, name, index + 2)
        known[name] = symbol
    asked = [name for name in stages if data.draw(st.booleans())]
    taken = {t.name for stage in stages.values() for t in stage.signature.inputs}
    asked = [name for name in stages if name in asked or name not in taken]
    inputs = {
        name: np.arange(1, sizes[known[name]] + 1, dtype=np.float32)
        for name in ("x", "y")
        if name in taken
    }
    expected = ChainEngine.of(stages, asked).run(inputs, dict.fromkeys(asked))
    chain = ChainEngine.of(stages, asked)
    bind(chain, {"x": (6,), "y": (6,)})
    results = chain.run(inputs, dict.fromkeys(asked))
    assert all(
        target is not None
        for stage in stages.values()
        for _, outputs in stage.runs[1:]  # the first is that of the chain without an arena
        for name, target in outputs.items()
        if name not in asked
    )
    for name in asked:
        np.testing.assert_array_equal(results[name], expected[name])


def weighted_sum(sources, symbols, target, weight):
    def function(inputs):
        total = sum(weight**k * inputs[source].sum() for k, source in enumerate(sources))
        return {target: np.full(len(inputs[sources[0]]), total % 1009, np.float32)}

    inputs = [row(source, symbol=symbols[source]) for source in sources]
    return Stage(inputs, [row(target, symbol=symbols[sources[0]])], function)


# -- opening, failing, closing ----------------------------------------------------------------


def save_head(folder, name="head", width=4):
    model = onnx_model(
        [helper.make_node("MatMul", ["embedding", "weights"], ["logits"])],
        [("embedding", TensorProto.FLOAT, ["rows", width])],
        [("logits", TensorProto.FLOAT, ["rows", 3])],
        {"weights": np.resize(WEIGHTS, (width, 3))},
    )
    onnx.save(model, folder / f"{name}.onnx")


def open_pipeline(folder, engine="onnxruntime", outputs=("logits",)):
    path = write(ENCODER, engine, folder)
    path.rename(path.with_name(f"encoder{path.suffix}"))
    artifacts = find_artifacts(folder, "auto", ("encoder", "head"))
    return open_engine(*artifacts, threads=1, outputs=outputs)


@pytest.mark.parametrize("engine", ["onnxruntime", "torch"])
def test_stages_of_different_engines_make_one(tmp_path, engine):
    save_head(tmp_path)
    chain = open_pipeline(tmp_path, engine)
    assert [tensor.name for tensor in chain.signature.outputs] == ["embedding", "logits"]
    bind(chain, {"input_ids": (8, 32), "attention_mask": (8, 32)})
    for rows, tokens in [(8, 32), (1, 1), (3, 7)]:
        inputs, embedding = token_batch(rows, tokens)
        logits = np.empty((rows, 3), np.float32)
        assert chain.run(inputs, {"logits": logits})["logits"] is logits
        np.testing.assert_allclose(logits, embedding @ WEIGHTS, rtol=1e-4, atol=1e-4)
    chain.close()


def test_all_stages_that_cannot_be_opened_are_reported(tmp_path):
    save_head(tmp_path)
    for name in ("first", "last"):
        (tmp_path / f"{name}.onnx").write_bytes(b"no graph")
    artifacts = find_artifacts(tmp_path, "auto", ("first", "head", "last"))
    with pytest.raises(ArtifactFault) as raised:
        open_engine(*artifacts, threads=1, outputs=["logits"])
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == [
        str(tmp_path / "first.onnx"),
        str(tmp_path / "last.onnx"),
    ]


def test_stages_that_do_not_fit_are_not_left_open(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(
        "ge_runtime.engines.onnx.OnnxEngine.close", lambda engine: closed.append(engine)
    )
    save_head(tmp_path, width=5)
    with pytest.raises(ArtifactFault, match="the stages encoder, head do not fit together"):
        open_pipeline(tmp_path)
    assert len(closed) == 2


@pytest.mark.parametrize("kind", [EngineFault, EngineLost, OutOfMemory])
def test_fault_of_a_stage_keeps_its_kind_and_names_the_stage(kind):
    stages, chain = counting("a", "b", "c")

    def fail(_):
        raise kind("no more")

    stages["c"].function = fail
    with pytest.raises(kind) as raised:
        chain.run({"a": ONES}, {"c": None})
    assert str(raised.value) == "stage 'c': no more"
    assert isinstance(raised.value.__cause__, kind)


def test_intermediates_after_an_open_size_are_unsized():
    found = GraphTensor("found", DType.FP32, (None,))
    find = Stage([row("a")], [found], lambda _: {})
    count = Stage([found], [row("y")], lambda _: {})
    chain = ChainEngine.of({"find": find, "count": count}, ["y"])
    intermediates = chain.intermediates({"a": (5,)})
    assert [one.name for one in intermediates.lifetimes] == ["find/early", "find/late"]
    assert intermediates.unsized == 2


def test_intermediates_are_unknown_if_those_of_a_stage_are():
    stages, chain = counting("a", "b", "c")
    stages["b"].intermediates = lambda _: None
    assert chain.intermediates({"a": (5,)}) is None


def test_chain_is_lost_with_any_of_its_stages():
    stages, chain = counting("a", "b", "c")
    assert not chain.lost
    stages["c"].lost = True
    assert chain.lost


@pytest.mark.parametrize("unpadded", [False, True])
def test_a_chain_is_unpadded_if_a_stage_is(unpadded):
    stages = {"encoder": SimpleNamespace(unpadded=unpadded), "head": object()}
    assert ChainEngine(stages, None, ()).unpadded is unpadded
