"""The engine for AIR graphs, on a fake of GE-PY that works on the simulator's memory."""

import gc
import logging
import sys
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from runtime.engines.conformance_engine import token_batch
from runtime.support.ascend import SITE, Machine, compile_om, token_gears
from runtime.support.configs import encoder_config
from runtime.support.fakes import FAKES, forget
from runtime.support.graphs import (
    BFLOAT16,
    ENCODER,
    NONZERO,
    PIXELS,
    Graph,
    copy_of,
    onnx_model,
    sums,
    write,
)

from ge_runtime import Runtime
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import GraphTensor, Limited, Signature
from ge_runtime.errors import (
    ArtifactFault,
    EngineFault,
    EngineLost,
    NoDevice,
    OutOfMemory,
    PlanFault,
)
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.driver.installation import open_ge
from ge_runtime.npu.driver.pyacl import PyAclDriver
from ge_runtime.npu.engines.ascend_backend import AscendBackend
from ge_runtime.specs import DType

pytestmark = pytest.mark.brute_force

ARENA = 1 << 20
GEARS = {
    "ge.inputShape": "input_ids:-1,-1;attention_mask:-1,-1",
    "ge.dynamicDims": "4,8,4,8;1,8,1,8;8,32,8,32",
}


@pytest.fixture(autouse=True)
def machine(little_garbage, monkeypatch):
    """All that a test opens is given back in the end, unless the card was lost."""
    monkeypatch.syspath_prepend(SITE)
    monkeypatch.syspath_prepend(FAKES)
    forget("ge")
    open_ge.cache_clear()
    machine = Machine()
    yield machine
    gc.collect()
    lost = any(card.lost for card in PROCESS_CARDS._open.values())
    report = machine.report
    PROCESS_CARDS.__init__()
    machine.start()
    assert lost or report.live == []
    assert report.broken == {}


@pytest.fixture
def air(tmp_path):
    """A function: the AIR file of a graph, in a version folder."""

    def air_of(graph, **options):
        import ge.graph

        folder = tmp_path / graph.name / "1"
        onnx_file = write(graph, "onnxruntime", folder)
        ge.graph.air_of(onnx_file, folder / "model.air", **options)
        onnx_file.unlink()
        return folder / "model.air"

    return air_of


@pytest.fixture
def opened():
    """A function that opens an engine in its own backend; both are closed at the end."""
    with ExitStack() as stack:

        def open_(path, outputs=("embedding",), arena=ARENA, **options):
            backend = AscendBackend(0, workspace_bytes=arena, options=options.pop("ge", {}))
            stack.callback(backend.close)
            artifact = Artifact(path, "ge_session", "")
            engine = backend.open([artifact], threads=1, outputs=outputs)
            stack.callback(engine.close)
            return engine

        yield open_


def right(engine, rows, tokens, *, seed=0):
    inputs, expected = token_batch(rows, tokens, seed)
    result = engine.run(inputs, {"embedding": None})["embedding"]
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    return True


# -- signature and executions -------------------------------------------------------------------


def test_inputs_are_those_of_the_graph_in_its_order_and_results_take_their_names(air, opened):
    engine = opened(air(ENCODER), ["anything"])
    assert engine.signature == Signature(
        inputs=(
            GraphTensor("input_ids", DType.INT64, (None, None)),
            GraphTensor("attention_mask", DType.INT64, (None, None)),
        ),
        outputs=(GraphTensor("anything", DType.FP32, (None, 4)),),
    )
    assert engine.shapes is None


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (8, 32)])
def test_open_sizes_are_executed_at_any(air, opened, rows, tokens):
    assert right(opened(air(ENCODER)), rows, tokens)


def test_results_are_written_where_they_are_planned_and_others_left_out(air, opened):
    image = np.random.default_rng(0).random((2, 1, 4, 6), dtype=np.float32)
    mask = np.ones((2, 4, 6), np.float32)
    engine = opened(air(PIXELS), ["sums", "inverted"])
    planned = np.empty_like(image)
    results = engine.run({"mask": mask, "image": image}, {"inverted": planned})
    assert results.keys() == {"inverted"}
    assert results["inverted"] is planned
    np.testing.assert_array_equal(planned, 1 - image)
    given = engine.run({"image": image, "mask": mask}, {"sums": None})["sums"]
    np.testing.assert_allclose(given, sums(image, mask), rtol=1e-5)


@pytest.mark.parametrize(
    "dtype", [d for d in DType if d not in (DType.BYTES, DType.BF16, DType.FP64)]
)
def test_elements_of_every_type_that_ge_has_tensors_of_pass(air, opened, dtype):
    x = np.array([[0, 1, 100], [1, 0, 7]]).astype(dtype.numpy)
    engine = opened(air(copy_of(dtype.numpy)), ["y"])
    result = engine.run({"x": x}, {"y": None})["y"]
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_floats_come_back_to_the_bit(air, opened, dtype):
    """GE-PY formats them with six decimals."""
    bits = np.dtype(dtype).str.replace("f", "u")
    x = np.array([[1e-7, 1 / 3, -0.0], [6e4, np.inf, -np.inf], [np.nan, 6e-8, -0.1]]).astype(dtype)
    result = opened(air(copy_of(dtype)), ["y"]).run({"x": x}, {"y": None})["y"]
    assert result.view(bits).tolist() == x.view(bits).tolist()


def test_results_that_ge_py_cannot_read_are_a_fault_and_no_end(air, opened, monkeypatch):
    import ge.graph.tensor

    engine = opened(air(ENCODER))
    with monkeypatch.context() as patch:
        patch.setattr(ge.graph.tensor, "_written", lambda value: "<not_supported>")
        with pytest.raises(EngineFault, match="GE: Invalid item: '<not_supported>'"):
            right(engine, 2, 3)
    assert right(engine, 2, 3)


def test_a_size_that_depends_on_data_is_returned(air, opened):
    engine = opened(air(NONZERO), ["where"])
    x = np.array([0, 3, 0, 5], np.float32)
    assert engine.run({"x": x}, {"where": None})["where"].tolist() == [[1, 3]]
    nothing = engine.run({"x": 0 * x}, {"where": None})["where"]
    assert (nothing.shape, nothing.dtype) == ((1, 0), np.int64)


def test_result_without_dims_is_a_fault(air, opened):
    """GE writes beyond its one element."""

    def total():
        add = onnx.helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
        return onnx_model([add], [("x", 1, ["batch", 3])], [("y", 1, [])])

    engine = opened(air(Graph("total", total, None, ())), ["y"])
    with pytest.raises(EngineFault, match="GE: found a result without dims, which GE-PY"):
        engine.run({"x": np.ones((2, 3), np.float32)}, {"y": None})


def test_planned_output_of_another_shape_is_a_fault(air, opened):
    inputs, _ = token_batch(3, 5)
    with pytest.raises(EngineFault, match=r"found shape \[3, 4\], expected \[1, 4\]"):
        opened(air(ENCODER)).run(inputs, {"embedding": np.empty((1, 4), np.float32)})


def test_two_engines_share_one_ge_and_each_has_its_session(air, opened):
    first, second = opened(air(ENCODER)), opened(air(PIXELS), ["sums", "inverted"])
    assert right(first, 2, 3)
    second.close()
    second.close()
    assert right(first, 3, 2)


def test_an_om_on_the_same_card_takes_turns_with_it(air, opened, tmp_path):
    write(ENCODER, "onnxruntime", tmp_path)
    om = compile_om(tmp_path, *token_gears((2, 8), (4, 8)))
    session = opened(air(ENCODER))
    with closing(AscendBackend(0)) as backend:
        artifact = Artifact(Path(om), "om", "")
        with closing(backend.open([artifact], threads=1, outputs=["embedding"])) as file:
            file.bind([], backend.memory)
            for seed in range(3):
                assert right(session, 2, 8, seed=seed)
                assert right(file, 2, 8, seed=seed)


# -- gears --------------------------------------------------------------------------------------


def test_gears_of_ge_are_the_shapes(air, opened):
    engine = opened(air(ENCODER), ge=GEARS)
    assert [shapes["input_ids"] for shapes in engine.shapes] == [(1, 8), (4, 8), (8, 32)]
    assert all(right(engine, *shapes["input_ids"]) for shapes in engine.shapes)
    with pytest.raises(EngineFault, match=r"found inputs of shapes \[\[2, 8\], \[2, 8\]\]"):
        right(engine, 2, 8)


def test_each_option_is_passed_to_the_session_or_the_graph(air, opened, monkeypatch):
    import ge.session

    reported = []
    add_graph = ge.session.Session.add_graph

    def recorded(session, graph_id, graph, options):
        reported.append((session.options, options))
        return add_graph(session, graph_id, graph, options)

    monkeypatch.setattr(ge.session.Session, "add_graph", recorded)
    opened(air(ENCODER), ge={**GEARS, "ge.aicoreNum": "24|48", "ge.graph_key": "encoder"})
    precision = {"ge.exec.precision_mode_v2": "origin", "ge.session_device_id": "0"}
    gears = {**GEARS, "ge.dynamicNodeType": "1", "ge.graph_key": "encoder"}
    assert reported == [({**precision, "ge.aicoreNum": "24|48"}, gears)]


def test_runtime_takes_its_gears_from_ge(air):
    path = air(ENCODER)
    parameters = {f"graph.{option}": value for option, value in GEARS.items()}
    with runtime_of(path, parameters) as runtime:
        inputs, expected = token_batch(5, 9)
        lengths = inputs["attention_mask"].sum(axis=1, dtype=np.int32)
        answers = runtime.infer(
            [
                {"input_ids": row[None, :length], "lengths": np.array([[length]], np.int32)}
                for row, length in zip(inputs["input_ids"], lengths, strict=True)
            ]
        )
        found = np.concatenate([answer["embedding"] for answer in answers])
        del answers  # they are views of pinned memory, which keeps the card open
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert runtime.gauges()["allocations_after_freeze"] == 0


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"ge.dynamicDims": "1,8,1,8;2,8,2,8"}, "found only this one, expected both ge.inputShape"),
        ({**GEARS, "ge.dynamicDims": "1,8,1,8"}, r"found 1 gear\(s\), expected 2 to 100"),
        ({**GEARS, "ge.dynamicDims": "1,8;2,8"}, "found '1,8', expected 4 positive number"),
        ({**GEARS, "ge.dynamicDims": "1,8,1,8;1,8,1,8"}, "and no gear twice"),
        ({**GEARS, "ge.dynamicDims": "0,8,0,8;1,8,1,8"}, "found '0,8,0,8', expected 4 positive"),
        (
            {**GEARS, "ge.inputShape": "input_ids:-1,-1"},
            "expected all inputs of encoder/1/model.air: input",
        ),
        (
            {**GEARS, "ge.inputShape": "input_ids:-1;attention_mask:-1,-1"},
            r"found \[-1\] for 'input_ids', expected dims that fit .*/model.air: INT64\[\*,\*\]",
        ),
        ({**GEARS, "ge.inputShape": "input_ids"}, "the name of an input once, a colon and its"),
        ({**GEARS, "ge.inputShape": "input_ids:a,b"}, "the name of an input once, a colon and"),
    ],
)
def test_gears_that_ge_would_refuse_are_reported(air, opened, options, fault):
    with pytest.raises(ArtifactFault, match=fault):
        opened(air(ENCODER), ge=options)


# -- memory -------------------------------------------------------------------------------------


def test_ge_allocates_only_from_the_arena(air, opened, machine):
    engine = opened(air(ENCODER))
    assert right(engine, 1, 1)  # what the graph keeps it has from now on
    gc.collect()
    arena, kept = machine.used("device"), engine._executor.pool.used_bytes
    for seed in range(20):
        assert right(engine, 8, 32, seed=seed)
    gc.collect()
    assert machine.used("device") == arena  # inputs, which GE-PY allocates, are gone again
    assert engine._executor.pool.used_bytes == kept
    assert kept < engine._executor.pool.peak_bytes <= ARENA


def test_arena_that_is_too_small_is_out_of_memory_and_the_engine_stays_usable(air, opened, capfd):
    engine = opened(air(copy_of(np.float32)), ["y"], arena=8192)
    small, large = np.ones((2, 3), np.float32), np.ones((500, 3), np.float32)
    for _ in range(2):
        with pytest.raises(OutOfMemory, match="increase 'workspace_pool_mib'"):
            engine.run({"x": large}, {"y": None})
        assert engine.run({"x": small}, {"y": None})["y"].tolist() == small.tolist()
    assert engine._executor.pool.refused == 2
    assert "MemoryError: found 6,000 bytes wanted" in capfd.readouterr().err


def test_error_that_is_kept_keeps_nothing_of_ge(air, opened):
    engine = opened(air(copy_of(np.float32)), ["y"], arena=8192)
    with pytest.raises(OutOfMemory) as raised:
        engine.run({"x": np.ones((500, 3), np.float32)}, {"y": None})
    engine.close()  # ends GE, which counts its sessions, and the arena, which must be empty
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_arena_that_the_card_has_not_is_out_of_memory(air, opened, machine):
    machine.start(hbm_mib=4)
    with pytest.raises(OutOfMemory, match="'GE arena': found 8,388,608 bytes wanted"):
        opened(air(ENCODER), arena=8 << 20)


def test_arena_without_a_size_is_refused_with_the_parameter(air, opened):
    with pytest.raises(PlanFault, match="found no 'workspace_pool_mib', expected this parameter"):
        opened(air(ENCODER), arena=None)


def test_unplanned_work_is_reported_with_the_plan(air, opened):
    engine = opened(air(ENCODER))
    assert isinstance(engine, Limited)
    assert not engine.compiles_each_shape
    with runtime_of(air(ENCODER), {}) as runtime:
        assert runtime.report[1].endswith(
            ": engine ge_session is experimental on npu: it was never run on such a device"
        )
        unplanned = [line for line in runtime.report if "not planned: " in line]
    assert len(unplanned) == len(engine.unplanned) == 4


def test_other_engines_of_a_card_are_not_opened_for_others(air):
    with closing(AscendBackend(0)) as backend:
        artifact = Artifact(air(ENCODER), "torch", "")
        with pytest.raises(ArtifactFault, match="found placement: service for engine torch, expec"):
            backend.open([artifact], threads=1, outputs=["embedding"])


# -- failures -----------------------------------------------------------------------------------


def test_failing_graph_is_a_fault_and_the_engine_stays_usable(air, opened):
    engine = opened(air(ENCODER))
    inputs, _ = token_batch(2, 3)
    with pytest.raises(EngineFault, match="507011"):
        engine.run({**inputs, "input_ids": np.full((2, 3), 99)}, {"embedding": None})
    gc.collect()
    assert right(engine, 2, 3)


def test_failed_execution_is_followed_by_a_new_session_in_the_same_arena(
    air, opened, machine, caplog
):
    engine, other = opened(air(ENCODER)), opened(air(copy_of(np.float32)), ["y"])
    assert right(engine, 2, 3)
    stream = engine._executor._stream
    streams = machine.report.calls["rt.create_stream"]
    machine.arm("execute@1=507015")
    with pytest.raises(EngineFault, match="507015"):
        right(engine, 2, 3)
    assert not engine.lost
    gc.collect()
    with caplog.at_level(logging.WARNING):
        assert all(right(engine, rows, 4) for rows in (1, 2))
    assert engine._executor._stream != stream
    assert machine.report.calls["rt.create_stream"] == streams + 1
    (reported,) = [each.getMessage() for each in caplog.records]
    assert reported.startswith(
        "encoder/1/model.air: the session is reopened, which compiles the graph"
    )
    assert "acl.rt.synchronize_stream_with_timeout: 507015" in reported
    x = np.ones((2, 3), np.float32)
    assert other.run({"x": x}, {"y": None})["y"].tolist() == x.tolist()


def test_a_session_that_cannot_be_reopened_is_a_lost_card(air, opened, machine):
    engine = opened(air(ENCODER))
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault):
        right(engine, 2, 3)
    machine.arm("call@2=207008")
    with pytest.raises(EngineLost, match=r"encoder/1/model\.air: recovery failed: .*create_stream"):
        right(engine, 2, 3)
    assert engine.lost
    calls = machine.report.calls
    with pytest.raises(EngineLost):
        right(engine, 2, 3)
    assert machine.report.calls == calls


@pytest.mark.parametrize("change", ["another", "gone"])
def test_a_file_that_changed_when_its_session_is_reopened_harms_no_other(
    air, opened, machine, change
):
    path = air(ENCODER)
    content = path.read_bytes()
    engine, other = opened(path), opened(air(copy_of(np.float32)), ["y"])
    machine.arm("execute@1=507011")
    with pytest.raises(EngineFault):
        right(engine, 2, 3)
    if change == "another":
        path.write_bytes(b"another")
    else:
        path.unlink()
    for _ in range(2):
        with pytest.raises(EngineFault, match=r"model\.air: .*; load the model again"):
            right(engine, 2, 3)
    x = np.ones((2, 3), np.float32)
    assert other.run({"x": x}, {"y": None})["y"].tolist() == x.tolist()
    path.write_bytes(content)
    assert right(engine, 2, 3)


@pytest.mark.parametrize("made", ["create_stream", "set_device"])
def test_card_that_is_found_lost_as_a_session_is_made_is_left_alone(
    air, opened, machine, monkeypatch, made
):
    path = air(ENCODER)
    opened(path)
    make, before = getattr(PyAclDriver, made), {}

    def find_lost(driver, *given):
        before.update(machine.report.calls)
        machine.arm("device_lost@1")
        return make(driver, *given)

    monkeypatch.setattr(PyAclDriver, made, find_lost)
    with pytest.raises(EngineLost, match=rf"npu:0: acl\.rt\.{made}: 507010"):
        opened(path)
    after = Counter(machine.report.calls) - Counter({**before}) - Counter([f"rt.{made}"])
    assert set(after) <= {"get_recent_err_msg", "rt.get_context", "rt.set_context"}


def test_a_lost_card_is_reported_and_nothing_is_freed(air, opened, machine):
    engine = opened(air(ENCODER))
    assert right(engine, 2, 3)
    machine.arm("device_lost@1")
    with pytest.raises(EngineLost):
        right(engine, 2, 3)
    engine.close()


def test_tensors_of_tasks_that_cannot_be_waited_for_are_not_freed(air, opened, machine):
    engine = opened(air(ENCODER))
    assert right(engine, 2, 3)
    freed = machine.report.calls["rt.free"]
    machine.arm("sync@1=100000;sync@2=100000")
    with pytest.raises(EngineLost, match="waiting for queued tasks failed"):
        right(engine, 2, 3)
    gc.collect()
    assert machine.report.calls["rt.free"] == freed
    engine.close()


@pytest.mark.parametrize("call", [1, 2])
def test_card_that_was_lost_while_idle_is_found_on_close_and_left_alone(air, opened, machine, call):
    engine, neighbour = opened(air(ENCODER)), opened(air(copy_of(np.float32)), ["y"])
    machine.arm(f"device_lost@{call}")
    engine.close()
    assert neighbour.lost
    calls = machine.report.calls
    neighbour.close()
    assert machine.report.calls == calls


@pytest.mark.parametrize("content", [b"", b"no graph"])
def test_file_that_is_no_graph_is_a_fault_with_the_way_to_an_om(tmp_path, opened, content):
    path = tmp_path / "model.air"
    path.write_bytes(content)
    with pytest.raises(ArtifactFault, match=r"Failed to load graph from AIR format.*model\.onnx"):
        opened(path)


def test_file_that_is_not_there_is_a_fault(tmp_path, opened):
    with pytest.raises(ArtifactFault, match=r"model\.air: No such file or directory"):
        opened(tmp_path / "model.air")


def test_graph_without_named_results_needs_one_output_each(air, opened):
    with pytest.raises(ArtifactFault, match=r"found 1 result\(s\), expected one for each output"):
        opened(air(ENCODER), ["a", "b"])
    with pytest.raises(ArtifactFault, match="found no node NetOutput, expected one for each"):
        opened(air(ENCODER, outputs=False))


@pytest.mark.parametrize(
    ("graph", "found"), [(BFLOAT16, "BF16"), (copy_of(np.float64), "FP64")], ids=["bf16", "fp64"]
)
def test_types_that_ge_py_has_no_tensors_of_are_refused(air, opened, graph, found):
    with pytest.raises(ArtifactFault, match=f"'x': found type {found}, expected one that GE-PY"):
        opened(air(graph), ["y"])


def test_without_ge_py_the_fault_names_the_line_that_helps(air, opened, monkeypatch):
    path = air(ENCODER)
    forget("ge")
    monkeypatch.setattr("sys.path", [each for each in sys.path if each != str(FAKES)])
    with pytest.raises(NoDevice, match=r"found no module `ge.ge_global` .*set_env.sh"):
        opened(path)


def test_a_missing_name_of_ge_py_is_reported(air, opened, monkeypatch):
    path = air(ENCODER)
    monkeypatch.delattr(sys.modules["ge.graph"].Node, "get_output_desc")
    with pytest.raises(
        NoDevice, match=r"found a GE-PY without ge\.graph\.Node\.get_output_desc, e"
    ):
        opened(path)


# -- the runtime on it --------------------------------------------------------------------------


def settings(parameters):
    return {
        "devices": "npu:0",
        "engine": "ge_session",
        "workspace_pool_mib": "1",
        "cost": "launch_us=100, element_ns=10, element2_ns=0",
        **parameters,
    }


def runtime_of(path, parameters):
    config = encoder_config(settings(parameters))
    return closing(Runtime.open(path.parent, config, instance_name="encoder_0"))
