"""The engine for .om files, on a simulated card."""

import dataclasses
import mmap
import re
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from runtime.engines.conformance_engine import token_batch
from runtime.npu.driver.conftest import GEARS
from runtime.support.ascend import assert_allocates_nothing, compile_om, pinned, token_gears
from runtime.support.graphs import ENCODER, PIXELS, copy_of, sums, write

import ge_runtime.npu.driver.device as ascend_device
import ge_runtime.npu.driver.om_model as om_model
from ascend_simulator import SimulatorViolation, process
from ascend_simulator.faults import Faults
from ge_runtime.config import TimeLimits
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.errors import (
    ArtifactFault,
    EngineFault,
    EngineLost,
    NoDevice,
    OutOfMemory,
    PlanFault,
)
from ge_runtime.npu.driver.atc import sha256_of
from ge_runtime.npu.driver.cann_values import AIPP_INPUT, GEAR_INPUT
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.driver.installation import import_cann_module
from ge_runtime.npu.driver.memory import CardMemory
from ge_runtime.npu.driver.om_model import ModelFile
from ge_runtime.npu.driver.pyacl import PyAclDriver
from ge_runtime.npu.engines.ascend_backend import AscendBackend
from ge_runtime.specs import DType

pytestmark = pytest.mark.brute_force


@pytest.fixture
def place():
    """A function: a place on the card; closed at the end, engines first."""
    with ExitStack() as stack:

        def place_on(device=0, **options):
            place = AscendBackend(device, **options)
            stack.callback(place.close)
            opened, open_ = [], place.open

            def open_and_note(path):
                engine = open_([Artifact(path, "om", "")], threads=1, outputs=())
                stack.callback(engine.close)
                opened.append(engine)
                return engine

            place.open_om = open_and_note
            return place

        yield place_on


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """A model that needs more workspace than the encoder with GEARS."""
    folder = tmp_path_factory.mktemp("larger")
    write(ENCODER, "onnxruntime", folder)
    return compile_om(folder, *token_gears((64, 1024), (512, 4096)))


def bound(place, path, device=0, **options):
    """An engine on a new place, which is `engine.place`, bound to its memory."""
    there = place(device, **options)
    engine = there.open_om(path)
    engine.bind([], there.memory)
    engine.place = there
    return engine


@pytest.fixture
def engine(place, encoder_dir):
    return bound(place, encoder_dir / "model.om")


def right(engine, rows, tokens, *, seed=0):
    inputs, expected = token_batch(rows, tokens, seed)
    result = engine.run(inputs, {"embedding": None})["embedding"]
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    return True


# -- signature and executions -------------------------------------------------------------------


def test_signature_and_shapes_are_those_of_the_gears(engine):
    assert engine.signature == Signature(
        inputs=(
            GraphTensor("input_ids", DType.INT64, (None, None)),
            GraphTensor("attention_mask", DType.INT64, (None, None)),
        ),
        outputs=(GraphTensor("embedding", DType.FP32, (None, 4)),),
    )
    assert engine.shapes == [{"input_ids": gear, "attention_mask": gear} for gear in GEARS]


def test_gears_are_sorted_however_the_file_has_them(place, tmp_path):
    write(ENCODER, "onnxruntime", tmp_path)
    path = compile_om(tmp_path, *token_gears((8, 4), (1, 4), (2, 8)))
    shapes = [own["input_ids"] for own in place().open_om(path).shapes]
    assert shapes == [(1, 4), (2, 8), (8, 4)]


@pytest.mark.parametrize(("rows", "tokens"), GEARS)
def test_each_gear_is_executed_and_written_where_it_is_planned(engine, rows, tokens):
    inputs, expected = token_batch(rows, tokens)
    given = {name: pinned(engine.place, array) for name, array in inputs.items()}
    planned = pinned(engine.place, np.full((rows, 4), np.nan, np.float32))
    assert engine.run(given, {"embedding": planned})["embedding"] is planned
    np.testing.assert_allclose(planned, expected, rtol=1e-5)


def test_pinned_arrays_are_copied_once_each_and_others_without_a_stream(engine, machine):
    inputs, _ = token_batch(4, 8)
    given = {name: pinned(engine.place, array) for name, array in inputs.items()}
    planned = pinned(engine.place, np.empty((4, 4), np.float32))
    before = machine.report.calls
    engine.run(given, {"embedding": planned})
    calls = machine.report.calls
    assert calls["rt.memcpy_async"] - before.get("rt.memcpy_async", 0) == 3
    assert (
        calls["rt.synchronize_stream_with_timeout"]
        - before.get("rt.synchronize_stream_with_timeout", 0)
        == 1
    )
    assert "rt.memcpy" not in calls
    engine.run(inputs, {"embedding": None})
    calls = machine.report.calls
    assert calls["rt.memcpy"] == 3


def test_what_is_not_wanted_is_not_copied(place, tmp_path, machine):
    write(PIXELS, "onnxruntime", tmp_path)
    path = compile_om(
        tmp_path,
        "--input_format=ND",
        "--input_shape=image:2,1,-1,-1;mask:2,-1,-1",
        "--dynamic_dims=4,6,4,6;8,8,8,8",
    )
    engine = bound(place, path)
    image = np.random.default_rng(0).random((2, 1, 4, 6), dtype=np.float32)
    mask = np.ones((2, 4, 6), np.float32)
    results = engine.run({"mask": mask, "image": image}, {"sums": None})
    assert results.keys() == {"sums"}
    np.testing.assert_allclose(results["sums"], sums(image, mask), rtol=1e-5)
    assert machine.report.copied_bytes["ACL_MEMCPY_DEVICE_TO_HOST"] == 2 * 2 * 4
    both = engine.run({"mask": mask, "image": image}, {"inverted": None, "sums": None})
    np.testing.assert_allclose(both["inverted"], 1 - image, rtol=1e-6)


FAMILIES = {
    "batch": ["--input_shape=image:-1,1,4,6", "--dynamic_batch_size=1,4,2"],
    "image": ["--input_shape=image:2,1,-1,-1", "--dynamic_image_size=8,8;4,6;2,2"],
    "dims": ["--input_format=ND", "--input_shape=image:-1,1,-1,6", "--dynamic_dims=1,4;2,4;2,8"],
    "static": ["--input_shape=image:2,1,4,6"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_gears(place, tmp_path, family):
    write_negative(tmp_path)
    engine = bound(place, compile_om(tmp_path, *FAMILIES[family]))
    assert len(engine.shapes) == (1 if family == "static" else 3)
    for shapes in engine.shapes:
        image = np.random.default_rng(0).random(shapes["image"], dtype=np.float32)
        result = engine.run({"image": image}, {"inverted": None})["inverted"]
        np.testing.assert_allclose(result, 1 - image, rtol=1e-6)


def write_negative(folder):
    """1 - image, for images of any size, and no other input."""
    model = PIXELS.onnx()
    for node in [node for node in model.graph.node if node.op_type != "Sub"]:
        model.graph.node.remove(node)
    del model.graph.input[1]
    del model.graph.output[0]
    onnx.save(model, folder / "model.onnx")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int32", "int64", "bool", "uint8"])
def test_elements_of_every_type_pass_unchanged(place, tmp_path, dtype):
    write(copy_of(dtype), "onnxruntime", tmp_path)
    engine = bound(place, compile_om(tmp_path, "--input_shape=x:5,3"))
    x = np.arange(15).reshape(5, 3).astype(dtype)
    np.testing.assert_array_equal(engine.run({"x": x}, {"y": None})["y"], x)


@pytest.mark.parametrize("name", ["y", "scope:y", "Div_6:0:y", "y" * 200])
def test_outputs_have_the_names_of_the_graph_that_was_compiled(place, tmp_path, name):
    model = ENCODER.onnx()
    model.graph.node[-1].output[0] = model.graph.output[0].name = name
    onnx.save(model, tmp_path / "model.onnx")
    engine = bound(place, compile_om(tmp_path, *token_gears((1, 8), (2, 8))))
    assert [tensor.name for tensor in engine.signature.outputs] == [name]
    inputs, expected = token_batch(2, 8)
    np.testing.assert_allclose(engine.run(inputs, {name: None})[name], expected, rtol=1e-5)


def test_sizes_that_the_compiler_pads_are_allowed_for(place, tmp_path, machine):
    machine.start(size_slack=96)
    write(ENCODER, "onnxruntime", tmp_path)
    engine = bound(place, compile_om(tmp_path, *token_gears((2, 8), (4, 8))))
    assert right(engine, 2, 8)
    assert right(engine, 4, 8)


def test_a_shape_that_is_no_gear_is_refused_with_all_that_are(engine):
    inputs, _ = token_batch(3, 8)
    with pytest.raises(EngineFault) as raised:
        engine.run(inputs, {"embedding": None})
    assert "found inputs input_ids [3, 8]" in str(raised.value)
    assert "input_ids [1, 8], attention_mask [1, 8]; input_ids [4, 8]" in str(raised.value)


def test_a_result_of_another_shape_is_refused_before_anything_runs(engine, machine):
    inputs, _ = token_batch(4, 8)
    with pytest.raises(EngineFault, match=r"'embedding': found float32\[4, 5\], expected float32"):
        engine.run(inputs, {"embedding": np.empty((4, 5), np.float32)})
    assert machine.report.executions == 0


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"dtype": 16}, "'input_ids': found aclDataType 16, expected a type of Triton"),
        ({"format": 29}, "'input_ids': found aclFormat 29, expected ND, NCHW or NHWC"),
        ({"name": AIPP_INPUT}, "found dynamic AIPP, expected static or none"),
        ({"name": GEAR_INPUT}, f"expected {GEAR_INPUT} as the last of them"),
    ],
)
def test_a_model_with_unsupported_tensors_is_refused(
    place, encoder_dir, monkeypatch, machine, change, reported
):
    describe = PyAclDriver.describe

    def changed(driver, model):
        description = describe(driver, model)
        first, *others, gears = description.inputs
        if change.get("name") == GEAR_INPUT:
            gears = dataclasses.replace(gears, name="gears")
        inputs = (dataclasses.replace(first, **change), *others, gears)
        return dataclasses.replace(description, inputs=inputs)

    monkeypatch.setattr(PyAclDriver, "describe", changed)
    with pytest.raises(ArtifactFault, match=re.escape(reported)):
        place().open_om(encoder_dir / "model.om")


def test_engines_of_one_file_share_weights_and_workspace(place, encoder_dir, machine):
    first = place()
    one = first.open_om(encoder_dir / "model.om")
    shared = machine.used("device")
    engines = [one, *(place().open_om(encoder_dir / "model.om") for _ in range(3))]
    assert machine.used("device") == shared
    for engine in engines:
        engine.bind([], first.memory)
    assert machine.used("device") == shared + 4 * one.device_io_bytes()
    assert machine.report.calls["mdl.load_from_file_with_mem"] == 1
    assert all(right(engine, 4, 8, seed=seed) for seed, engine in enumerate(engines))


def test_a_larger_model_has_the_smaller_one_loaded_again(place, encoder_dir, larger, machine):
    small = place()
    little = small.open_om(encoder_dir / "model.om")
    little.bind([], small.memory)
    assert right(little, 4, 8)
    large = bound(place, larger)
    card = PROCESS_CARDS._open[0]
    (executor,) = card._executors.values()
    needs = {engine.intermediates({}).lifetimes[0].nbytes for engine in (little, large)}
    assert executor.models.workspace_bytes == max(needs) > min(needs)
    assert right(little, 4, 8)
    assert right(large, 64, 1024)
    assert right(little, 8, 32)
    assert card.memory.allocated_bytes == {
        "workspace": max(needs),
        "weights": little.weights_bytes() + large.weights_bytes(),
    }


def test_two_lanes_have_a_workspace_each_and_the_weights_once(place, encoder_dir, machine):
    engines = []
    for lane in range(2):
        engine = bound(place, encoder_dir / "model.om", executor=lane)
        engines.append(engine)
    card = PROCESS_CARDS._open[0]
    workspace = engines[0].intermediates({}).lifetimes[0].nbytes
    assert card.memory.allocated_bytes == {
        "workspace": 2 * workspace,
        "weights": engines[0].weights_bytes(),
    }
    assert all(right(engine, 4, 32) for engine in engines)


def test_a_lane_of_a_fixed_size_refuses_what_it_cannot_hold(place, encoder_dir, larger, machine):
    capacity = 2**21
    little = place(workspace_bytes=capacity).open_om(encoder_dir / "model.om")
    with pytest.raises(PlanFault, match=r"found .* bytes of workspace, expected at most 2,097,152"):
        place(workspace_bytes=capacity).open_om(larger)
    with pytest.raises(PlanFault, match="'workspace_pool_mib': found none, expected 2"):
        place().open_om(encoder_dir / "model.om")
    assert little.shapes


def test_nothing_is_allocated_after_the_freeze(engine, machine):
    inputs, _ = token_batch(4, 8)
    given = {name: pinned(engine.place, array) for name, array in inputs.items()}
    planned = pinned(engine.place, np.empty((4, 4), np.float32))
    engine.place.freeze()
    assert_allocates_nothing(machine, lambda: engine.run(given, {"embedding": planned}), 50)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_card_without_room_is_reported_and_left_as_it_was(place, encoder_dir, machine, nth):
    there = place()
    before = machine.used("device")
    machine.arm(f"malloc@{nth}=207001")
    with pytest.raises(OutOfMemory):
        there.open_om(encoder_dir / "model.om").bind([], there.memory)
    assert nth == 3 or machine.used("device") == before
    engine = there.open_om(encoder_dir / "model.om")
    engine.bind([], there.memory)
    assert right(engine, 1, 8)


def test_a_larger_model_without_room_leaves_those_that_are_there(
    place, encoder_dir, larger, machine
):
    machine.start(hbm_mib=64)
    engine = bound(place, encoder_dir / "model.om")
    with pytest.raises(OutOfMemory, match=r"more bytes of workspace and 1,536 of weights wanted"):
        place().open_om(larger)
    assert right(engine, 4, 8)


def test_equal_files_need_memory_for_their_weights_once(place, encoder_dir, tmp_path, monkeypatch):
    card = place()._card
    (tmp_path / "copy.om").write_bytes((encoder_dir / "model.om").read_bytes())
    with card.current():
        paths = (encoder_dir / "model.om", tmp_path / "copy.om")
        files = [ModelFile.read(path, card.driver) for path in paths]
    needed = files[0].workspace_bytes + files[0].weights_bytes
    monkeypatch.setattr(CardMemory, "free_bytes", needed)
    executor, stages = card.load(files, 0, None, 1)
    monkeypatch.setattr(CardMemory, "free_bytes", files[0].workspace_bytes)
    card.unload(*card.load(files, 1, None, 1))
    card.unload(executor, stages)
    monkeypatch.setattr(CardMemory, "free_bytes", needed - 1)
    with pytest.raises(
        OutOfMemory, match=r"found [\d,]+ more bytes of workspace and [\d,]+ of wei"
    ):
        card.load(files, 0, None, 1)


def test_a_larger_model_that_cannot_have_its_workspace_leaves_the_others_loaded(
    engine, place, larger, machine
):
    machine.arm("malloc@1=207001")
    with pytest.raises(OutOfMemory, match="'workspace': found"):
        place().open_om(larger)
    assert right(engine, 4, 8)
    assert place().open_om(larger).shapes
    assert right(engine, 4, 8)


@pytest.mark.parametrize("plan", ["malloc@1=207001;malloc@2=207001", "load@1=500002"])
def test_a_card_that_loads_nothing_again_after_a_larger_model_is_lost(
    engine, place, larger, machine, plan
):
    machine.arm(plan)
    with pytest.raises(EngineLost, match="its models cannot be loaded again: "):
        place().open_om(larger)
    with pytest.raises(EngineLost):
        right(engine, 4, 8)


def test_a_file_that_has_changed_is_not_loaded_again(place, encoder_dir, larger, tmp_path):
    there = place()
    path = tmp_path / "changing.om"
    path.write_bytes((encoder_dir / "model.om").read_bytes())
    engine = there.open_om(path)
    engine.bind([], there.memory)
    path.write_bytes(larger.read_bytes())
    with pytest.raises(ArtifactFault, match=r"changing.om: found content that has changed since"):
        place().open_om(larger)
    assert right(engine, 4, 8)


@pytest.fixture
def beside(place, engine, encoder_dir, tmp_path):
    """Another engine of the same executor, its file, and what was in that."""
    path = tmp_path / "beside.om"
    graph = onnx.load(encoder_dir / "model.onnx")
    graph.doc_string = "another content"
    onnx.save(graph, tmp_path / "model.onnx")
    content = compile_om(tmp_path, *token_gears(*GEARS)).read_bytes()
    path.write_bytes(content)
    other = place().open_om(path)
    other.bind([], place().memory)
    return other, path, content


def test_a_lane_is_reset_without_the_model_whose_file_has_changed(engine, beside, place, machine):
    other, path, content = beside
    path.write_bytes(content[:-1])
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault, match="507011"):
        right(engine, 4, 8)
    assert right(engine, 4, 8)
    absent = r"beside\.om: found content that has changed .*; load the model again"
    for _ in range(2):
        with pytest.raises(EngineFault, match=absent):
            right(other, 4, 8)
    assert right(engine, 4, 8)
    path.write_bytes(content)
    again = place().open_om(path)
    again.bind([], place().memory)
    assert right(again, 4, 8)
    assert right(other, 4, 8)
    assert machine.report.broken == {}


def test_an_absent_model_does_not_keep_a_larger_one_from_its_lane(
    engine, beside, place, larger, machine
):
    _, path, content = beside
    path.write_bytes(content[:-1])
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault, match="507011"):
        right(engine, 4, 8)
    assert right(engine, 4, 8)  # `beside` is absent
    assert place().open_om(larger).shapes
    assert right(engine, 4, 8)


def test_a_file_that_is_replaced_while_its_lane_is_reset_costs_no_other_model(
    engine, beside, machine, monkeypatch
):
    """After its content was checked, as the driver begins to read it."""
    other, path, content = beside
    load = PyAclDriver.load

    def replace_and_load(driver, file, workspace, weights):
        if file == str(path):
            path.write_bytes(content[: len(content) // 2])
        return load(driver, file, workspace, weights)

    monkeypatch.setattr(PyAclDriver, "load", replace_and_load)
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault, match="507011"):
        right(engine, 4, 8)
    assert right(engine, 4, 8)
    with pytest.raises(EngineFault, match=r"beside\.om: found content that has .*; load the"):
        right(other, 4, 8)
    assert machine.report.broken == {}


def test_a_model_whose_file_has_gone_is_unloaded_without_harm(engine, beside, machine):
    other, path, _ = beside
    path.unlink()
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault, match="507011"):
        right(engine, 4, 8)
    assert right(engine, 4, 8)
    with pytest.raises(EngineFault, match=r"beside\.om: No such file or directory; load the"):
        right(other, 4, 8)
    other.close()
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault, match="507011"):
        right(engine, 4, 8)
    assert right(engine, 4, 8)
    assert machine.report.broken == {}


@pytest.mark.parametrize(("gone", "closed"), [(0, True), (0, False), (1, True)])
def test_a_file_that_others_have_elsewhere_may_go(
    place, encoder_dir, tmp_path, machine, gone, closed
):
    engines, names = [], ["first.om", "second.om"]
    for name in names:
        (tmp_path / name).write_bytes((encoder_dir / "model.om").read_bytes())
        there = place()
        engines.append(there.open_om(tmp_path / name))
        engines[-1].bind([], there.memory)
    stays = engines[1 - gone]
    if closed:
        engines[gone].close()
    (tmp_path / names[gone]).unlink()
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault, match="507011"):
        right(stays, 4, 8)
    assert right(stays, 4, 8)


def test_a_file_of_a_load_that_failed_is_not_needed(place, engine, encoder_dir, tmp_path, machine):
    paths = [tmp_path / "same.om", tmp_path / "other.om"]
    paths[0].write_bytes((encoder_dir / "model.om").read_bytes())
    write(copy_of(np.float32), "onnxruntime", tmp_path)
    compile_om(tmp_path, "--input_shape=x:2,3", name="other")
    machine.arm("load@1=500002")
    with pytest.raises(ArtifactFault, match=r"other\.om: .* 500002"):
        place().open([Artifact(path, "om", "") for path in paths], threads=1, outputs=["y"])
    paths[0].unlink()
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault, match="507011"):
        right(engine, 4, 8)
    assert right(engine, 4, 8)


def test_a_load_that_finds_the_card_lost_calls_nothing_of_it_any_more(
    encoder_dir, machine, monkeypatch
):
    """At each call in turn."""
    artifact = Artifact(encoder_dir / "model.om", "om", "")
    counted = {}
    act = Faults._act

    def count_and_act(self, *given):
        counted.update(machine.report.calls)
        act(self, *given)

    of_the_host = {"get_recent_err_msg", "mdl.destroy_desc", "rt.get_context", "rt.set_context"}

    def calls():
        contexts = ("rt.get_context", "rt.set_context")
        return sum(n for name, n in machine.report.calls.items() if name not in contexts)

    def load(armed=""):
        with closing(AscendBackend(0)) as place:
            begin = calls()
            machine.arm(armed)
            with closing(place.open([artifact], threads=1, outputs=())) as engine:
                engine.bind([], place.memory)
                return calls() - begin

    monkeypatch.setattr(Faults, "_act", count_and_act)
    found = 0
    for number in range(1, load() + 1):
        machine.start()
        PROCESS_CARDS.__init__()
        with pytest.raises((EngineLost, OutOfMemory, ArtifactFault)) as reported:
            load(f"device_lost@{number}")
        if "(injected)" not in str(PROCESS_CARDS.health(0).lost):
            continue  # it has no return code, so that the next call finds it
        assert reported.type is EngineLost
        found += 1
        finder = re.search(r"acl\.([\w.]+): ", str(reported.value))[1]
        after = Counter(machine.report.calls) - Counter({**counted}) - Counter([finder])
        assert set(after) <= of_the_host, number
    assert found > 25


def test_registered_memory_is_copied_from_and_to_in_the_stream(engine, machine):
    inputs, expected = token_batch(4, 8)
    with mmap.mmap(-1, 3 * mmap.PAGESIZE) as pages:
        memory = np.frombuffer(pages, np.uint8)
        ids, mask, planned = (memory[place * mmap.PAGESIZE :] for place in range(3))
        given = {}
        for own, (name, array) in zip((ids, mask), inputs.items(), strict=True):
            given[name] = own[: array.nbytes].view(array.dtype).reshape(array.shape)
            given[name][...] = array
        result = planned[:64].view(np.float32).reshape(4, 4)
        engine.place.register(memory)
        engine.run(given, {"embedding": result})
        np.testing.assert_allclose(result, expected, rtol=1e-5)
        assert "rt.memcpy" not in machine.report.calls
        engine.place.unregister(memory)
        engine.run(given, {"embedding": result})
        assert machine.report.calls["rt.memcpy"] == 3
        del memory, ids, mask, planned, given, result, own


def test_memory_that_cannot_be_pinned_is_copied_through_pinned_memory(
    engine, monkeypatch, machine, caplog
):
    monkeypatch.setattr("platform.release", lambda: "5.10.0-60.18.0.50.oe2203.aarch64")
    inputs, expected = token_batch(4, 8)
    memory = np.zeros(mmap.PAGESIZE, np.uint8)
    engine.place.register(memory)
    assert "207000 ACL_ERROR_RT_FEATURE_NOT_SUPPORT" in caplog.text
    assert "found Linux 5.10.0" in caplog.text
    engine.place.unregister(memory)
    for seed in (1, 0):
        inputs, expected = token_batch(4, 8, seed)
        planned = np.empty((4, 4), np.float32)
        engine.run(inputs, {"embedding": planned})
        np.testing.assert_allclose(planned, expected, rtol=1e-5)
    run = lambda: engine.run(inputs, {"embedding": planned})  # noqa: E731
    assert_allocates_nothing(machine, run, 3)
    assert "rt.memcpy" not in machine.report.calls
    assert machine.used("pinned")
    engine.close()
    engine.place.close()
    assert not machine.used("pinned")
    assert not {"rt.host_register_v2", "rt.host_unregister"} & machine.report.calls.keys()


# -- threads --------------------------------------------------------------------------------------


def test_engines_of_a_lane_are_used_from_threads_of_their_own(place, encoder_dir):
    engines = []
    for _ in range(3):
        engine = bound(place, encoder_dir / "model.om")
        engines.append(engine)
    wrong = []

    def work(engine, seed):
        for turn in range(20):
            rows, tokens = GEARS[(seed + turn) % len(GEARS)]
            inputs, expected = token_batch(rows, tokens, seed * 100 + turn)
            result = engine.run(inputs, {"embedding": None})["embedding"]
            if not np.allclose(result, expected, rtol=1e-5):
                wrong.append((seed, turn))

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(engines, range(3), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_cards_are_used_from_one_thread(place, encoder_dir, machine):
    machine.start(devices=2)
    engines = []
    for device in range(2):
        engine = bound(place, encoder_dir / "model.om", device)
        engines.append(engine)
    for seed in range(3):
        assert all(right(engine, 4, 32, seed=seed) for engine in engines)
    first, second = machine.report.used_bytes
    assert first == second > 0


def test_an_engine_is_closed_by_a_thread_that_never_used_it(place, encoder_dir, machine):
    engine = bound(place, encoder_dir / "model.om")

    def close():
        engine.close()
        engine.place.close()

    closer = threading.Thread(target=close)
    closer.start()
    closer.join()
    assert machine.report.live == []


# -- failures -------------------------------------------------------------------------------------


def test_a_full_queue_is_tried_once_more(engine, machine, monkeypatch):
    inputs, expected = token_batch(4, 8)
    given = {name: pinned(engine.place, array) for name, array in inputs.items()}
    planned = pinned(engine.place, np.empty((4, 4), np.float32))
    module = engine._card.driver._mdl
    execute, codes = module.execute_async, [507002]
    monkeypatch.setattr(
        module, "execute_async", lambda *args: codes.pop() if codes else execute(*args)
    )
    engine.run(given, {"embedding": planned})
    np.testing.assert_allclose(planned, expected, rtol=1e-5)
    codes[:] = [507002, 507002]
    with pytest.raises(EngineFault, match="507002"):
        engine.run(given, {"embedding": planned})
    assert codes == []
    given["input_ids"][...] = 0  # nothing that was queued reads it any more
    engine.run(given, {"embedding": planned})


def test_a_failed_execution_has_the_lane_reset(engine, place, encoder_dir, machine):
    other = bound(place, encoder_dir / "model.om")
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault, match="507011 ACL_ERROR_RT_MODEL_EXECUTE"):
        right(engine, 4, 8)
    before = machine.report
    assert right(other, 8, 32)
    assert right(engine, 4, 8)
    after = machine.report
    assert after.calls["mdl.load_from_file_with_mem"] == 2
    assert after.mallocs == before.mallocs  # loaded into the memory that was there


def test_a_lane_that_is_reset_during_a_load_is_no_concern_of_it(
    engine, place, larger, machine, monkeypatch
):
    assert right(engine, 4, 8)  # this thread has the executor's context

    def fail_and_go_on():
        machine.arm("execute@1=507015")
        with pytest.raises(EngineFault):
            right(engine, 4, 8)
        assert right(engine, 4, 8)

    def hash_meanwhile(path):
        monkeypatch.setattr(om_model, "sha256_of", sha256_of)
        with ThreadPoolExecutor(1) as other:
            other.submit(fail_and_go_on).result()
        return sha256_of(path)

    monkeypatch.setattr(om_model, "sha256_of", hash_meanwhile)
    bound(place, larger)
    assert right(engine, 4, 8)


def test_a_copy_that_fails_at_once_has_the_lane_reset_too(engine, machine):
    assert right(engine, 4, 8)
    machine.arm("call@2=507015")
    with pytest.raises(EngineFault, match=r"acl\.rt\.memcpy: 507015"):
        right(engine, 4, 8)
    assert right(engine, 8, 32)
    assert machine.report.calls["mdl.load_from_file_with_mem"] == 2


def test_a_device_that_is_lost_while_work_is_queued_is_not_waited_for(engine, machine):
    assert right(engine, 4, 8)
    waits = machine.report.calls["rt.synchronize_stream_with_timeout"]
    machine.arm("call@3=507010")
    with pytest.raises(EngineLost, match=r"acl\.mdl\.set_input_dynamic_dims: 507010"):
        right(engine, 8, 32)
    assert machine.report.calls["rt.synchronize_stream_with_timeout"] == waits


@pytest.mark.parametrize("code", [507010, 507899, 507053])
def test_a_lost_device_is_left_alone(engine, place, encoder_dir, machine, code):
    machine.arm(f"execute@1={code}")
    with pytest.raises(EngineLost, match=str(code)):
        right(engine, 4, 8)
    calls = machine.report.calls
    with pytest.raises(EngineLost):
        right(engine, 4, 8)
    with pytest.raises(EngineLost):
        place()
    engine.close()
    engine.place.close()
    assert machine.report.calls == calls


@pytest.mark.parametrize("lane", [0, 1])
def test_a_loss_that_one_engine_detects_applies_to_all_engines_on_the_card(
    place, larger, encoder_dir, machine, lane
):
    machine.start(devices=2)
    engines = []
    for there, path in [
        (place(), encoder_dir / "model.om"),
        (place(executor=lane), larger),
        (place(1), larger),
    ]:
        engines.append(there.open_om(path))
        engines[-1].bind([], there.memory)
    machine.arm("execute@1=507010")
    with pytest.raises(EngineLost) as met:
        right(engines[0], 4, 8)
    assert [own.lost for own in engines] == [True, True, False]
    calls = machine.report.calls
    with pytest.raises(EngineLost) as reported:
        right(engines[1], 64, 1024)
    assert str(reported.value) == str(met.value)
    assert machine.report.calls == calls
    assert right(engines[2], 64, 1024)


def test_a_card_that_cannot_be_opened_is_reported_by_what_failed_first(place, machine):
    machine.arm("call@3=lost")
    with pytest.raises(NoDevice, match=r"npu:0 cannot be used: acl\.rt\.create_context: 507010"):
        place()


def test_a_device_that_was_lost_while_idle_is_found_on_close_and_left_alone(engine, machine):
    assert right(engine, 4, 8)
    machine.arm("device_lost@1")
    engine.close()
    engine.place.close()
    assert PROCESS_CARDS._open[0].lost


@pytest.mark.parametrize("code", [100000, 507015])
def test_a_wait_that_is_refused_is_waited_once_more(place, encoder_dir, machine, code):
    """Until then the queued work uses the slot, and the model that may be unloaded."""
    machine.start(seed=1)  # nothing runs before a wait
    engine = bound(place, encoder_dir / "model.om")
    inputs, expected = token_batch(4, 8)
    given = {name: pinned(engine.place, array) for name, array in inputs.items()}
    planned = pinned(engine.place, np.empty((4, 4), np.float32))
    machine.arm(f"sync@1={code}")
    with pytest.raises(EngineFault, match=str(code)):
        engine.run(given, {"embedding": planned})
    for array in (*given.values(), planned):
        array[...] = 0
    for name, array in inputs.items():
        given[name][...] = array
    engine.run(given, {"embedding": planned})
    np.testing.assert_allclose(planned, expected, rtol=1e-5)
    assert machine.report.broken == {}


def test_a_task_failure_in_the_second_wait_resets_the_lane(engine, machine):
    machine.arm("execute@1=507015;sync@1=100000")
    with pytest.raises(EngineFault, match="507015"):
        right(engine, 4, 8)
    assert right(engine, 4, 8)
    assert machine.report.calls["mdl.load_from_file_with_mem"] == 2


def test_a_card_that_cannot_be_waited_for_is_lost(engine, machine):
    assert right(engine, 4, 8)
    machine.arm("sync@1=100000;sync@2=100000")
    with pytest.raises(EngineLost, match=r"^npu:0: waiting for queued tasks failed: acl\.rt\.sync"):
        right(engine, 4, 8)
    assert engine.lost


@pytest.mark.parametrize("again", [507015, 500002])
def test_a_task_failure_in_both_waits_does_not_lose_the_card(engine, machine, again):
    machine.arm(f"execute@1=507015;sync@2={again}")
    with pytest.raises(EngineFault, match="507015"):
        right(engine, 4, 8)
    assert not engine.lost


@pytest.mark.parametrize("fault", ["hang", "slow:31"])
def test_a_hanging_operator_costs_one_reset(engine, machine, fault):
    machine.arm(f"execute@1={fault}")
    with pytest.raises(EngineFault, match=r"507014 .*more than 30 s"):
        right(engine, 4, 8)
    assert right(engine, 4, 8)
    assert not engine.lost
    assert machine.report.calls["mdl.load_from_file_with_mem"] == 2


def test_a_hang_loses_the_card_if_operators_cannot_be_limited(
    place, encoder_dir, machine, monkeypatch, caplog
):
    monkeypatch.delattr(import_cann_module("acl").rt, "set_op_execute_time_out")
    engine = bound(place, encoder_dir / "model.om")
    assert "operators keep CANN's own time limit" in caplog.text
    machine.arm("execute@1=hang")
    with pytest.raises(EngineLost, match="507046"):
        right(engine, 4, 8)
    engine.close()
    engine.place.close()


@pytest.mark.parametrize(
    ("chip", "limits", "expected"),
    [
        ("Ascend910B3", TimeLimits(), 30),
        ("Ascend910B3", TimeLimits(execution_s=1), 1),
        ("Ascend910B3", TimeLimits(execution_s=600, operator_s=590), 590),
        ("Ascend910B3", TimeLimits(execution_s=600), 300),
        ("Ascend310P3", TimeLimits(execution_s=900), 450),
        ("Ascend910A", TimeLimits(execution_s=600), 68),
    ],
)
def test_operators_have_less_time_than_executions(place, machine, chip, limits, expected):
    machine.start(soc=chip)
    place(limits=limits)
    assert process.current().faults.operator_limit_s == expected


def test_the_largest_limits_on_a_card_apply(place, machine):
    waits = []
    card = place(limits=TimeLimits(execution_s=10))._card
    place(limits=TimeLimits(execution_s=600, operator_s=500))
    place(limits=TimeLimits(execution_s=20))
    assert process.current().faults.operator_limit_s == 500
    with card.current():
        stream = card.driver.create_stream()
        driver, card.driver = (
            card.driver,
            SimpleNamespace(synchronize_stream=lambda _, timeout_ms: waits.append(timeout_ms)),
        )
        card.wait(stream)
        card.driver = driver
        driver.destroy_stream(stream)
    assert waits == [600_000]


def test_an_operator_limit_above_the_chips_maximum_is_refused(place, machine):
    machine.start(soc="Ascend910A")
    with pytest.raises(PlanFault, match=r"'operator_timeout_s': found 69, expected at most 68 on"):
        place(limits=TimeLimits(execution_s=600, operator_s=69))
    assert not PROCESS_CARDS._open


def test_memory_that_answers_lie_in_outlives_the_place(engine, machine):
    inputs, expected = token_batch(4, 8)
    planned = pinned(engine.place, np.empty((4, 4), np.float32))
    engine.run(inputs, {"embedding": planned})
    engine.close()
    engine.place.close()
    np.testing.assert_allclose(planned, expected, rtol=1e-5)
    assert machine.used("pinned") == planned.nbytes
    assert machine.used("device") == 0
    del planned
    card = PROCESS_CARDS.acquire(0)
    PROCESS_CARDS.release(card)
    assert machine.report.live == []


# -- files ----------------------------------------------------------------------------------------


def test_a_model_of_unknown_sizes_is_refused_with_the_cure(place, tmp_path):
    write(ENCODER, "onnxruntime", tmp_path)
    path = compile_om(tmp_path, "--input_shape=input_ids:-1,-1;attention_mask:-1,-1")
    with pytest.raises(ArtifactFault, match=r"expected gears: name them in config.pbtxt"):
        place().open_om(path)


def test_a_damaged_file_is_refused(place, encoder_dir, tmp_path):
    content = bytearray((encoder_dir / "model.om").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "model.om").write_bytes(content)
    with pytest.raises(ArtifactFault, match=r"npu:0, AscendSimulator, cannot execute it: acl.mdl"):
        place().open_om(tmp_path / "model.om")
    (tmp_path / "model.om").write_bytes(b"")
    with pytest.raises(ArtifactFault, match="cannot execute it"):
        place().open_om(tmp_path / "model.om")
    with pytest.raises(ArtifactFault, match="No such file"):
        place().open_om(tmp_path / "none.om")


def test_a_file_for_another_chip_is_refused(place, encoder_dir, machine):
    machine.start(soc="AscendSimulator2")
    with pytest.raises(ArtifactFault, match="for this chip"):
        place().open_om(encoder_dir / "model.om")


def test_two_cards_initialize_and_finalize_the_driver_once(machine):
    machine.start(devices=2)
    first, second = AscendBackend(0), AscendBackend(1)
    first.close()
    assert "finalize_reference" not in machine.report.calls
    second.close()
    assert (machine.report.calls["init"], machine.report.calls["finalize_reference"]) == (1, 1)


def test_whichever_call_of_a_load_is_refused_nothing_of_it_stays(encoder_dir, machine):
    """Each call in turn, with a code that says nothing of the card."""
    artifact = Artifact(encoder_dir / "model.om", "om", "")

    def load():
        with ExitStack() as opened:
            place = AscendBackend(0)
            opened.callback(place.close)
            engine = place.open([artifact], threads=1, outputs=())
            opened.callback(engine.close)
            engine.bind([], place.memory)
            process.current().faults.clear()

    def calls():
        return sum(machine.report.calls.values())

    begin = calls()
    load()
    refused = 0
    for number in range(1, calls() - begin):
        machine.arm(f"call@{number}=200000")
        try:
            load()
        except (NoDevice, ArtifactFault, OutOfMemory, SimulatorViolation) as error:
            refused += 1
            if re.search(r"destroy_|rt\.free", f"{error} {error.__context__}"):  # so it stays
                machine.start()
                PROCESS_CARDS.__init__()
                continue
        process.current().faults.clear()
        assert PROCESS_CARDS.health(0).lost is None
        assert machine.report.live == []
    assert refused > 40


def test_libraries_that_initialize_the_driver_later_keep_it(place, encoder_dir):
    import acl

    there = place()
    assert acl.init() == 100002  # as torch_npu does when it is imported
    there.open_om(encoder_dir / "model.om").close()
    there.close()
    assert acl.rt.get_device_count() == (1, 0)
    assert acl.finalize() == 0


def test_a_driver_that_does_not_count_is_ended(place, monkeypatch):
    import acl

    monkeypatch.delattr(acl, "finalize_reference")
    place().close()
    assert acl.finalize() == 100037


def test_a_card_that_is_not_there_is_reported(place):
    with pytest.raises(NoDevice, match=r"npu:7 cannot be used: acl.rt.set_device: 107001"):
        place(7)


def test_a_failure_without_a_text_is_reported_and_the_card_is_usable(engine, machine, monkeypatch):
    """get_recent_err_msg and get_soc_name may return None."""
    monkeypatch.setattr(process.Process, "take_error", lambda process: None)
    machine.arm("execute@1=507011")
    with pytest.raises(
        EngineFault, match=r"507011 ACL_ERROR_RT_MODEL_EXECUTE, a failed execution$"
    ):
        right(engine, 4, 8)
    assert right(engine, 4, 8)


@pytest.mark.parametrize("again", ["", ";sync@2=207017"])
def test_numbers_that_overflow_fail_their_execution_and_nothing_else(engine, machine, again):
    loads = machine.report.calls["mdl.load_from_file_with_mem"]
    machine.arm("execute@1=207003" + again)
    with pytest.raises(EngineFault, match=r"207003 .*OVER_FLOW, a numeric overflow: .*origin"):
        right(engine, 4, 8)
    assert right(engine, 4, 8)
    assert machine.report.calls["mdl.load_from_file_with_mem"] == loads


def test_a_chip_that_has_no_name_is_unknown(place, monkeypatch):
    monkeypatch.setattr(sys.modules["acl"], "get_soc_name", lambda: None)
    assert place().hardware == "unknown"


@pytest.mark.parametrize("real", [None, "a" * 128])
def test_a_name_that_stands_for_none_is_kept(place, tmp_path, monkeypatch, real):
    write(copy_of(np.float32), "onnxruntime", tmp_path)
    path = compile_om(tmp_path, "--input_shape=x:2,3")
    there = place()
    acl = sys.modules["acl"]
    monkeypatch.setattr(acl.mdl, "get_input_name_by_index", lambda *_: "acl_modelId_1_input_0")
    monkeypatch.setattr(acl.mdl, "get_tensor_real_name", lambda *_: real)
    assert there.open_om(path).signature.inputs[0].name == (real or "acl_modelId_1_input_0")


def test_cann_before_8_5_lacks_functions_and_serves_all_the_same(
    encoder_dir, machine, monkeypatch, caplog
):
    """finalize_reference and host_register_v2 came with 8.5."""
    acl = import_cann_module("acl")
    monkeypatch.delattr(acl, "finalize_reference")
    monkeypatch.delattr(acl.rt, "host_register_v2")
    with closing(AscendBackend(0)) as place:
        memory = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
        place.register(memory)
        place.unregister(memory)
        with closing(
            place.open([Artifact(encoder_dir / "model.om", "om", "")], threads=1, outputs=())
        ) as engine:
            engine.bind([], place.memory)
            assert right(engine, 4, 8)
    assert "each copy is made twice: acl.rt.host_register_v2: 207000" in caplog.text
    assert machine.report.calls["finalize"] == 1


# -- how a gear is set, and how much is copied ----------------------------------------------------

SETTER = "mdl.set_input_dynamic_dims"


def test_a_gear_is_set_only_where_it_changes(engine, machine):
    right(engine, *GEARS[1])
    before = machine.report.calls[SETTER]
    for _ in range(3):
        right(engine, *GEARS[1])
    assert machine.report.calls[SETTER] == before
    right(engine, *GEARS[2])
    right(engine, *GEARS[1])
    assert machine.report.calls[SETTER] == before + 2


def test_engines_of_one_model_set_their_gears_in_turn(place, engine, encoder_dir, machine):
    other = bound(place, encoder_dir / "model.om")
    before = machine.report.calls[SETTER]
    for _ in range(2):
        assert right(engine, *GEARS[1])
        assert right(other, *GEARS[2])
    assert machine.report.calls[SETTER] == before + 4


@pytest.mark.parametrize("plan", ["execute@1=507011", "call@2=145013"])
def test_a_gear_is_set_again_after_a_failure(engine, machine, plan):
    right(engine, *GEARS[1])
    calls = [*machine.report.calls]
    if plan.startswith("call"):  # the copies come first
        machine.arm(f"call@{calls and 4}=145013")
        with pytest.raises(EngineFault, match="145013"):
            right(engine, *GEARS[2])
    else:
        machine.arm(plan)
        with pytest.raises(EngineFault, match="507011"):
            right(engine, *GEARS[1])
    before = machine.report.calls[SETTER]
    assert right(engine, *GEARS[1])
    assert machine.report.calls[SETTER] > before


def test_tensors_with_more_elements_than_bytes_are_refused(place, tmp_path, monkeypatch):
    """An example is a YUV420SP image with static AIPP, which has 1.5 bytes for each pixel."""
    write(copy_of(np.float32), "onnxruntime", tmp_path)
    path = compile_om(tmp_path, "--input_shape=x:2,3")
    acl = import_cann_module("acl")
    monkeypatch.setattr(acl.mdl, "get_input_size_by_index", lambda *_: 12)
    with pytest.raises(
        ArtifactFault, match=r"'x': found \[2, 3\], of 24 bytes, expected at most 12"
    ):
        place().open_om(path)


def test_copies_are_bounded_by_what_they_write_to(engine, machine, monkeypatch):
    acl = import_cann_module("acl")
    bounds, copy = [], acl.rt.memcpy
    monkeypatch.setattr(acl.rt, "memcpy", lambda *given: bounds.append(given) or copy(*given))
    right(engine, 1, 8)
    tensors = [max(rows * tokens for rows, tokens in GEARS) * 8] * 2
    assert [(room, nbytes) for _, room, _, nbytes, _ in bounds] == [
        *((nbytes, 64) for nbytes in tensors),
        (16, 16),
    ]


def test_a_turn_that_is_never_free_is_a_lost_card(engine, monkeypatch):
    monkeypatch.setattr(ascend_device, "LOCK_TIMEOUT_S", 0.01)
    executor = engine._executor
    with (
        executor.locks[0],
        pytest.raises(EngineLost, match=r"an execution of lane 0 of npu:0: found"),
    ):
        right(engine, 1, 8)


@pytest.mark.parametrize("held", ["loading or unloading models", "an execution"])
def test_a_change_that_cannot_begin_is_a_lost_card(engine, monkeypatch, held):
    monkeypatch.setattr(ascend_device, "LOCK_TIMEOUT_S", 0.01)
    card = engine._card
    lock = card._changing if held.startswith("loading") else engine._executor.locks[0]
    with lock, pytest.raises(EngineLost, match=held), card.exclusive():
        pass
    assert not card._changing.locked()
    assert not engine._executor.locks[0].locked()


def test_pinned_memory_off_a_multiple_of_64_is_copied_at_once(engine, machine):
    inputs, expected = token_batch(4, 8)
    given = {}
    for name, array in inputs.items():
        memory = engine.place.memory.allocate("test", array.nbytes + 64).memory
        given[name] = memory[32 : 32 + array.nbytes].view(array.dtype).reshape(array.shape)
        given[name][...] = array
    before = Counter(machine.report.calls)
    result = engine.run(given, {"embedding": None})["embedding"]
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    made = Counter(machine.report.calls) - before
    assert made["rt.memcpy"] == 3  # the answer is not pinned at all
    assert made["rt.memcpy_async"] == 0


def test_acl_that_another_library_initialized_is_not_finalized(encoder_dir):
    acl = import_cann_module("acl")
    assert acl.init() == 0
    with closing(AscendBackend(0)):
        pass
    assert acl.rt.get_device_count() == (1, 0)
    assert acl.finalize() == 0
