"""Loading and unloading: memory, contexts and refusals."""

import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.graphs import onnx_model
from simulator.support.driving import MIB, Blocked, content, fill, ok
from simulator.support.models import (
    FLOAT,
    Loaded,
    breaks,
    compile_to,
    node,
    rows,
    rows_om,
    static_om,
    texts_om,
)

from ascend_simulator import SimulatorViolation, current, freeze, report
from ascend_simulator.codes import Code
from ascend_simulator.interface.mdl import ConfigAttr, LoadType
from ascend_simulator.models import om
from ascend_simulator.models.loaded import models
from ascend_simulator.models.regions import overlap

NONE = (0, 0)


def memory(acl, path):
    """Workspace and weights in the form that a load needs: (ptr, bytes) twice."""
    return [(ok(acl.rt.malloc(nbytes, 0)), nbytes) for nbytes in ok(acl.mdl.query_size(path))]


def load(acl, path, work=NONE, weights=NONE):
    return acl.mdl.load_from_file_with_mem(path, *work, *weights)


# -- memory --------------------------------------------------------------------------------------


def test_ids_of_models_begin_at_1_and_are_not_used_again(acl, tmp_path):
    path = static_om(tmp_path)
    assert [acl.mdl.load_from_file(path) for _ in range(3)] == [(1, 0), (2, 0), (3, 0)]
    ok(acl.mdl.unload(2))
    assert acl.mdl.load_from_file(path) == (4, 0)
    free = compile_to(tmp_path, rows(), input_shape="x:-1,4")
    assert acl.mdl.load_from_file(free) == (1 << 31, 0)


@pytest.mark.parametrize("ours", ["workspace", "weights"])
def test_an_address_of_0_leaves_that_part_to_the_system(acl, tmp_path, ours):
    path = static_om(tmp_path)
    work, weights = memory(acl, path)
    before = len(current().memory.blocks("device"))
    parts = (work, NONE) if ours == "workspace" else (NONE, weights)
    mid = ok(load(acl, path, *parts))
    assert len(current().memory.blocks("device")) == before + 1
    ok(acl.mdl.unload(mid))
    assert len(current().memory.blocks("device")) == before
    for ptr, _ in (work, weights):
        ok(acl.rt.free(ptr))


@pytest.mark.parametrize("place", [0, 1])
def test_memory_that_is_short_by_one_byte_is_refused(acl, tmp_path, place):
    path = static_om(tmp_path)
    parts = memory(acl, path)
    ptr, nbytes = parts[place]
    parts[place] = ptr, nbytes - 1
    assert load(acl, path, *parts) == (0, Code.GE_PARAM_INVALID)
    assert f"found {nbytes - 1:,} bytes, expected {nbytes:,}" in acl.get_recent_err_msg()
    for ptr, _ in parts:
        ok(acl.rt.free(ptr))  # nothing holds it


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("memory.host-for-device", lambda acl: ok(acl.rt.malloc_host(4 * MIB))),
        ("memory.beyond-block", lambda acl: ok(acl.rt.malloc(64, 0))),
        ("model.memory-unaligned", lambda acl: ok(acl.rt.malloc(8 * MIB, 0)) + 32),
        ("memory.unknown", lambda acl: 0xDE00000000FFFF40),
    ],
)
def test_memory_that_a_device_would_corrupt_is_found(acl, tmp_path, place, rule, given):
    path = static_om(tmp_path)
    parts = memory(acl, path)
    parts[place] = given(acl), 4 * MIB
    with breaks(rule):
        load(acl, path, *parts)


def test_memory_of_another_device_is_found(started, tmp_path):
    acl = started(devices=2)
    path = static_om(tmp_path)
    parts = memory(acl, path)
    ok(acl.rt.set_device(1))
    with breaks("memory.other-device"):
        load(acl, path, *parts)


@pytest.mark.parametrize("part", ["work", "weights"])
def test_memory_of_a_loaded_model_is_not_freed(acl, tmp_path, part):
    loaded = Loaded(acl, static_om(tmp_path))
    with breaks("memory.free-while-held"):
        acl.rt.free(getattr(loaded, part))
    loaded.release()


def test_a_device_that_is_full_has_a_code(started, tmp_path):
    acl = started(hbm_mib=2)
    before = current().memory.used(0)
    ok(acl.rt.malloc(MIB, 2))
    path = static_om(tmp_path)
    assert acl.mdl.load_from_file(path) == (0, Code.GE_MEMORY_ALLOCATION)
    assert acl.mdl.load_from_file_with_mem(path, 0, 0, 0, 0) == (0, Code.GE_MEMORY_ALLOCATION)
    assert current().memory.used(0) - before <= 2 * MIB


def test_a_load_in_the_run_phase_is_found(acl, tmp_path):
    freeze()
    with breaks("memory.malloc-in-run"):
        acl.mdl.load_from_file(static_om(tmp_path))
    assert report().mallocs == {"run": 1}


# -- weights -------------------------------------------------------------------------------------


def test_loads_of_one_file_may_share_a_weight_block(acl, tmp_path):
    path = static_om(tmp_path)
    (work, weights), (other, _) = memory(acl, path), memory(acl, path)
    first = ok(load(acl, path, work, weights))
    before = content(*weights)
    second = ok(load(acl, path, other, weights))
    assert content(*weights) == before
    ok(acl.mdl.unload(first))
    ok(acl.mdl.unload(second))


def test_weights_are_written_at_each_load(acl, tmp_path):
    path = static_om(tmp_path)
    work, weights = memory(acl, path)
    mid = ok(load(acl, path, work, weights))
    before = content(*weights)
    ok(acl.mdl.unload(mid))
    fill(weights[0], bytes(weights[1]))
    ok(load(acl, path, work, weights))
    assert content(*weights) == before


def test_weights_of_a_model_that_executes_are_not_written(acl, tmp_path):
    path = static_om(tmp_path)
    loaded = Loaded(acl, path)
    stream = ok(acl.rt.create_stream())
    blocked = Blocked(stream)
    ok(loaded.execute_async(stream))
    other = ok(acl.rt.malloc(loaded.work_bytes, 0)), loaded.work_bytes
    with breaks("memory.busy"):
        load(acl, path, other, (loaded.weights, loaded.weight_bytes))
    ok(acl.rt.free(other[0]))  # nothing holds it
    blocked.release()
    ok(acl.rt.synchronize_stream(stream))


def test_weights_of_one_file_are_shared_whole_or_not_at_all(acl, tmp_path):
    path = static_om(tmp_path)
    _, nbytes = ok(acl.mdl.query_size(path))
    block = ok(acl.rt.malloc(2 * nbytes, 0))
    ok(load(acl, path, weights=(block, nbytes)))
    with breaks("model.weights-changed"):
        load(acl, path, weights=(block + 64, nbytes))
    ok(load(acl, path, weights=(block + nbytes, nbytes)))


PIECES = st.tuples(st.integers(0, 20), st.integers(0, 8))


@given(one=PIECES, two=PIECES)
def test_pieces_overlap_where_they_have_a_byte_in_common(one, two):
    common = set(range(one[0], sum(one))) & set(range(two[0], sum(two)))
    assert overlap(one, two) == bool(common)


def test_another_file_in_the_weight_block_is_found(acl, tmp_path):
    loaded = Loaded(acl, static_om(tmp_path))
    assert loaded.execute() == 0
    with breaks("model.weights-changed"):
        load(acl, texts_om(tmp_path), NONE, (loaded.weights, loaded.weight_bytes))
    assert loaded.execute() == 0  # the weights are unchanged


@pytest.mark.parametrize("part", ["work", "weights"])
def test_a_workspace_over_the_weights_of_another_model_is_found(acl, tmp_path, part):
    pool = ok(acl.rt.malloc(4 * MIB, 0))
    parts = {"work": (pool, 2 * MIB), "weights": (pool + MIB, 2 * MIB)}
    first = {**dict.fromkeys(parts, NONE), part: parts.pop(part)}
    ((last, over),) = parts.items()
    path = static_om(tmp_path)
    ok(load(acl, path, first["work"], first["weights"]))
    second = {"work": NONE, "weights": NONE, last: over}
    with breaks("model.weights-changed"):
        load(acl, path, second["work"], second["weights"])


def test_changed_weights_of_a_large_model_are_detected_at_unload(acl, tmp_path):
    side = 512  # four slices of weights
    model = onnx_model(
        [node("MatMul", ["x", "w"], ["y"])],
        [("x", FLOAT, [1, side])],
        [("y", FLOAT, [1, side])],
        {"w": np.random.default_rng(0).random((side, side), np.float32)},
    )
    loaded = Loaded(acl, compile_to(tmp_path, model))
    fill(loaded.weights + loaded.weight_bytes - MIB // 2, b"other")
    with breaks("model.weights-changed"):
        acl.mdl.unload(loaded.id)


# -- context, chip, unload -----------------------------------------------------------------------


def test_a_load_needs_a_context(machine, tmp_path):
    acl = machine()
    ok(acl.init())
    path = static_om(tmp_path)
    assert acl.mdl.load_from_file(path) == (0, Code.RT_CONTEXT_NULL)
    assert acl.mdl.query_size(path) == (0, 0, Code.RT_CONTEXT_NULL)


def test_a_context_is_destroyed_after_its_models(acl, tmp_path):
    context = ok(acl.rt.create_context(0))
    ok(acl.mdl.load_from_file(static_om(tmp_path)))
    with pytest.raises(SimulatorViolation, match=r"context.destroyed-in-use.*model 1"):
        acl.rt.destroy_context(context)


def test_a_file_for_another_chip_is_refused_at_load_only(started, tmp_path):
    acl = started(soc="AscendSimulator2")
    path = static_om(tmp_path)
    assert acl.mdl.query_size(path)[2] == 0
    assert acl.mdl.load_from_file(path) == (0, Code.RT_SOC_VERSION)
    text = "found a model for AscendSimulator, expected AscendSimulator2"
    assert text in acl.get_recent_err_msg()


def test_loads_of_one_file_share_a_graph(acl, tmp_path):
    path = static_om(
        tmp_path, 7
    )  # unique: an exception of another test may keep the same graph alive
    first, second = Loaded(acl, path), Loaded(acl, path)
    other = Loaded(acl, rows_om(tmp_path))
    graphs = [models().get(each.id, "test").graph for each in (first, second, other)]
    assert graphs[0] is graphs[1]
    assert graphs[0] is not graphs[2]
    gone = weakref.ref(graphs[0])
    del graphs
    ok(acl.mdl.unload(first.id))
    assert gone() is not None
    ok(acl.mdl.unload(second.id))
    assert gone() is None


def test_a_graph_that_cannot_be_opened_is_refused_and_nothing_is_held(acl, tmp_path):
    path = tmp_path / "bad.om"
    path.write_bytes(om.serialize(om.read(static_om(tmp_path)).manifest, b"no graph"))
    parts = memory(acl, str(path))
    assert load(acl, str(path), *parts) == (0, Code.GE_LOAD_MODEL)
    assert acl.mdl.load_from_file(str(path)) == (0, Code.GE_LOAD_MODEL)
    for ptr, _ in parts:
        ok(acl.rt.free(ptr))
    assert current().memory.used(0) == 0


def test_load_ms_delays_loads(started, tmp_path):
    acl = started(load_ms=20)
    path = static_om(tmp_path)
    begin = time.perf_counter()
    ok(acl.mdl.load_from_file(path))
    assert time.perf_counter() - begin >= 0.02


def test_a_load_can_be_made_to_fail(acl, tmp_path):
    current().faults.arm("load@1=545002")
    current().update_all_clear()
    assert acl.mdl.load_from_file(static_om(tmp_path)) == (0, 545002)
    assert acl.mdl.load_from_file(static_om(tmp_path))[1] == 0


# -- from memory ---------------------------------------------------------------------------------


def test_models_are_loaded_from_memory(acl, tmp_path):
    path = rows_om(tmp_path)
    data = Path(path).read_bytes()
    ptr = acl.util.bytes_to_ptr(data)
    sizes = acl.mdl.query_size(path)
    assert acl.mdl.query_size_from_mem(ptr, len(data)) == sizes
    assert acl.mdl.load_from_mem(ptr, len(data)) == (1, 0)
    work, weights = memory(acl, path)
    assert acl.mdl.load_from_mem_with_mem(ptr, len(data), *work, *weights) == (2, 0)
    assert acl.mdl.load_from_mem_with_mem(ptr, len(data), *work, weights[0], 1) == (
        0,
        Code.GE_PARAM_INVALID,
    )


@pytest.mark.parametrize(
    ("ptr", "size", "code"),
    [
        (0, 100, Code.INVALID_PARAM),
        ("data", 0, Code.INVALID_PARAM),
        ("data", 100, Code.GE_EXEC_MODEL_DATA_SIZE_INVALID),
    ],
)
def test_bad_memory_is_refused(acl, tmp_path, ptr, size, code):
    data = Path(rows_om(tmp_path)).read_bytes()
    address = acl.util.bytes_to_ptr(data) if ptr == "data" else ptr
    assert acl.mdl.query_size_from_mem(address, size) == (0, 0, code)
    assert acl.mdl.load_from_mem(address, size) == (0, code)
    assert acl.mdl.load_from_mem_with_mem(address, size, 0, 0, 0, 0) == (0, code)


# -- with a configuration ------------------------------------------------------------------------


def configured(acl, options):
    handle = acl.mdl.create_config_handle()
    for attr, value in options.items():
        ok(acl.mdl.set_config_opt(handle, int(attr), value))
    return handle


def test_a_configuration_loads_from_a_file(acl, tmp_path):
    path = static_om(tmp_path)
    handle = configured(
        acl, {ConfigAttr.ACL_MDL_LOAD_TYPE_SIZET: LoadType.ACL_MDL_LOAD_FROM_FILE, 2: path}
    )
    assert acl.mdl.load_with_config(handle) == (1, 0)
    assert acl.mdl.destroy_config_handle(handle) == 0
    assert acl.mdl.unload(1) == 0


def test_a_configuration_loads_into_memory_of_the_caller(acl, tmp_path):
    path = static_om(tmp_path)
    (work, work_size), (weights, weight_size) = memory(acl, path)
    options = {1: 2, 2: path, 5: weights, 6: weight_size, 7: work, 8: work_size}
    before = current().memory.used(0)
    assert acl.mdl.load_with_config(configured(acl, options)) == (1, 0)
    assert current().memory.used(0) == before


def test_the_workspace_may_lack_the_share_of_inputs_and_outputs(acl, tmp_path):
    path = static_om(tmp_path)
    (work, _), _ = memory(acl, path)
    lean = om.read(path).manifest.lean_work_bytes
    options = {1: 2, 2: path, 7: work, 8: lean}
    assert acl.mdl.load_with_config(configured(acl, options)) == (0, Code.GE_PARAM_INVALID)
    assert acl.mdl.load_with_config(configured(acl, {**options, 13: 1}))[1] == 0
    short = {**options, 13: 1, 8: lean - 1}
    assert acl.mdl.load_with_config(configured(acl, short)) == (0, Code.GE_PARAM_INVALID)


def test_a_configuration_loads_from_memory(acl, tmp_path):
    data = Path(static_om(tmp_path)).read_bytes()
    options = {1: 3, 3: acl.util.bytes_to_ptr(data), 4: len(data), 0: 7}
    assert acl.mdl.load_with_config(configured(acl, options)) == (1, 0)
    assert acl.mdl.load_with_config(configured(acl, {**options, 1: 4})) == (2, 0)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, Code.INVALID_PARAM),
        ({2: "m.om"}, Code.INVALID_PARAM),
        ({1: 1}, Code.INVALID_PARAM),
        ({1: 2}, Code.INVALID_PARAM),
        ({1: 3, 3: 64}, Code.INVALID_PARAM),
        ({1: 4, 4: 64}, Code.INVALID_PARAM),
        ({1: 5, 2: "m.om"}, Code.API_NOT_SUPPORT),
        ({1: 6}, Code.API_NOT_SUPPORT),
        ({1: 1, 2: "/no/such.om"}, Code.GE_EXEC_MODEL_PATH_INVALID),
    ],
)
def test_an_incomplete_configuration_is_refused(acl, options, code):
    assert acl.mdl.load_with_config(configured(acl, options)) == (0, code)


@pytest.mark.parametrize(
    ("attr", "value"),
    [
        (0, 8),
        (1, 0),
        (1, 7),
        (2, 5),
        (5, "text"),
        (13, 2),
        (14, 1),
        (25, 2),
        (29, 1),
        (28, 1),
        (77, 1),
    ],
)
def test_invalid_option_values_are_refused(acl, attr, value):
    handle = acl.mdl.create_config_handle()
    assert acl.mdl.set_config_opt(handle, attr, value) == Code.INVALID_PARAM


def test_null_and_dead_configurations_are_refused(acl):
    assert acl.mdl.set_config_opt(0, 1, 1) == Code.INVALID_PARAM
    assert acl.mdl.load_with_config(0) == (0, Code.INVALID_PARAM)
    assert acl.mdl.destroy_config_handle(0) == Code.INVALID_PARAM
    handle = acl.mdl.create_config_handle()
    ok(acl.mdl.destroy_config_handle(handle))
    with breaks("model.dead-handle"):
        acl.mdl.load_with_config(handle)
    with pytest.raises(TypeError):
        acl.mdl.set_config_opt(handle, 2, 2.5)


# -- free shapes ---------------------------------------------------------------------------------
