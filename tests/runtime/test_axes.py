"""Properties of axes in real graphs: strides, smallest sizes, constants, fixed batches."""

import numpy as np
import onnxruntime
import pytest
from runtime.support.axis_graphs import (
    rated,
    rated_config,
    recurrent,
    recurrent_config,
    saved,
    strided,
    strided_config,
    time_major,
    time_major_config,
    valid,
    valid_config,
)

from ge_runtime.errors import ConfigFault, ShapeMismatch
from ge_runtime.testing.conformance import check

GAIN = np.array(0.5, np.float32)


@pytest.fixture
def opened(opened, tmp_path):
    """Return a function: graph, configuration -> an open runtime, and an ONNX Runtime session."""

    def open_both(graph, config):
        runtime, path = opened(graph, config), str(tmp_path / "1" / "model.onnx")
        return runtime, onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    return open_both


def images(*shapes, name="image"):
    rng = np.random.default_rng(7)
    return [{name: rng.standard_normal(shape).astype(np.float32)} for shape in shapes]


def test_requests_of_an_equal_axis_are_multiples_or_refused(opened):
    runtime, session = opened(strided(), strided_config())
    requests = images((1, 1, 8, 12), (2, 1, 8, 12), (1, 1, 16, 32), (1, 1, 8, 14))
    *answers, refused = runtime.infer(requests)
    for request, answer in zip(requests, answers, strict=False):
        (expected,) = session.run(None, {**request, "gain": GAIN})
        np.testing.assert_allclose(answer["map"], expected, rtol=1e-5, atol=1e-5)
    assert isinstance(refused, ShapeMismatch)
    assert str(refused) == (
        "input 'image': found width 14 in shape [1, 1, 8, 14], expected a multiple of 4 "
        "(align.width): nothing is padded along it (padding.width: equal)"
    )


def test_requests_of_a_padded_axis_are_padded_to_a_multiple_and_answers_cut(opened):
    neutral = {"padding.width": "neutral", "padding.height": "neutral"}
    runtime, session = opened(strided(), strided_config(neutral))
    requests = images((1, 1, 8, 9), (1, 1, 5, 30), (1, 1, 1, 1))
    answers = runtime.infer(requests)
    for request, answer in zip(requests, answers, strict=True):
        image = request["image"]
        height, width = image.shape[2:]
        padded = np.pad(image, [(0, 0), (0, 0), (0, -height % 4), (0, -width % 4)])
        (expected,) = session.run(None, {"image": padded, "gain": GAIN})
        expected = expected[:, :, :height, :width]
        np.testing.assert_allclose(answer["map"], expected, rtol=1e-5, atol=1e-5)


def test_requests_with_an_empty_output_are_refused(opened):
    runtime, session = opened(valid(), valid_config())
    requests = images((1, 1, 8), (2, 1, 9), (1, 1, 300), (1, 1, 7), name="line")
    *answers, refused = runtime.infer(requests)
    for request, answer in zip(requests, answers, strict=False):
        (expected,) = session.run(None, request)
        np.testing.assert_allclose(answer["sums"], expected, rtol=1e-5, atol=1e-5)
    assert "expected sizes of which '(samples - 8) // 2 + 1'" in str(refused)


def test_sizes_below_the_minimum_are_refused_with_it(opened):
    runtime, _ = opened(valid(), valid_config({"min.samples": "16", "padding.samples": "neutral"}))
    _, refused = runtime.infer(images((1, 1, 16), (1, 1, 15), name="line"))
    assert str(refused) == (
        "input 'line': found samples 15 in shape [1, 1, 15], expected 16 to 300 "
        "(min.samples, limit.samples)"
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_a_graph_with_a_fixed_batch_gets_one_gear_of_rows(opened, batch):
    runtime, session = opened(strided(batch), strided_config())
    requests = images(*[(1, 1, 8, 8)] * 4)
    answers = runtime.infer(requests)
    for request, answer in zip(requests, answers, strict=True):
        rows = np.repeat(request["image"], batch, axis=0)
        (expected,) = session.run(None, {"image": rows, "gain": GAIN})
        np.testing.assert_allclose(answer["map"], expected[:1], rtol=1e-5, atol=1e-5)
    assert runtime.counts().launches == -(-4 // batch)
    (refused,) = runtime.infer(images((4, 1, 8, 8)))
    assert f"expected 1 to {batch} (the largest of gears.batch)" in str(refused)


def test_a_fixed_batch_and_executions_of_any_size_exclude_each_other(opened):
    with pytest.raises(ConfigFault, match="a graph with a fixed batch of 3, expected 'error'"):
        opened(strided(3), strided_config({"oversize": "fallback"}))


def gain_of(size):
    graph = strided()
    graph.graph.input[1].type.tensor_type.shape.dim.add().dim_value = size
    return graph


@pytest.mark.parametrize(("text", "gain"), [("3", [3, 3, 3, 3]), ("0.5, 1, 2, 4", [0.5, 1, 2, 4])])
def test_a_constant_is_one_value_for_all_elements_or_each_of_them(opened, text, gain):
    runtime, session = opened(
        gain_of(4), strided_config({"constant.gain": text, "limit.width": "4"})
    )
    (request,) = images((2, 1, 8, 4))
    (answer,) = runtime.infer([request])
    (expected,) = session.run(None, {**request, "gain": np.array(gain, np.float32)})
    np.testing.assert_allclose(answer["map"], expected, rtol=1e-5, atol=1e-5)


def test_a_constant_of_too_few_values_is_refused(opened):
    with pytest.raises(ConfigFault) as raised:
        opened(gain_of(4), strided_config({"constant.gain": "1, 2"}))
    assert "parameter 'constant.gain': found 2 values, expected 1, or 4 for shape [4]" in str(
        raised.value
    )


def test_a_constant_of_a_wrong_type_or_unknown_input_is_refused(opened):
    with pytest.raises(ConfigFault, match=r"'constant.gain': found '1e300', expected a value of"):
        opened(strided(), strided_config({"constant.gain": "1e300"}))
    with pytest.raises(ConfigFault, match=r"'constant.gian': found no graph input 'gian'"):
        opened(strided(), strided_config({"constant.gian": "1"}))


@pytest.mark.parametrize(
    ("graph", "config"),
    [
        (strided(), strided_config()),
        (strided(3), strided_config({"gears.height,width": "4x8, 16x32"})),
        (valid(), valid_config({"min.samples": "16"})),
        (time_major(), time_major_config()),
        (rated(), rated_config()),
        (recurrent(), recurrent_config({"range.x": "1..2"})),
    ],
    ids=["strides", "fixed batch", "smallest size", "time-major", "no rows", "state"],
)
def test_answers_are_those_of_each_request_alone(tmp_path, graph, config):
    report = check(saved(graph, tmp_path), config, rounds=5)
    assert report.passed, str(report)
