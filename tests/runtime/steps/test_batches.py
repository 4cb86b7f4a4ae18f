"""Joining requests to a batch, splitting its results, and packages that are not installed."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.steps import step_config

from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.steps.openvino_step import OpenVinoStep
from ge_runtime.steps.step_config import join, part
from ge_runtime.steps.torch_step import TorchStep

X = {"name": "x", "data_type": "TYPE_FP32", "dims": [2]}
RAGGED = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": True}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_each_request_gets_its_own_rows(rows):
    config = step_config(max_batch_size=32, input=[X])
    requests = [{"x": np.full((n, 2), place)} for place, n in enumerate(rows)]
    joined = join(config, requests)
    assert joined["x"].shape == (sum(rows), 2)
    for own, parts in zip(requests, part(config, requests, {"y": joined["x"] * 2}), strict=True):
        np.testing.assert_array_equal(parts["y"], own["x"] * 2)


@pytest.mark.parametrize("size", [0, 4])
def test_a_single_requests_array_is_used_as_it_is(size):
    config = step_config(max_batch_size=size, input=[X])
    array = np.ones((1, 2), np.float32)
    assert join(config, [{"x": array}])["x"] is array


@pytest.mark.parametrize("shape", [(3, 2), (), (1, 4)])
def test_a_wrong_number_of_rows_is_refused(shape):
    config = step_config(max_batch_size=4, input=[X])
    requests = [{"x": np.ones((1, 2))}, {"x": np.ones((1, 2))}]
    with pytest.raises(EngineFault, match=r"output 'y': found shape .*, expected 2 in its first"):
        part(config, requests, {"y": np.ones(shape)})


MADE = {
    "BATCH_ELEMENT_COUNT": [3, 1],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": [3, 4],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 3, 4],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [0, 0, 0],
    "BATCH_ITEM_SHAPE": [[3], [1]],
    "BATCH_ITEM_SHAPE_FLATTEN": [3, 1],
}


@pytest.mark.parametrize("kind", MADE)
def test_ragged_inputs_are_joined_in_one_dimension(kind):
    config = step_config(
        max_batch_size=4,
        input=[RAGGED],
        batch_input=[
            {"kind": kind, "target_name": ["n"], "data_type": "TYPE_INT32", "source_input": ["x"]}
        ],
        batch_output=[{"kind": "any", "target_name": ["y"], "source_input": ["x"]}],
    )
    requests = [{"x": np.array([[1, 2, 3]])}, {"x": np.array([[4]])}]
    joined = join(config, requests)
    assert joined["x"].tolist() == [1, 2, 3, 4]
    assert (joined["n"].tolist(), joined["n"].dtype) == (MADE[kind], np.int32)
    parts = part(config, requests, {"y": joined["x"]})
    assert [own["y"].tolist() for own in parts] == [[[1, 2, 3]], [[4]]]


@pytest.mark.parametrize(
    ("step", "file", "extra", "module"),
    [
        (OpenVinoStep, "model.xml", "openvino", "openvino"),
        (TorchStep, "model.pt", "torch", "torch"),
    ],
)
def test_the_error_names_the_command_that_installs_it(
    tmp_path, monkeypatch, step, file, extra, module
):
    (tmp_path / file).touch()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ArtifactFault) as raised:
        step.open(step_config(), tmp_path)
    assert str(raised.value).endswith(f"needs: `pip install 'ge-runtime[{extra}]'`")
