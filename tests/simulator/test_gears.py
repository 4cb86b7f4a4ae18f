"""Gears: the order of the setters' checks, the values they write, and their use by executions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.support.graphs import onnx_model
from runtime.support.threads import Beside
from simulator.conftest import load_acl
from simulator.support.driving import Blocked, content, fill, ok
from simulator.support.models import (
    FLOAT,
    Loaded,
    breaks,
    compile_to,
    image_om,
    node,
    rows_om,
    static_om,
    texts_om,
)

from ascend_simulator import Settings, SimulatorWarning, reset_for_tests
from ascend_simulator.codes import Code

INVALID = Code.INVALID_PARAM
UNKNOWN = Code.GE_EXEC_MODEL_ID_INVALID
LENGTH = Code.GE_DYNAMIC_INPUT_LENGTH_INVALID
NO_GEAR = Code.GE_DYNAMIC_BATCH_SIZE_INVALID


def dims(*values):
    return {"name": "", "dimCount": len(values), "dims": list(values)}


SETTERS = {
    "batch": (rows_om, "set_dynamic_batch_size", (4,), (3,)),
    "image": (image_om, "set_dynamic_hw_size", (2, 3), (3, 2)),
    "dims": (texts_om, "set_input_dynamic_dims", (dims(2, 8, 2, 8),), (dims(2, 4, 2, 4),)),
}


@pytest.fixture(params=SETTERS)
def family(request):
    return SETTERS[request.param]


def setter_of(acl, family):
    return getattr(acl.mdl, family[1])


def test_setters_check_in_the_order_of_the_documents(acl, tmp_path, family):
    """Each row also has the faults of all rows below it, but reports its own."""
    make, _, right, wrong = family
    loaded = Loaded(acl, make(tmp_path))
    place = loaded.gear_place
    short = loaded.buffers([])
    for ptr, size in zip(loaded.inputs.ptrs[:-1], loaded.inputs.sizes[:-1], strict=True):
        ok(acl.mdl.add_dataset_buffer(short.dataset, acl.create_data_buffer(ptr, size)))
    gear = acl.create_data_buffer(loaded.inputs.ptrs[-1], 3)
    ok(acl.mdl.add_dataset_buffer(short.dataset, gear))
    null = loaded.buffers([])
    for _ in loaded.inputs.ptrs:
        ok(acl.mdl.add_dataset_buffer(null.dataset, acl.create_data_buffer(0, 64)))
    zero = (dims(),) if family[1] == "set_input_dynamic_dims" else (0,) * len(right)
    unknown = loaded.id + 7
    call = setter_of(acl, family)
    assert call(unknown, 0, 9, *zero) == INVALID
    assert call(unknown, short.dataset, place, *zero) == INVALID
    assert call(unknown, short.dataset, 9, *wrong) == INVALID
    assert call(unknown, short.dataset, place + 1, *wrong) == INVALID
    assert call(unknown, null.dataset, place, *wrong) == INVALID
    if family[1] == "set_input_dynamic_dims":
        assert call(unknown, short.dataset, place, *wrong) == UNKNOWN
        assert call(loaded.id, short.dataset, place, *wrong) == NO_GEAR
        assert call(loaded.id, short.dataset, place, *right) == LENGTH
        assert ok(acl.mdl.get_cur_output_dims(loaded.desc, 0))["dims"] == [
            2
        ]  # the gear has changed
    else:
        assert call(unknown, short.dataset, place, *wrong) == LENGTH
        assert call(unknown, loaded.inputs.dataset, place, *wrong) == UNKNOWN
        assert call(loaded.id, loaded.inputs.dataset, place, *wrong) == NO_GEAR


def test_a_gear_of_another_family_is_refused(acl, tmp_path, family):
    make, _, _, _ = family
    loaded = Loaded(acl, make(tmp_path))
    inputs, place = loaded.inputs.dataset, loaded.gear_place
    for other in SETTERS.values():
        if other[0] is not make:
            assert setter_of(acl, other)(loaded.id, inputs, place, *other[2]) == NO_GEAR


def test_a_gear_of_the_same_values_is_one_of_its_family_only(acl, tmp_path):
    model = onnx_model(
        [node("Identity", ["x"], ["y"])], [("x", FLOAT, ["h", "w"])], [("y", FLOAT, ["h", "w"])]
    )
    shape = {"input_format": "ND", "input_shape": "x:-1,-1"}
    loaded = Loaded(acl, compile_to(tmp_path, model, **shape, dynamic_dims="2,3;4,4"))
    inputs = loaded.inputs.dataset
    assert acl.mdl.set_dynamic_hw_size(loaded.id, inputs, 1, 2, 3) == NO_GEAR
    assert loaded.set_dims(2, 3) == 0


def test_a_static_model_has_no_gear(acl, tmp_path, family):
    loaded = Loaded(acl, static_om(tmp_path))
    call = setter_of(acl, family)
    assert call(loaded.id, loaded.inputs.dataset, 0, *family[2]) == NO_GEAR


def test_fixed_dims_are_given_too_and_must_be_right(acl, tmp_path):
    model = onnx_model(
        [node("Identity", ["x"], ["y"])], [("x", FLOAT, ["n", 5])], [("y", FLOAT, ["n", 5])]
    )
    path = compile_to(tmp_path, model, input_format="ND", input_shape="x:-1,5", dynamic_dims="1;2")
    loaded = Loaded(acl, path)
    assert loaded.set_dims(2, 5) == 0
    assert loaded.set_dims(2, 6) == LENGTH
    assert loaded.set_dims(2) == LENGTH
    assert loaded.set_dims(3, 5) == NO_GEAR


@pytest.mark.parametrize(
    "given", [None, [1, 2], {}, {"dims": 3}, {"dimCount": "2", "dims": [1, 2]}]
)
def test_dims_are_a_dict(acl, given):
    with pytest.raises((TypeError, AttributeError)):
        acl.mdl.set_input_dynamic_dims(0, 0, 0, given)


def test_dim_count_determines_the_dims(acl, tmp_path):
    loaded = Loaded(acl, texts_om(tmp_path))
    inputs, place = loaded.inputs.dataset, loaded.gear_place
    longer = {"name": "", "dimCount": 4, "dims": [2, 8, 2, 8, 99]}
    assert acl.mdl.set_input_dynamic_dims(loaded.id, inputs, place, longer) == 0
    with pytest.raises(ValueError, match="found 4 dims, expected dimCount 5"):
        acl.mdl.set_input_dynamic_dims(
            loaded.id, inputs, place, {"name": "", "dimCount": 5, "dims": [2, 8, 2, 8]}
        )
    many = {"name": "", "dimCount": 129, "dims": [1] * 129}
    assert acl.mdl.set_input_dynamic_dims(loaded.id, inputs, place, many) == INVALID


@pytest.mark.parametrize(("size", "width"), [(8, 8), (64, 8), (7, 4), (4, 4)])
def test_the_value_is_written_at_once_as_wide_as_the_buffer_allows(acl, tmp_path, size, width):
    loaded = Loaded(acl, rows_om(tmp_path))
    ptr = loaded.malloc(64)
    ok(acl.update_data_buffer(loaded.inputs.handles[-1], ptr, size))
    before = content(ptr, 64)
    ok(loaded.set_batch(4))
    assert content(ptr, 64) == (4).to_bytes(width, "little") + before[width:]


def test_only_open_dims_are_written(acl, tmp_path):
    loaded = Loaded(acl, image_om(tmp_path))
    inputs, place = loaded.inputs.dataset, loaded.gear_place
    assert acl.mdl.get_input_size_by_index(loaded.desc, place) == 16
    ok(acl.mdl.set_dynamic_hw_size(loaded.id, inputs, place, 2, 3))
    assert np.frombuffer(content(loaded.inputs.ptrs[-1], 16), np.int64).tolist() == [2, 3]


def test_a_gear_buffer_that_an_execution_has_yet_to_read_is_not_written(acl, tmp_path):
    loaded = Loaded(acl, rows_om(tmp_path))
    ok(loaded.set_batch(8))
    stream = ok(acl.rt.create_stream())
    blocked = Blocked(stream)
    loaded.write(0, np.ones((8, 4), np.float32))
    assert loaded.execute_async(stream) == 0
    with breaks("memory.busy"):
        loaded.set_batch(4)
    blocked.release()
    ok(acl.rt.synchronize_stream(stream))
    assert loaded.set_batch(4) == 0


def test_a_gear_is_set_in_the_context_of_the_model(acl, tmp_path):
    loaded = Loaded(acl, rows_om(tmp_path))
    assert Beside(loaded.set_batch, 4).result() == 107002
    ok(acl.rt.create_context(0))
    with breaks("model.other-context"):
        loaded.set_batch(4)


def test_a_gear_that_no_setter_wrote_runs(acl, tmp_path):
    loaded = Loaded(acl, rows_om(tmp_path))
    fill(loaded.inputs.ptrs[-1], (1).to_bytes(8, "little"))
    before = loaded.output_bytes(0)
    with pytest.warns(SimulatorWarning, match="model.gear-not-set"):
        ok(loaded.execute())
    assert loaded.output_bytes(0)[12:] == before[12:]


def test_an_unset_gear_must_fit_the_buffers(acl, tmp_path):
    """Without a set gear, the one with the largest inputs runs; others may have larger outputs."""
    model = onnx_model(
        [
            node("ReduceSum", ["x", "axis"], ["sum"], name="sum"),
            node("MatMul", ["sum", "ones"], ["y"], name="spread"),
        ],
        [("x", FLOAT, ["n", "t"])],
        [("y", FLOAT, ["n", 256])],
        {"axis": np.array([1]), "ones": np.ones((1, 256), np.float32)},
    )
    flags = {"input_format": "ND", "input_shape": "x:-1,-1", "dynamic_dims": "1,64;8,4"}
    loaded = Loaded(acl, compile_to(tmp_path, model, **flags))
    ok(acl.update_data_buffer(loaded.outputs.handles[0], loaded.outputs.ptrs[0], 1024))
    width = loaded.inputs.sizes[-1] // 2
    fill(loaded.inputs.ptrs[-1], b"".join(size.to_bytes(width, "little") for size in (8, 4)))
    with pytest.warns(SimulatorWarning, match="model.gear-not-set"), breaks("model.gear-content"):
        loaded.execute()


def test_a_gear_not_written_by_a_setter_must_fit_the_buffers(acl, tmp_path):
    loaded = Loaded(acl, rows_om(tmp_path))
    ok(loaded.set_batch(4))
    ok(acl.update_data_buffer(loaded.inputs.handles[0], loaded.inputs.ptrs[0], 4 * 16))
    fill(loaded.inputs.ptrs[-1], (8).to_bytes(8, "little"))
    with breaks("model.gear-content"):
        loaded.execute()


def test_lenient_mode_runs_a_gear_not_written_by_a_setter_if_it_fits(started, tmp_path):
    acl = started(mode="lenient")
    loaded = Loaded(acl, rows_om(tmp_path))
    ok(loaded.set_batch(4))
    fill(loaded.inputs.ptrs[-1], (8).to_bytes(8, "little"))
    before = loaded.output_bytes(0)
    with pytest.warns(SimulatorWarning, match="model.gear-content"):
        assert loaded.execute() == 0
    assert loaded.output_bytes(0)[84:] != before[84:]
    ok(acl.update_data_buffer(loaded.outputs.handles[0], loaded.outputs.ptrs[0], 4 * 12))
    with pytest.warns(SimulatorWarning, match="for which 'product:0:y' has 48 bytes of 96"):
        assert loaded.execute() == Code.RT_MODEL_EXECUTE


# -- any table of gears --------------------------------------------------------------------------

SIDES = st.integers(1, 6)
TABLES = st.lists(st.tuples(SIDES, SIDES), min_size=2, max_size=5, unique=True)


@pytest.mark.brute_force
@settings(max_examples=25, deadline=None)
@given(table=TABLES, data=st.data())
def test_any_gear_of_any_table_gives_its_dims_its_answer_and_leaves_the_rest(
    tmp_path_factory, table, data
):
    reset_for_tests(Settings())
    acl = load_acl()
    ok(acl.init())
    ok(acl.rt.set_device(0))
    flag = ";".join(f"{n},{t},{n},{t}" for n, t in table)
    loaded = Loaded(acl, texts_om(tmp_path_factory.mktemp("gears"), flag))
    found = ok(acl.mdl.get_input_dynamic_dims(loaded.desc, -1, len(table)))
    assert [tuple(each["dims"]) for each in found] == [(n, t, n, t) for n, t in table]
    for n, t in data.draw(st.lists(st.sampled_from(table), min_size=1, max_size=4)):
        poison = bytes(data.draw(st.integers(0, 255)) for _ in range(8))
        for ptr, size in zip(loaded.outputs.ptrs, loaded.outputs.sizes, strict=True):
            fill(ptr, (poison * size)[:size])
        ids = np.array(
            data.draw(st.lists(st.integers(-9, 9), min_size=n * t, max_size=n * t))
        ).reshape(n, t)
        mask = (ids > 0).astype(np.int64)
        ok(loaded.set_dims(n, t, n, t))
        loaded.write(0, ids)
        loaded.write(1, mask)
        ok(loaded.execute())
        assert ok(acl.mdl.get_cur_output_dims(loaded.desc, 0))["dims"] == [n]
        assert ok(acl.mdl.get_cur_output_dims(loaded.desc, 1))["dims"] == [n, t]
        for place, expected in enumerate(((ids * mask).sum(1), ids * mask)):
            whole = loaded.output_bytes(place)
            assert whole[: expected.nbytes] == np.ascontiguousarray(expected).tobytes()
            assert whole[expected.nbytes :] == (poison * len(whole))[expected.nbytes : len(whole)]
    missing = next(
        (n, t) for n, t in itertools.product(range(1, 8), range(1, 8)) if (n, t) not in table
    )
    assert loaded.set_dims(*missing, *missing) == NO_GEAR
    loaded.release()
