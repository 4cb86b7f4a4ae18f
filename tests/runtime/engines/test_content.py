"""Models that are alike in everything but one item each give their own answers."""

import os
import shutil
import subprocess
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from runtime.support.graphs import onnx_model
from runtime.support.steps import step_config, tensor

from ge_runtime.engines import content
from ge_runtime.engines.analysis.protobuf import varint
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.backend import HostBackend
from ge_runtime.engines.content import ContentHashes
from ge_runtime.engines.onnx_session import PROCESS_SESSIONS, GraphExecution
from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.service.model_cache import ModelCache
from ge_runtime.steps.onnx_step import OnnxStep
from ge_runtime.steps.torch_step import TorchStep

NAMES = ("model.onnx", "m.ONNX", "net.bin", "net")
IO = {"input": [tensor("x", dims=[-1])], "output": [tensor("y", dims=[-1])]}


def external(location, name="k"):
    """A tensor of one FP32 element in an external file."""
    made = TensorProto(name=name, dims=[1], data_type=TensorProto.FLOAT)
    made.data_location = TensorProto.EXTERNAL
    made.external_data.add(key="location", value=location)
    return made


def product(factor):
    """y = x * k. `factor` is k, or the location of the file with k."""
    node = helper.make_node("Mul", ["x", "k"], ["y"])
    inputs, outputs = [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.FLOAT, ["n"])]
    if not isinstance(factor, str):
        return onnx_model([node], inputs, outputs, {"k": np.array([factor], np.float32)})
    model = onnx_model([node], inputs, outputs)
    model.graph.initializer.append(external(factor))
    return model


def write(path, model):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def weights(path, factor):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.array([factor], np.float32).tobytes())
    return path


def replace(path, factor, how):
    """Give the file other content of the same size."""
    if how == "rename":
        weights(path.with_name("later"), factor).replace(path)
    elif how == "in place":
        with path.open("r+b") as file:
            file.write(np.array([factor], np.float32).tobytes())
    else:
        path.unlink()
        path.symlink_to(weights(path.with_name(f"blob {factor}"), factor))


@pytest.fixture
def answers():
    """Open the models of backend: "onnxruntime", all at once, and return their answers to 1."""
    opened = []

    def answer(*folders, name="model.onnx"):
        steps = []
        for folder in folders:
            step = OnnxStep.open(step_config(default_model_filename=name, **IO), folder)
            opened.append(step)
            steps.append(step)
            step.check()
        return [step.run({"x": np.ones(1, np.float32)})["y"].item() for step in steps]

    yield answer
    for step in opened:
        step.close()


@pytest.mark.parametrize(
    ("name", "location"),
    [(NAMES[0], "k.bin"), (NAMES[1], "w/k.bin"), (NAMES[2], "./w/../w/k.bin"), (NAMES[3], "k.bin")],
)
def test_equal_graphs_with_other_weights(answers, tmp_path, name, location):
    for folder, factor in (("a", 2.0), ("b", 3.0)):
        write(tmp_path / folder / name, product(location))
        (tmp_path / folder / "w").mkdir()
        weights(tmp_path / folder / location, factor)
    assert answers(tmp_path / "a", tmp_path / "b", name=name) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("location", "how"), [("k.bin", "rename"), ("w/k.bin", "in place"), ("k.bin", "link")]
)
def test_replaced_weights_are_read_at_the_next_load(answers, tmp_path, location, how):
    write(tmp_path / "model.onnx", product(location))
    path = weights(tmp_path / location, 5.0)
    assert answers(tmp_path) == [5.0]
    replace(path, 11.0, how)
    assert answers(tmp_path) == [11.0]


@pytest.mark.parametrize("how", ["rename", "in place", "link"])
def test_a_replaced_graph_is_read_at_the_next_load(answers, tmp_path, how):
    path = write(tmp_path / "model.onnx", product(5.0))
    assert answers(tmp_path) == [5.0]
    later = write(tmp_path / "blobs" / "later", product(11.0))
    if how == "rename":
        later.replace(path)
    elif how == "in place":
        path.write_bytes(later.read_bytes())
    else:
        path.unlink()
        path.symlink_to(later)
    assert answers(tmp_path) == [11.0]


def test_equal_content_at_other_paths_is_one_session(tmp_path):
    paths = [
        write(tmp_path / folder / name, product("w/k.bin"))
        for folder, name in (("a", "model.onnx"), ("b", "net.bin"))
    ]
    for path in paths:
        weights(path.parent / "w" / "k.bin", 2.0)
    shared = [PROCESS_SESSIONS.acquire(path, 1) for path in paths]
    assert shared[0].session is shared[1].session
    for own in shared:
        own.release()


@pytest.mark.skipif(shutil.which("cc") is None, reason="the library needs a C compiler")
def test_other_libraries_with_operators_are_other_sessions(tmp_path):
    path, library = write(tmp_path / "model.onnx", product(2.0)), tmp_path / "operators.so"
    source = "void *RegisterCustomOps(void *options, const void *api) { return 0; } int build = %d;"
    sessions = []
    for build in (1, 2):
        (tmp_path / "source.c").write_text(source % build)
        command = ["cc", "-shared", "-fPIC", "-o", tmp_path / "later.so", tmp_path / "source.c"]
        subprocess.run(command, check=True)
        (tmp_path / "later.so").replace(library)
        execution = GraphExecution(operators=(str(library),))
        sessions += [PROCESS_SESSIONS.acquire(path, 1, execution) for _ in range(2)]
    assert len({id(own.session) for own in sessions}) == 2
    for own in sessions:
        own.release()


def test_other_settings_are_other_sessions(tmp_path):
    path = write(tmp_path / "model.onnx", product(2.0))
    settings = [(1, {}), (2, {}), (1, {"optimization": "ORT_DISABLE_ALL"}), (1, {"parallel": True})]
    opened = [PROCESS_SESSIONS.acquire(path, n, GraphExecution(**own)) for n, own in settings]
    assert len({id(own.session) for own in opened}) == len(settings)
    for own in opened:
        own.release()


# --------------------------------------------------------------------- torch and the service


def torch_file(path, factor, form):
    torch = pytest.importorskip("torch", reason="the torch engine needs torch")

    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("k", torch.tensor([factor]))

        def forward(self, x):
            return x * self.k

    class Named(Product):
        def forward(self, x):
            return {"y": x * self.k}

    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "script":
        torch.jit.script(Product()).save(str(path))
    else:
        shapes = ({0: torch.export.Dim.DYNAMIC},)
        program = torch.export.export(Named(), (torch.ones(2),), dynamic_shapes=shapes)
        torch.export.save(program, path)
    return path


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    ("name", "form"), [("model.pt", "script"), ("net.bin", "script"), ("m.PT2", "program")]
)
def test_torch_graphs_with_other_weights(tmp_path, name, form):
    steps = []
    output = [tensor("y" if form == "program" else "OUTPUT__0", dims=[-1])]
    fields = {"input": IO["input"], "output": output, "default_model_filename": name}
    for folder, factor in (("a", 2.0), ("b", 3.0)):
        torch_file(tmp_path / folder / name, factor, form)
        steps.append(TorchStep.open(step_config(**fields), tmp_path / folder))
        steps[-1].check()
    found = [step.run({"x": np.ones(1, np.float32)})[output[0]["name"]].item() for step in steps]
    assert found == [2.0, 3.0]


@pytest.fixture
def cached():
    """Return the answers to 1 of artifacts that one device service has open at once."""
    cache = ModelCache(HostBackend("cpu"))

    def answer(engine, *paths):
        models = [
            cache.acquire([Artifact(path, engine, "")], threads=1, outputs=["y"]) for path in paths
        ]
        x = np.ones(1, np.float32)
        return [model.engine.run({"x": x}, {"y": None})["y"].item() for model in models]

    yield answer
    cache.close()


@pytest.mark.parametrize("name", ["model.onnx", "net"])
def test_service_with_onnx_graphs_with_other_weights(cached, tmp_path, name):
    paths = [write(tmp_path / folder / name, product("w/k.bin")) for folder in "ab"]
    for path, factor in zip(paths, (2.0, 3.0), strict=True):
        weights(path.parent / "w" / "k.bin", factor)
    assert cached("onnxruntime", *paths) == [2.0, 3.0]
    replace(paths[0].parent / "w" / "k.bin", 7.0, "in place")
    assert cached("onnxruntime", *paths) == [7.0, 3.0]


# ------------------------------------------------------------------- hashes and external files


def test_file_is_read_again_only_if_it_may_have_changed(tmp_path, monkeypatch):
    path, reads = write(tmp_path / "model.onnx", product("k.bin")), []
    read = content._digest_and_locations
    monkeypatch.setattr(
        content, "_digest_and_locations", lambda each: reads.append(each.name) or read(each)
    )
    weights(tmp_path / "k.bin", 1.0)
    contents = ContentHashes(lambda: time.time_ns() + 10**10)
    first = contents.of(path)
    assert contents.of(path) == first
    assert reads == ["model.onnx", "k.bin"]
    weights(tmp_path / "k.bin", 2.0)
    assert contents.of(path) != first
    assert reads == ["model.onnx", "k.bin", "k.bin"]


def test_modification_time_that_is_set_back_hides_no_change(tmp_path):
    path = weights(tmp_path / "model.pt2", 1.0)
    contents = ContentHashes(lambda: time.time_ns() + 10**10)
    first, times = contents.of(path), path.stat()
    weights(path, 2.0)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert contents.of(path) != first


def everywhere():
    """A model with an external tensor in each place that the format has, by location."""
    model = product(1.0)
    node = helper.make_node

    def constant(location, **fields):
        return node("Constant", [], [location], **{"value": external(location), **fields})

    inner = helper.make_graph([constant("in a branch")], "inner", [], [])
    inner.initializer.append(external("weights of a branch"))
    sparse = onnx.SparseTensorProto(values=external("sparse"), indices=external("indices"))
    inner.sparse_initializer.append(sparse)
    default = helper.make_attribute("default", external("default of a function"))
    function = helper.make_function(
        "own", "F", [], ["z"], [constant("in a function")], [helper.make_opsetid("", 17)], [],
        [default],
    )  # fmt: skip
    model.functions.append(function)
    several = onnx.AttributeProto(name="several", type=onnx.AttributeProto.TENSORS)
    several.tensors.append(external("several"))
    own = node("Own", [], ["z"], domain="own", deep=inner)
    own.attribute.append(several)
    sparse_value = onnx.AttributeProto(name="value", type=onnx.AttributeProto.SPARSE_TENSOR)
    sparse_value.sparse_tensor.CopyFrom(
        onnx.SparseTensorProto(values=external("sparse attribute"), indices=external("its indices"))
    )
    own.attribute.append(sparse_value)
    model.graph.node.extend([own, constant("in a node")])
    return model, {
        "in a branch", "weights of a branch", "sparse", "indices", "default of a function",
        "in a function", "several", "sparse attribute", "its indices", "in a node",
    }  # fmt: skip


@pytest.mark.parametrize("window", [64, 2**16])
def test_external_files_are_found_wherever_they_are_named(tmp_path, monkeypatch, window):
    monkeypatch.setattr(content._Locations, "_WINDOW", window)
    model, expected = everywhere()
    path = write(tmp_path / "model", model)
    assert {file.name for file in ContentHashes().files(path)} == {"model", *expected}
    contents = ContentHashes()
    digests = {contents.of(path)}
    for location in expected:
        weights(tmp_path / location, 1.0)
        digests.add(contents.of(path))
    assert len(digests) == 1 + len(expected)


def field(number, body):
    return varint(number << 3 | 2) + varint(len(body)) + body


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b"\xa3\x06\x0a\x02ab\xa4\x06", id="a group, which protobuf skips"),
        pytest.param(b"\x8d\x06abcd\x89\x06abcdefgh\x88\x06\x01", id="unknown numbers"),
        pytest.param(b"\xd2\x05\x07unknown", id="an unknown field"),
    ],
)
def test_fields_of_other_versions_are_skipped(tmp_path, before):
    entry = field(13, before + field(2, b"k.bin") + before + field(1, b"location"))
    path = tmp_path / "model"
    path.write_bytes(before + field(7, before + field(5, before + entry)))
    assert [file.name for file in ContentHashes().files(path)] == ["model", "k.bin"]


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"PK\x03\x04 location", id="another format"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\x3a\xff\xff\xff\xff\x7flocation", id="truncated"),
        pytest.param(b"\xa4\x06location", id="the end of no group"),
        pytest.param(b"\x3a\x80location" + b"\x80" * 20, id="an endless number"),
    ],
)
def test_damaged_file_has_a_content(tmp_path, damaged):
    path = tmp_path / "model.onnx"
    path.write_bytes(damaged)
    assert ContentHashes().files(path) == [path]
    assert ContentHashes().of(path) == ContentHashes().of(path)


def test_messages_that_are_nested_too_deeply_are_not_followed(tmp_path):
    graph = field(5, external("k.bin").SerializeToString())
    for _ in range(40):  # node, attribute, graph
        graph = field(1, field(5, field(6, graph)))
    path = tmp_path / "model"
    path.write_bytes(field(7, graph))
    assert ContentHashes().files(path) == [path]


@pytest.mark.parametrize(
    "location", ["missing", "", ".", "a\0b", "x" * 5000, "/dev/zero", "pipe", "../../.."]
)
def test_external_file_that_is_no_file_is_not_read(tmp_path, location):
    os.mkfifo(tmp_path / "pipe")
    path = write(tmp_path / "model", product(location))
    assert ContentHashes().of(path) == ContentHashes().of(path)


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(ArtifactFault, match="found no regular file, expected one"):
        ContentHashes().of(tmp_path / "model.onnx")
