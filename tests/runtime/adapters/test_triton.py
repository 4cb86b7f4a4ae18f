import gc
import json
import sys
import weakref

import numpy as np
import pytest
from runtime.support.axis_graphs import recurrent, recurrent_config, saved
from runtime.support.configs import encoder_config, model_config, tensor
from runtime.support.graphs import BFLOAT16, ENCODER, TABLE, encode
from runtime.support.images import images_config, write_shown
from runtime.support.triton import Bfloat16Tensor, InferenceRequest, PbUtils, Tensor, TritonError

from ge_runtime.adapters.responses import FaultLog, respond_to
from ge_runtime.adapters.triton import GraphModel, answer_batch, answer_each
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import ArtifactFault, ConfigFault, EngineLost, RequestFault, RuntimeFault
from ge_runtime.testing import ManualClock

INVALID_ARG, INTERNAL = TritonError.INVALID_ARG, TritonError.INTERNAL


@pytest.fixture
def pb_utils():
    return PbUtils()


@pytest.fixture
def opened(version_dir, pb_utils):
    """Return a function: configuration, derive, graph -> an open model."""
    models = []

    def open_model(config, derive=None, graph=ENCODER, engine="onnxruntime", **more):
        cost = {"string_value": "launch_us=9999, element_ns=100, element2_ns=0"}
        config = {**config, "parameters": {"cost": cost, **config["parameters"]}}
        folder = version_dir(graph, engine)
        models.append(GraphModel(args_of(folder, config), pb_utils, derive=derive, **more))
        return models[-1]

    yield open_model
    for model in models:
        model.close()


def args_of(version_dir, config):
    """Return the seven strings that Triton passes to `initialize`."""
    return {
        "model_config": json.dumps(config),
        "model_instance_kind": "CPU",
        "model_instance_name": "encoder_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(version_dir.parent),
        "model_version": version_dir.name,
        "model_name": "encoder",
    }


def request(*rows, outputs=("embedding",), length=None, more=(), **caller):
    longest = max(map(len, rows))
    ids = np.zeros((len(rows), longest), np.int64)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    lengths = [[len(row) if length is None else length] for row in rows]
    inputs = [Tensor("input_ids", ids), Tensor("lengths", np.array(lengths, np.int32))]
    return InferenceRequest([*inputs, *more], outputs, **caller)


def answered(model, requests):
    """Return the response to each request, sent or returned."""
    responses = []
    for own, returned in zip(requests, model.execute(requests), strict=True):
        (response,) = [*own.get_response_sender().sent, *filter(None, [returned])]
        responses.append(response)
    return responses


def outputs_of(response):
    assert not response.has_error(), response.error().message()
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def error_of(response):
    assert response.output_tensors() == []
    return response.error().code(), response.error().message()


# -- graphs ----------------------------------------------------------------------------------


def test_each_request_gets_its_own_response_in_order(opened):
    sizes = [[[1, 2, 3]], [[4], [5, 6]], [[7] * 9]]
    responses = answered(opened(encoder_config()), [request(*rows) for rows in sizes])
    for response, rows in zip(responses, sizes, strict=True):
        np.testing.assert_allclose(outputs_of(response)["embedding"], encode(rows), rtol=1e-5)


def test_filler_requests_of_sequence_batches_get_empty_responses(pb_utils, tmp_path):
    folder = saved(recurrent(), tmp_path)
    model = GraphModel(args_of(folder, recurrent_config()), pb_utils)
    nobody = InferenceRequest([Tensor("x", np.full((7, 5), np.nan))], ["y"])

    def asks(value, **sequence):
        return InferenceRequest(
            [Tensor("x", np.full((1, 3), value, np.float32))], ["y"], **sequence
        )

    first = model.execute([nobody, asks(4, sequence=9, flags=1), nobody])
    second = model.execute([asks(1, sequence="a", flags=3), asks(4, sequence=9, flags=2)])
    model.close()
    found = [outputs_of(response) for response in (*first, *second)]
    assert [answer["y"][0, 0] if answer else None for answer in found] == [None, 8, None, 2, 12]


def test_an_invalid_request_is_an_invalid_argument_and_affects_no_other(opened, pb_utils):
    model = opened(encoder_config())
    pb_utils.Logger.lines.clear()
    good, bad = answered(model, [request([1, 2]), request([3, 4], length=3)])
    np.testing.assert_allclose(outputs_of(good)["embedding"], encode([[1, 2]]), rtol=1e-5)
    assert error_of(bad) == (
        INVALID_ARG,
        "input 'lengths': found length 3 in row 0, expected 1 to 2, the size of axis 'tokens' in "
        "the request",
    )
    assert pb_utils.Logger.lines == []


def test_an_engine_fault_is_internal_logged_once_and_affects_only_its_request(
    opened, pb_utils, monkeypatch
):
    monkeypatch.setattr(OnnxEngine, "_invalid_value", lambda engine, text, inputs: None)
    model = opened(encoder_config())
    pb_utils.Logger.lines.clear()
    good, bad = answered(model, [request([1]), request([len(TABLE)])])
    np.testing.assert_allclose(outputs_of(good)["embedding"], encode([[1]]), rtol=1e-5)
    code, message = error_of(bad)
    assert code == INTERNAL
    assert message.startswith("onnxruntime: ")
    assert pb_utils.Logger.lines == [("error", f"encoder_0_0: {message}")]


def test_a_lost_engine_is_logged_once_for_each_loss(pb_utils):
    log, fate = FaultLog(pb_utils, "encoder_0_0"), {}

    def execute(requests, leave):
        return [fate["result"]] * len(requests)

    results = [EngineLost("first"), EngineLost("second"), EngineLost("first"), {}]
    for fate["result"] in (*results, EngineLost("first"), RuntimeFault("all"), RuntimeFault("all")):
        respond_to(pb_utils, [request([1])] * 2, lambda own: own, execute, (), log)
    reports = [line.removeprefix("encoder_0_0: ") for _, line in pb_utils.Logger.lines]
    assert reports == ["first", "second", "first", "all", "all"]


def test_an_input_unreadable_by_numpy_fails_only_its_request(opened, pb_utils):
    bf16 = InferenceRequest([Bfloat16Tensor("input_ids", None)], ["embedding"])
    model = opened(encoder_config())
    pb_utils.Logger.lines.clear()
    bad, good = answered(model, [bf16, request([1])])
    code, message = error_of(bad)
    assert (code, message.split(" is ")[0]) == (INTERNAL, "TritonModelException: Tensor dtype")
    assert outputs_of(good)
    ((_, text),) = pb_utils.Logger.lines
    assert text.startswith("encoder_0_0: Traceback (most recent call last):\n")
    assert text.endswith(message)


def test_load_faults_are_raised_to_triton(opened, tmp_path, pb_utils):
    with pytest.raises(ConfigFault, match="parameter 'foo'") as caught:
        opened(encoder_config({"foo": "1"}))
    assert [entry.name for entry in caught.traceback][-2:] == ["open_model", "__init__"]
    (tmp_path / "1").mkdir()
    with pytest.raises(ArtifactFault, match="/1: found nothing, expected"):
        GraphModel(args_of(tmp_path / "1", encoder_config()), pb_utils)


def test_a_graph_is_closed_if_its_metrics_cannot_be_created(opened, pb_utils, monkeypatch):
    def refuse(*_):
        raise pb_utils.TritonModelException("metrics are not supported")

    with monkeypatch.context() as patched:
        patched.setattr(pb_utils.MetricFamily, "__init__", refuse)
        with pytest.raises(pb_utils.TritonModelException):
            opened(encoder_config({"workspace_pool_mib": "1"}))
    opened(encoder_config({"workspace_pool_mib": "2"}))  # the other pool is closed


def test_a_graph_is_closed_even_if_its_metrics_cannot_be_exported(opened, pb_utils, monkeypatch):
    def refuse(*_):
        raise pb_utils.TritonModelException("no such metric")

    model = opened(encoder_config())
    assert model.is_ready()
    model.execute([request([1])])
    with monkeypatch.context() as patched:
        patched.setattr(type(pb_utils.metric("total_bytes")), "increment", refuse)
        with pytest.raises(pb_utils.TritonModelException):
            model.close()
    assert not model.is_ready()


def test_a_lone_request_takes_few_calls(opened):
    model, own, calls = opened(encoder_config()), request([1, 2]), []
    model.execute([request([1, 2])])  # what is computed for this size is kept

    def count(frame, event, argument):
        if event == "call" and "ge_runtime" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        model.execute([own])
    finally:
        sys.setprofile(None)
    # Each takes 0.3 us and more. With a plain model.py, a request takes about 30 in all.
    assert len(calls) <= 60, calls


# -- early answers ---------------------------------------------------------------------------


def three_executions(opened, early="true", **more):
    """Return a model that executes requests one by one, and three requests, longest first."""
    cost = "launch_us=100, element_ns=10000000, element2_ns=0"
    config = encoder_config({"early_answers": early, "cost": cost}, batch=1, **more)
    return opened(config), [request([1] * 9), request([2]), request([3, 4])]


def test_early_answers_are_sent_and_the_last_is_returned(opened):
    model, requests = three_executions(opened)
    longest, *others = model.execute(requests)
    assert others == [None, None]
    np.testing.assert_allclose(outputs_of(longest)["embedding"], encode([[1] * 9]), rtol=1e-5)
    for own, rows in zip(requests[1:], ([[2]], [[3, 4]]), strict=True):
        (response,) = own.get_response_sender().sent
        np.testing.assert_allclose(outputs_of(response)["embedding"], encode(rows), rtol=1e-5)
    assert requests[0].get_response_sender().sent == []


@pytest.mark.parametrize("early", ["true", "false"])
def test_a_decoupled_model_sends_all_answers(opened, early):
    model, requests = three_executions(opened, early, model_transaction_policy={"decoupled": True})
    bad = request([3, 4], length=3)
    assert model.execute([*requests, bad]) is None
    for own in requests:
        (response,) = own.get_response_sender().sent
        assert outputs_of(response)
    assert error_of(bad.get_response_sender().sent[0])[0] is INVALID_ARG


def test_a_failed_send_is_logged_and_affects_no_other_request(opened, pb_utils, monkeypatch):
    def refuse(response, flags):
        raise pb_utils.TritonModelException("no shared memory")

    model, (longest, lost, sent) = three_executions(opened)
    pb_utils.Logger.lines.clear()
    monkeypatch.setattr(lost.get_response_sender(), "send", refuse)
    assert outputs_of(model.execute([longest, lost, sent])[0])
    assert outputs_of(sent.get_response_sender().sent[0])
    ((level, line),) = pb_utils.Logger.lines
    assert level == "error"
    assert line.startswith("encoder_0_0: a response could not be sent: Traceback")
    assert line.endswith("no shared memory")


def test_early_answers_have_all_outputs(opened):
    cost = "launch_us=100, element_ns=10000000, element2_ns=0"
    config = encoder_config({"pass.words": "note", "cost": cost}, batch=1)
    config["input"].append(tensor("note", "STRING", [1]))
    config["output"] += [tensor("words", "STRING", [1]), tensor("label", "STRING", [1])]
    made = []

    def label(outputs):
        made.append(outputs["embedding"])
        return np.array([[b"label"]], object)

    model = opened(config, {"label": label})
    names = ("embedding", "words", "label")
    requests = [
        request([token] * (1 + token), outputs=names, more=[note(f"note {token}")])
        for token in range(3)
    ]
    for token, response in enumerate(answered(model, requests)):
        assert outputs_of(response)["words"].tolist() == [[f"note {token}".encode()]]
        assert outputs_of(response)["label"].tolist() == [[b"label"]]
    assert len(made) == 3
    assert sum(len(own.get_response_sender().sent) for own in requests) == 2


def note(text):
    return Tensor("note", np.array([[text.encode()]], object))


# -- callers ---------------------------------------------------------------------------------


def test_a_cancelled_request_gets_its_code_and_is_not_logged(opened, pb_utils):
    model = opened(encoder_config({"cost": "launch_us=20000, element_ns=100, element2_ns=0"}))
    pb_utils.Logger.lines.clear()
    cancelled, good = answered(model, [request([1], cancelled=True), request([2])])
    assert error_of(cancelled)[0] is TritonError.CANCELLED
    assert outputs_of(good)
    assert pb_utils.Logger.lines == []


def test_a_request_past_its_timeout_is_unavailable(opened):
    class Late(ManualClock):
        def now(self):
            self.advance(0.001)
            return super().now()

    model = opened(encoder_config(), clock=Late())
    late, good = answered(model, [request([1], timeout=1500), request([2], timeout=10**9)])
    code, message = error_of(late)
    assert code is TritonError.UNAVAILABLE
    assert message.startswith("found a deadline that passed ")
    assert outputs_of(good)


# -- prepared tensors ------------------------------------------------------------------------


def prepared_config(**more):
    config = encoder_config({"prepared.input_ids": "INT64[tokens]"}, **more)
    del config["parameters"]["axes.input_ids"]
    config["parameters"]["prepared.lengths"] = {"string_value": "INT32[1]"}
    config["input"] = [tensor("text", "STRING", [-1] if config["max_batch_size"] == 0 else [1])]
    return config


def letters(requests):
    """Return token ids of the letters of each text, a = 0; an empty text is a fault."""
    return [letters_of(inputs["text"].ravel()) for inputs in requests]


def letters_of(words):
    if not all(words):
        return RequestFault("input 'text': found an empty text, expected letters")
    ids = np.zeros((len(words), max(map(len, words))), np.int64)
    for row, word in zip(ids, words, strict=True):
        row[: len(word)] = np.frombuffer(word, np.uint8) - ord("a")
    return {"input_ids": ids, "lengths": np.array([[len(word)] for word in words], np.int32)}


def test_the_models_own_code_prepares_the_graphs_inputs(opened):
    model = opened(prepared_config(), prepare=letters)
    texts = [[b"abc"], [b"d"], [b""]]
    requests = [
        InferenceRequest([Tensor("text", np.array([text], object))], ["embedding"])
        for text in texts
    ]
    first, second, empty = answered(model, requests)
    np.testing.assert_allclose(outputs_of(first)["embedding"], encode([[0, 1, 2]]), rtol=1e-5)
    np.testing.assert_allclose(outputs_of(second)["embedding"], encode([[3]]), rtol=1e-5)
    assert error_of(empty) == (INVALID_ARG, "input 'text': found an empty text, expected letters")


def test_files_are_decoded_by_the_runtime_or_prepared_by_the_models_own_code(tmp_path, pb_utils):
    decoded = {"prepared.image": "UINT8[8,6,1]", "jpeg.image": "file"}
    config = images_config("input_format=YUV400_U8", [], [1, 8, 6], decoded)
    config["input"] = [tensor("file", "STRING", [1])]
    folder = tmp_path / "1"
    folder.mkdir()
    write_shown(folder, 1)
    expected = "parameter 'jpeg.image': found the model's own prepare as well, expected one of"
    with pytest.raises(RuntimeFault, match=expected):
        GraphModel(args_of(folder, config), pb_utils, prepare=letters)


def test_prepared_tensors_have_rows_where_requests_have_none(opened):
    config = prepared_config(batch=0)
    config["parameters"]["rows"] = {"string_value": "4"}
    config["output"] = [tensor("embedding", "FP32", [-1, 4])]
    model = opened(config, prepare=letters)
    texts = np.array([b"abc", b"d", b"ef"], object)
    (response,) = answered(model, [InferenceRequest([Tensor("text", texts)], ["embedding"])])
    expected = encode([[0, 1, 2], [3], [4, 5]])
    np.testing.assert_allclose(outputs_of(response)["embedding"], expected, rtol=1e-5)


def test_passed_outputs_are_the_original_inputs(opened):
    config = prepared_config()
    config["parameters"]["pass.name"] = {"string_value": "text"}
    config["output"].append(tensor("name", "STRING", [1]))
    texts = [np.array([[word]], object) for word in (b"", b"abc")]
    requests = [InferenceRequest([Tensor("text", text)], ["embedding", "name"]) for text in texts]
    empty, good = answered(opened(config, prepare=letters), requests)
    assert error_of(empty)[0] is INVALID_ARG
    assert outputs_of(good)["name"] is texts[1]


# -- other types -----------------------------------------------------------------------------


@pytest.mark.brute_force
@pytest.mark.parametrize("engine", ["onnxruntime", "torch"])
def test_bfloat16_travels_as_its_bits(opened, engine):
    torch = pytest.importorskip("torch", reason="it shows what the bits mean")
    config = model_config([tensor("x", "BF16", [3])], [tensor("y", "BF16", [3])])
    model = opened(config, graph=BFLOAT16, engine=engine)
    numbers = [torch.tensor([[1.5, -2.0, rows]], dtype=torch.bfloat16) for rows in range(3)]
    requests = [InferenceRequest([Bfloat16Tensor("x", number)], ["y"]) for number in numbers]
    for response, number in zip(answered(model, requests), numbers, strict=True):
        (output,) = response.output_tensors()
        assert torch.equal(output.tensor, number)


# -- metrics ---------------------------------------------------------------------------------


def test_counts_are_exported_when_the_model_is_closed(opened, pb_utils):
    model = opened(encoder_config({"gears.tokens": "4, 32"}))
    model.execute([request([1, 2, 3]), request([4]), request([5], length=2)])
    model.close()
    assert pb_utils.metric("useful_elements_total").number == 4
    assert pb_utils.metric("executed_elements_total").number == 8
    assert pb_utils.metric("gear_launches_total", gear="tokens 4").number == 1
    assert pb_utils.metric("refused_total").number == 1
    assert pb_utils.metric("launch_rows_sum").number == 2
    assert pb_utils.metric("launch_seconds_total", model="encoder").number > 0


# -- derived outputs -------------------------------------------------------------------------

LABELS = np.array([b"first", b"second", b"third", b"fourth"], object)


def labelled(data_type="STRING", dims=(1,), **more):
    config = encoder_config(**more)
    config["output"].append(tensor("label", data_type, dims))
    return config


def label(outputs):
    return LABELS[outputs["embedding"].argmax(axis=1)][:, None]


def test_derived_outputs_are_added_to_those_of_the_graph(opened):
    model = opened(labelled(), {"label": label})
    both, one = answered(
        model, [request([1], [2], outputs=["embedding", "label"]), request([3], outputs=["label"])]
    )
    assert outputs_of(both)["label"].tolist() == [[b"fourth"], [b"fourth"]]
    assert outputs_of(both)["embedding"].shape == (2, 4)
    assert outputs_of(one).keys() == {"label"}


def test_a_function_that_fails_for_one_request_fails_only_that_request(opened, pb_utils):
    def picky(outputs):
        if len(outputs["embedding"]) > 1:
            raise KeyError("no such label")
        return label(outputs)

    model = opened(labelled(), {"label": picky})
    bad, good = answered(model, [request([1], [2]), request([3])])
    assert error_of(bad) == (INTERNAL, "KeyError: 'no such label'")
    assert outputs_of(good)
    level, text = pb_utils.Logger.lines[-1]
    assert level == "error"
    assert "in picky" in text


@pytest.mark.parametrize(
    ("data_type", "dims", "made", "found"),
    [
        ("STRING", [1], np.array([["text"]]), "<U4[1, 1], expected object[1, 1]"),
        ("STRING", [1], LABELS[:2, None], "object[2, 1], expected object[1, 1]"),
        ("FP32", [-1], np.zeros((1, 2, 1), "f4"), "float32[1, 2, 1], expected float32[1, -1]"),
    ],
)
def test_a_derived_output_that_differs_from_its_declaration_is_refused(
    opened, data_type, dims, made, found
):
    model = opened(labelled(data_type, dims), {"label": lambda outputs: made})
    (response,) = answered(model, [request([1])])
    assert error_of(response) == (INTERNAL, f"derived output 'label': found {found}")


# -- models without a graph ------------------------------------------------------------------


def words(*texts, outputs=("count",)):
    return InferenceRequest([Tensor("text", np.array(texts, object))], outputs)


def count_words(inputs):
    if not all(inputs["text"]):
        raise RequestFault("input 'text': found an empty text, expected words")
    return {"count": np.array([len(text.split()) for text in inputs["text"]])}


def test_each_request_is_answered_by_its_own_call(pb_utils):
    requests = [words(b"a b", b"c"), words(b""), words(1), words(b"d")]
    two, empty, number, one = answer_each(pb_utils, requests, count_words)
    assert outputs_of(two)["count"].tolist() == [2, 1]
    assert error_of(empty) == (INVALID_ARG, "input 'text': found an empty text, expected words")
    assert error_of(number) == (INTERNAL, "AttributeError: 'int' object has no attribute 'split'")
    assert outputs_of(one)["count"].tolist() == [1]
    assert [level for level, _ in pb_utils.Logger.lines] == ["error"]


@pytest.mark.parametrize("ask", [answer_each, answer_batch])
def test_errors_keep_no_reference_to_requests(pb_utils, ask):
    def fail(inputs):
        raise KeyError("mine")

    text = np.array([b"a"], object)
    held = weakref.ref(text)
    gc.disable()  # unreferenced objects must be freed without it
    try:
        (response,) = ask(pb_utils, [InferenceRequest([Tensor("text", text)], ["count"])], fail)
        del text
        assert held() is None
    finally:
        gc.enable()
    assert error_of(response) == (INTERNAL, "KeyError: 'mine'")
    assert "in fail" in pb_utils.Logger.lines[-1][1]


def test_a_failed_batch_fails_all_its_requests_and_is_logged_once(pb_utils):
    def fail(requests):
        raise OSError("no tokenizer")

    responses = answer_batch(pb_utils, [words(b"x"), words(b"y")], fail)
    assert [error_of(response) for response in responses] == [
        (INTERNAL, "OSError: no tokenizer")
    ] * 2
    assert len(pb_utils.Logger.lines) == 1


def test_batch_must_answer_every_request(pb_utils):
    responses = answer_batch(pb_utils, [words(b"x"), words(b"y")], lambda requests: [{}])
    assert [error_of(response)[1] for response in responses] == ["found 1 results, expected 2"] * 2


def test_an_output_of_an_unsupported_type_fails_only_its_request(pb_utils):
    complex_, plain = answer_each(
        pb_utils,
        [words(b"c"), words(b"p")],
        lambda inputs: {"count": np.zeros(1, "c8" if inputs["text"][0] == b"c" else "f4")},
    )
    assert error_of(complex_) == (INTERNAL, "TritonModelException: NumPy dtype is not supported.")
    assert outputs_of(plain)
