"""The memory of a compiled model: the result is never too small."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from runtime.support.graphs import onnx_model
from simulator.support.models import FLOAT, compile_to, node, rows, rows_om, static_om, texts_om

from ascend_simulator.compiler.inference import FIXED_BYTES, Step, occupied, places, values_bytes
from ascend_simulator.models import om


@pytest.mark.parametrize(
    ("nbytes", "expected"), [(0, 512), (1, 512), (480, 512), (481, 1024), (512, 1024)]
)
def test_a_slice_has_32_bytes_more_and_a_boundary_of_512(nbytes, expected):
    assert occupied(nbytes) == expected


@st.composite
def graphs(draw):
    """Steps that each read some earlier values, and the bytes of the values."""
    steps, made, nbytes = [], [], {}
    for index in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.sampled_from(made), max_size=3)) if made else []
        writes = [f"{index}.{port}" for port in range(draw(st.integers(1, 2)))]
        steps.append(Step(tuple(reads), tuple(writes)))
        made += writes
        nbytes |= {name: draw(st.integers(0, 5000)) for name in writes}
    return steps, nbytes


def alive(steps, step):
    """Return the values held while `step` runs: made by then, and read then or later."""
    return {
        name
        for index, maker in enumerate(steps[: step + 1])
        for name in maker.writes
        if index == step or any(name in later.reads for later in steps[step:])
    }


@pytest.mark.brute_force
@given(graph=graphs())
def test_values_alive_at_one_time_never_share_a_byte(graph):
    steps, nbytes = graph
    placed = places(steps, nbytes)
    for step in range(len(steps)):
        taken = sorted((placed[name].offset, placed[name].size) for name in alive(steps, step))
        for (offset, size), (next_offset, _) in pairwise(taken):
            assert offset + size <= next_offset


@pytest.mark.brute_force
@given(graph=graphs())
def test_the_workspace_is_at_least_what_is_alive_at_its_worst_step(graph):
    steps, nbytes = graph
    worst = max(
        sum(occupied(nbytes[name]) for name in alive(steps, step)) for step in range(len(steps))
    )
    everything = sum(map(occupied, nbytes.values()))
    shared = values_bytes(steps, nbytes, reuse=True)
    assert worst <= shared <= values_bytes(steps, nbytes, reuse=False)
    assert values_bytes(steps, nbytes, reuse=False) >= everything


def chain(length, width=1000):
    """x to y through `length` operators of one size."""
    names = ["x", *(f"v{index}" for index in range(length - 1)), "y"]
    return onnx_model(
        [node("Relu", [a], [b]) for a, b in pairwise(names)],
        [("x", FLOAT, ["n", width])],
        [("y", FLOAT, ["n", width])],
    )


def manifest(path):
    return om.read(path).manifest


def test_a_chain_needs_two_values_and_not_all(tmp_path):
    path = compile_to(tmp_path, chain(50), input_shape="x:1,1000")
    found = manifest(path)
    one = occupied(4000)
    # Two values of the chain at a time, as much again inside an operator, input and output.
    assert found.work_bytes == FIXED_BYTES + 2 * one + 2 * one + 2 * one
    assert found.lean_work_bytes == FIXED_BYTES + 4 * one
    path = compile_to(tmp_path, chain(50), input_shape="x:1,1000", disable_reuse_memory="1")
    assert manifest(path).work_bytes == FIXED_BYTES + 50 * one + 2 * one + 2 * one


def test_the_largest_gear_decides(tmp_path):
    gears, largest = (
        compile_to(tmp_path, chain(3), input_shape="x:-1,1000", dynamic_batch_size=flag)
        for flag in ("64,1,8", "64,2")
    )
    assert manifest(gears).work_bytes == manifest(largest).work_bytes


def test_fp16_copies_of_inputs_are_counted(tmp_path):
    path = compile_to(tmp_path, chain(2), input_shape="x:1,1000", precision_mode_v2="fp16")
    half, full = occupied(2000), occupied(4000)
    # Halves: the input and what Relu makes of it, then that and the output.
    assert manifest(path).work_bytes == FIXED_BYTES + 2 * half + 2 * half + 2 * full


def test_weights_are_all_constants_each_with_its_rounding(tmp_path):
    three = np.full((100,), 3, np.float32)
    model = onnx_model(
        [
            node("Constant", [], ["two"], value_float=2.0),
            node("Constant", [], ["three"], value=numpy_helper.from_array(three)),
            node("Mul", ["x", "w"], ["a"]),
            node("Add", ["a", "three"], ["b"]),
            node("Mul", ["b", "two"], ["y"]),
        ],
        [("x", FLOAT, ["n", 100])],
        [("y", FLOAT, ["n", 100])],
        {"w": np.ones((1000, 100), np.float32)[:1]},
    )
    path = compile_to(tmp_path, model, input_shape="x:1,100")
    assert manifest(path).weight_bytes == occupied(400) + occupied(400)


def test_query_size_returns_the_sizes_in_the_file(acl, tmp_path):
    for path in (static_om(tmp_path), rows_om(tmp_path), texts_om(tmp_path)):
        found = manifest(path)
        answer = found.work_bytes, found.weight_bytes, 0
        assert acl.mdl.query_size(path) == answer
        assert found.work_bytes > FIXED_BYTES


def test_a_dynamic_model_has_weights_and_no_workspace(acl, tmp_path):
    path = compile_to(tmp_path, rows(), input_shape="x:-1,4")
    assert acl.mdl.query_size(path) == (0, occupied(4 * 3 * 4), 0)
