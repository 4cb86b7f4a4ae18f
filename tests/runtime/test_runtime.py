import contextlib
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from runtime.support.configs import (
    edges_config,
    encoder_config,
    model_config,
    packed_config,
    pixels_config,
    tensor,
)
from runtime.support.graphs import (
    EDGES,
    ENCODER,
    NONZERO,
    PACKED,
    PIXELS,
    TABLE,
    encode,
    onnx_model,
)

from ge_runtime import Caller, Runtime
from ge_runtime.errors import (
    EngineFault,
    GearOverflow,
    InvalidValue,
    PlanFault,
    RequestFault,
    RuntimeClosed,
    RuntimeFault,
    ShapeMismatch,
)

ENGINES = ["onnxruntime", pytest.param("torch", marks=pytest.mark.brute_force)]
UNKNOWN_TOKEN = len(TABLE)  # without an embedding: the graph fails on it


@pytest.fixture(scope="module")
def opened(version_dir):
    """Return a function: graph, configuration, engine -> an open runtime."""
    with contextlib.ExitStack() as stack:

        def open_runtime(graph, config, engine="onnxruntime"):
            # A given cost, so that executions do not depend on the load of the machine.
            cost = {"string_value": "launch_us=100, element_ns=100, element2_ns=0"}
            config = {**config, "parameters": {"cost": cost, **config["parameters"]}}
            runtime = Runtime.open(version_dir(graph, engine), config, instance_name="tiny_0")
            stack.callback(runtime.close)
            return runtime

        yield open_runtime


@pytest.fixture(scope="module")
def encoder(opened):
    return opened(ENCODER, encoder_config())


@pytest.fixture(scope="module")
def pixels(opened):
    return opened(PIXELS, pixels_config())


def texts(*rows, tail=UNKNOWN_TOKEN, more=0):
    """Return a request of rows of token ids, with poison past each end, `more` past the longest."""
    ids = np.full((len(rows), max(map(len, rows)) + more), tail, np.int64)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return {"input_ids": ids, "lengths": np.array([[len(r)] for r in rows], np.int32)}


def image(height, width, rows=1, seed=0):
    shape = (rows, 1, height, width)
    return {"image": np.random.default_rng(seed).random(shape, dtype=np.float32)}


token_rows = st.lists(
    st.lists(st.integers(0, UNKNOWN_TOKEN - 1), min_size=1, max_size=12), min_size=1, max_size=4
)
images = st.builds(
    image, st.integers(1, 16), st.integers(1, 16), st.integers(1, 3), st.integers(0, 9)
)


# -- one answer per request, in any batch -----------------------------------------------------


@pytest.mark.brute_force
@pytest.mark.parametrize("engine", ENGINES)
def test_texts_of_any_length_share_a_batch(opened, engine):
    request_batches = [[[1, 2, 3], [4]], [[5]], [[6, 7, 8, 9, 10], [11, 12]]]
    runtime = opened(ENCODER, encoder_config(), engine)
    answers = runtime.infer([texts(*rows, more=2) for rows in request_batches])
    for answer, rows in zip(answers, request_batches, strict=True):
        np.testing.assert_allclose(answer["embedding"], encode(rows), rtol=1e-5)


@pytest.mark.brute_force
@given(st.lists(token_rows, max_size=6), st.integers(0, 3))
def test_texts_get_the_same_answer_alone_and_with_others(encoder, request_batches, more):
    request_batch = [texts(*rows, more=more) for rows in request_batches]
    for answer, request in zip(encoder.infer(request_batch), request_batch, strict=True):
        (alone,) = encoder.infer([request])
        np.testing.assert_allclose(answer["embedding"], alone["embedding"], rtol=1e-5)


@pytest.mark.brute_force
@given(st.lists(images, max_size=6))
def test_images_get_the_same_answer_alone_and_with_others(pixels, request_batch):
    for answer, request in zip(pixels.infer(request_batch), request_batch, strict=True):
        (alone,) = pixels.infer([request])
        np.testing.assert_array_equal(answer["inverted"], alone["inverted"])
        np.testing.assert_allclose(answer["sums"], alone["sums"], rtol=1e-5)


@pytest.mark.brute_force
@given(st.lists(st.integers(1, 8), max_size=9))
def test_batches_beyond_max_batch_size_are_split_and_all_answered(encoder, rows):
    request_batches = [[[count] * (count + row % 3) for row in range(count)] for count in rows]
    answers = encoder.infer([texts(*request_batch) for request_batch in request_batches])
    for answer, request_batch in zip(answers, request_batches, strict=True):
        np.testing.assert_allclose(answer["embedding"], encode(request_batch), rtol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "executions"), [({}, 3), ({"gears.height,width": "4x5, 9x7, 16x16"}, 3)]
)
def test_without_a_mask_only_images_of_equal_size_share_an_execution(
    opened, parameters, executions
):
    runtime = opened(EDGES, edges_config(parameters))
    sizes = [(4, 5), (16, 16), (4, 5), (9, 7), (16, 16), (4, 5)]
    batch = [image(*size, seed=seed) for seed, size in enumerate(sizes)]
    alone = [runtime.infer([request])[0] for request in batch]
    before = runtime.counts()
    for answer, expected, size in zip(runtime.infer(batch), alone, sizes, strict=True):
        assert answer["edges"].shape == (1, 1, *size)
        np.testing.assert_allclose(answer["edges"], expected["edges"], atol=1e-6)
        np.testing.assert_allclose(answer["mean"], expected["mean"], atol=1e-6)
    counts = runtime.counts().since(before)
    assert counts.launches == executions
    assert counts.useful_elements == counts.executed_elements
    assert counts.shared_launches == {"equal": 2}


def test_without_a_mask_an_image_between_gears_is_refused(opened):
    runtime = opened(EDGES, edges_config({"gears.width": "8, 16"}))
    sound, refused = runtime.infer([image(3, 8), image(3, 9)])
    assert sound["mean"].shape == (1, 1)
    assert isinstance(refused, GearOverflow)
    assert str(refused) == (
        "input 'image': found width 9 in shape [1, 1, 3, 9], expected a size of gears.width (8, "
        "16): nothing is padded along it (padding.width: equal)"
    )


def test_an_image_between_gears_is_executed_alone_with_fallback(opened):
    config = edges_config({"gears.width": "8", "oversize": "fallback"})
    runtime = opened(EDGES, config)
    answer = runtime.infer([image(3, 9)])[0]
    counts = runtime.counts()
    assert answer["edges"].shape == (1, 1, 3, 9)
    assert (counts.executed_elements, counts.gear_misses) == (27, 1)


# -- a fault stays with its request ----------------------------------------------------------


def test_faulty_requests_get_their_own_fault_and_others_their_answer(encoder):
    too_long = texts([1] * 33)
    no_length = {**texts([1, 2]), "lengths": np.array([[0]], np.int32)}
    answers = encoder.infer([texts([1]), too_long, no_length, {}, texts([2, 3])])
    assert [type(answer) for answer in answers] == [
        dict,
        ShapeMismatch,
        RequestFault,
        RequestFault,
        dict,
    ]
    assert "limit.tokens" in str(answers[1])
    np.testing.assert_allclose(answers[4]["embedding"], encode([[2, 3]]), rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_failing_request_of_an_execution_gets_the_fault(opened, engine):
    runtime = opened(ENCODER, encoder_config(batch=16), engine)
    request_batch = [texts([token % 16]) for token in range(16)]
    request_batch[11] = texts([UNKNOWN_TOKEN])
    answers = runtime.infer(request_batch)
    # torch does not name the value.
    assert type(answers[11]) is (InvalidValue if engine == "onnxruntime" else EngineFault)
    for token, answer in enumerate(answers[:11] + answers[12:]):
        token += token >= 11
        np.testing.assert_allclose(answer["embedding"], encode([[token]]), rtol=1e-5)
    counts = runtime.counts()
    assert (counts.launches, counts.isolations, counts.culprits) == (4, 5, 1)


# -- memory ----------------------------------------------------------------------------------


def test_answers_are_whole_arrays_that_callers_may_write(pixels):
    answers = pixels.infer([image(2, 3), image(16, 16)])
    for answer in answers:
        for array in answer.values():
            assert array.flags.c_contiguous
            assert array.flags.writeable


def test_held_answers_are_never_overwritten(pixels):
    request_batches = [[image(4, 4, seed=seed), image(9, 2, seed=seed)] for seed in range(8)]
    held = [pixels.infer(request_batch) for request_batch in request_batches]
    for request_batch, answers in zip(request_batches, held, strict=True):
        for request, answer in zip(request_batch, answers, strict=True):
            np.testing.assert_array_equal(answer["inverted"], 1 - request["image"])
    assert pixels.counts().answers_spilled > 0


def test_faults_keep_no_reference_to_their_batches(opened):
    runtime = opened(ENCODER, encoder_config(batch=16))
    gc.disable()  # unreferenced objects must be freed without it
    try:
        for culprit in (texts([UNKNOWN_TOKEN]), texts([1] * 33), {}) * 4:
            neighbour = texts([1, 2])
            tensor = weakref.ref(neighbour["input_ids"])
            answers = runtime.infer([neighbour, culprit], [Caller("a"), Caller("b")])
            fault = answers[1]
            assert isinstance(fault, RuntimeFault)
            del neighbour, answers
            assert tensor() is None
    finally:
        gc.enable()
    assert runtime.counts().answers_spilled == 0
    assert str(fault).startswith("[request id: b] ")


def test_a_failed_allocation_fails_the_load(opened):
    with pytest.raises(PlanFault):
        opened(ENCODER, encoder_config({"limit.tokens": str(2**44)}))


# -- requests without a batch dimension ------------------------------------------------------


def test_requests_without_a_batch_dimension_are_executed_alone(opened):
    config = model_config(
        [tensor("x", "FP32", [-1])],
        [tensor("where", "INT64", [1, -1])],
        {"axes.x": "n", "limit.n": "4"},
        batch=0,
    )
    runtime = opened(NONZERO, config)
    answers = runtime.infer(
        [{"x": np.array(x, np.float32)} for x in ([0, 1], [1, 0, 1], [0], [0] * 5)]
    )
    assert [answer["where"].tolist() for answer in answers[:3]] == [[[1]], [[0, 2]], [[]]]
    assert str(answers[3]) == ("input 'x': found n 5 in shape [5], expected 1 to 4 (limit.n)")


def test_axes_of_requests_without_batch_dimension_are_masked_and_planned(opened):
    config = model_config(
        [tensor("input_ids", "INT64", [-1, -1])],
        [tensor("embedding", "FP32", [-1, 4])],
        {
            "axes.input_ids": "rows,tokens",
            "axes.embedding": "rows",
            "limit.rows": "3",
            "limit.tokens": "9",
            "mask.attention_mask": "rows,tokens",
        },
        batch=0,
    )
    (answer,) = opened(ENCODER, config).infer([{"input_ids": np.array([[1, 2], [3, 4]])}])
    np.testing.assert_allclose(answer["embedding"], encode([[1, 2], [3, 4]]), rtol=1e-5)


@pytest.mark.parametrize("dims", [[-1], [3, -1]])
def test_result_of_an_unforeseen_shape_is_the_engines_fault(tmp_path, dims):
    model = onnx_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", TensorProto.FLOAT, ["n"]), ("shape", TensorProto.INT64, ["rank"])],
        [("y", TensorProto.FLOAT, None)],
    )
    onnx.save(model, tmp_path / "model.onnx")
    config = model_config(
        [tensor("x", "FP32", [-1]), tensor("shape", "INT64", [-1])],
        [tensor("y", "FP32", dims)],
        {
            "axes.x": "n",
            "limit.n": "6",
            "axes.shape": "rank",
            "limit.rank": "2",
            "cost": "launch_us=100, element_ns=100, element2_ns=0",
            "warmup": "none",  # its rows are zeros, which are an invalid shape
        },
        batch=0,
    )
    runtime = Runtime.open(tmp_path, config, instance_name="reshape_0")
    request = {"x": np.ones(6, np.float32), "shape": np.array([2, 3])}
    (fault,) = runtime.infer([request])
    assert isinstance(fault, EngineFault)
    shown = ",".join(map(str, dims))
    assert str(fault) == f"output 'y': found shape [2, 3], expected FP32[{shown}]"


# -- rows laid end to end --------------------------------------------------------------------


def packed(*tokens, more=0):
    return texts(tokens, tail=0, more=more)


@pytest.mark.parametrize("oversize", ["error", "fallback"])
def test_packed_executions_have_no_more_rows_than_a_gear(opened, oversize):
    config = packed_config({"gears.batch": "1, 2, 4", "oversize": oversize})
    runtime = opened(PACKED, config)
    answers = runtime.infer([packed(*[1] * 32) for _ in range(7)])
    assert all(isinstance(answer, dict) for answer in answers)
    assert runtime.counts().launch_rows == {4: 1, 3: 1}


# -- load and close --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "line"),
    [
        ({}, "2 intra-op thread(s) on 2 core(s); 1 is used, as no execution is large"),
        ({"intra_op_threads": "2"}, "2 intra-op thread(s) on 2 core(s)"),
    ],
    ids=["chosen", "given"],
)
def test_threads_are_chosen_from_the_work_unless_they_are_given(
    opened, monkeypatch, parameters, line
):
    monkeypatch.setattr("ge_runtime.assembly.cores_of_process", lambda: 2)
    runtime = opened(ENCODER, encoder_config(parameters, batch=4))
    assert runtime.report[1] == f"tiny_0: {line}"


def test_the_report_lists_engine_threads_and_memory(opened):
    config = encoder_config({"intra_op_threads": "1"}, batch=4)
    report = opened(ENCODER, config).report
    assert report[0] == (
        "tiny_0: engine onnxruntime, because model.onnx is there and onnxruntime is installed; "
        "model.pt2 is not there"
    )
    assert report[1].startswith("tiny_0: 1 intra-op thread(s) on ")
    assert report[2] == "tiny_0: memory planned:"
    assert any("input" in line and "bytes" not in line for line in report[3:])
    assert report[-3].startswith("tiny_0: load check: 4 of 4 trial(s); ")
    assert report[-2].startswith("tiny_0: rounding: padding and rows change answers by at most ")
    assert report[-1].endswith("given by config.pbtxt")


def test_closed_runtime_refuses_and_closes_again(opened):
    runtime = opened(ENCODER, encoder_config())
    assert repr(runtime).startswith("<Runtime tiny_0: open, up to 8 row(s), ")
    runtime.close()
    runtime.close()
    assert repr(runtime).startswith("<Runtime tiny_0: closed")
    with pytest.raises(RuntimeClosed, match="tiny_0 is closed"):
        runtime.infer([texts([1])])


def test_threads_take_turns_and_each_gets_its_own_answers(encoder):
    request_batches = [[[token] * (1 + token) for _ in range(3)] for token in range(12)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda rows: encoder.infer([texts(*rows)] * 3), request_batches * 5)
        )
    for request_batch, rows in zip(answers, request_batches * 5, strict=True):
        for answer in request_batch:
            np.testing.assert_allclose(answer["embedding"], encode(rows), rtol=1e-5)
