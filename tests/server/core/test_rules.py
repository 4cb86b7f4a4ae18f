"""The checks of requests before they are scheduled, and the fields that they set."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import a_request, array_tensor, raw_tensor, signature

from reference_server.core.errors import BackendError, Code, ServerError
from reference_server.core.rules import RequestRules, reshaped
from reference_server.core.tensor import DataType

FP32, INT32, BYTES = DataType.FP32, DataType.INT32, DataType.BYTES
ANON = "[request id: <id_unknown>]"
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)

PLAIN = signature({"X": (FP32, [-1])}, {"Y": (FP32, [-1])})
FIXED = signature({"X": (FP32, [4, 2])}, {"Y": (FP32, [4, 2])})
BATCHED = signature({"X": (FP32, [4])}, {"Y": (FP32, [4])}, max_batch_size=8)
PAIR = signature({"A": (FP32, [4]), "B": (INT32, [1, 2])}, max_batch_size=8)
OPTIONAL = signature(
    {"A": (FP32, [1]), "B": (FP32, [1], {"optional": True}), "C": (FP32, [1], {"optional": True})}
)
WORDS = signature({"T": (BYTES, [-1])})
WORD_ROWS = signature({"T": (BYTES, [2])}, max_batch_size=8)


def fp32(name, *shape):
    return raw_tensor(name, FP32, shape, bytes(4 * prod(shape)))


def int32(name, *shape):
    return raw_tensor(name, INT32, shape, bytes(4 * prod(shape)))


def words(raw, *shape):
    return raw_tensor("T", BYTES, shape, raw)


def wire(*elements):
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


# ---------------------------------------------------------------------------------------- patterns

TRIPLE = signature(
    {"A": (FP32, [-1]), "B": (FP32, [-1], {"optional": True}), "C": (FP32, [-1])}, max_batch_size=4
)
MOVED = signature({"X": (FP32, [4], {"reshape": [2, 2]})}, max_batch_size=4)


def outcome(rules, inputs, pattern):
    """Return the result of admitting a request."""
    request = a_request(*inputs, pattern=pattern)
    try:
        rules.admit(request)
    except ServerError as error:
        return error.message
    tensors = [(name, each.shape, bytes(each.raw())) for name, each in request.inputs.items()]
    return request.batch_size, request.batch_key, tensors


@given(
    st.sampled_from([TRIPLE, BATCHED, MOVED, WORD_ROWS]),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3),
    st.lists(st.sampled_from([0, 4, 16, 32]), min_size=2, max_size=3),
    st.permutations("ABC"),
    st.sampled_from([None, object()]),
)
def test_similar_requests_are_admitted_as_if_alone(model, shapes, sizes, order, pattern):
    names = [name for name in order if name in "AC"] + ["B"]
    if model is not TRIPLE:
        names = ["X" if model is not WORD_ROWS else "T"]
    rules = RequestRules(model)
    datatype = BYTES if model is WORD_ROWS else FP32
    for size in (*sizes, *sizes):
        inputs = [
            raw_tensor(name, datatype, shape, bytes([size]) * size)
            for name, shape in zip(names, shapes, strict=False)
        ]
        alone = outcome(RequestRules(model), inputs, None)
        assert outcome(rules, inputs, pattern) == alone


def test_a_pattern_is_checked_once():
    rules, pattern = RequestRules(PAIR), object()
    rules.admit(a_request(fp32("A", 2, 4), int32("B", 2, 1, 2), pattern=pattern))
    again = a_request(fp32("A", 2, 4), int32("B", 2, 1, 2), pattern=pattern)
    again.inputs["A"].shape = ()  # not checked
    rules.admit(again)
    assert again.batch_size == 2


def test_other_requests_are_checked_again():
    rules = RequestRules(PAIR)
    rules.admit(a_request(fp32("A", 2, 4), int32("B", 2, 1, 2)))
    for request in (
        a_request(fp32("A", 1, 4), int32("B", 2, 1, 2)),
        a_request(fp32("B", 2, 4), int32("A", 2, 1, 2)),
        a_request(fp32("A", 2, 4), fp32("B", 2, 1, 2)),
        a_request(fp32("A", 2, 4), int32("B", 2, 1, 2), requested_outputs=("unknown",)),
    ):
        with pytest.raises(ServerError):
            rules.admit(request)


# ----------------------------------------------------------------------------------- single checks


def admitted(signature, request):
    RequestRules(signature).admit(request)
    return request


def refusal(signature, request):
    with pytest.raises(ServerError) as caught:
        RequestRules(signature).admit(request)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


# -------------------------------------------------------------------------------------- refused

REFUSED = {
    "unknown output": (
        PLAIN,
        a_request(fp32("X", 1), requested_outputs=("Y", "Z")),
        "unexpected inference output 'Z' for model 'm'",
    ),
    "too few inputs": (
        PAIR,
        a_request(fp32("A", 1, 4)),
        f"{ANON} expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing "
        "required input(s) ['B']. Please provide all required input(s).",
    ),
    "no inputs": (
        PAIR,
        a_request(),
        f"{ANON} expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing "
        "required input(s) ['A','B']. Please provide all required input(s).",
    ),
    "too many inputs": (
        PLAIN,
        a_request(fp32("X", 1), fp32("Z", 1)),
        f"{ANON} expected 1 inputs but got 2 inputs for model 'm'. Got input(s) ['Z','X'], but "
        "missing required input(s) ]. Please provide all required input(s).",
    ),
    "too few inputs, some of them optional": (
        OPTIONAL,
        a_request(),
        f"{ANON} expected number of inputs between 1 and 3 but got 0 inputs for model 'm'. Got "
        "input(s) [], but missing required input(s) ['A']. Please provide all required input(s).",
    ),
    "too many inputs, some of them optional": (
        OPTIONAL,
        a_request(*(fp32(name, 1) for name in "ABCD")),
        f"{ANON} expected number of inputs between 1 and 3 but got 4 inputs for model 'm'. Got "
        "input(s) ['B','D','C','A'], but missing required input(s) ]. Please provide all required "
        "input(s).",
    ),
    "right number, one unknown": (
        PAIR,
        a_request(fp32("A", 1, 4), int32("Z", 1, 1, 2)),
        "unexpected inference input 'Z' for model 'm'",
    ),
    "no shape where a batch is due": (
        BATCHED,
        a_request(fp32("X")),
        f"{ANON} input 'X' has no shape but model requires batch dimension for 'm'",
    ),
    "batches differ": (
        PAIR,
        a_request(fp32("A", 2, 4), int32("B", 3, 1, 2)),
        f"{ANON} input 'A' batch size does not match other inputs for 'm'",
    ),
    "batch too large": (
        BATCHED,
        a_request(fp32("X", 9, 4)),
        f"{ANON} inference request batch-size must be <= 8 for 'm'",
    ),
    "other datatype": (
        PLAIN,
        a_request(int32("X", 1)),
        f"{ANON} inference input 'X' data-type is 'INT32', but model 'm' expects 'FP32'",
    ),
    "unknown datatype": (
        PLAIN,
        a_request(raw_tensor("X", None, [1], bytes(4))),
        f"{ANON} inference input 'X' data-type is '<invalid>', but model 'm' expects 'FP32'",
    ),
    "a size left open": (
        PLAIN,
        a_request(raw_tensor("X", FP32, [-1], bytes(4))),
        f"{ANON} All input dimensions should be specified for input 'X' for model 'm', got [-1]",
    ),
    "a size left open in a batch": (
        signature({"X": (FP32, [-1, 3])}, max_batch_size=8),
        a_request(raw_tensor("X", FP32, [2, -1, 3], bytes(24))),
        f"{ANON} All input dimensions should be specified for input 'X' for model 'm', "
        "got [2,-1,3]",
    ),
    "a size below zero": (
        PLAIN,
        a_request(raw_tensor("X", FP32, [-2], bytes(8))),
        f"{ANON} input byte size mismatch for input 'X' for model 'm'. Expected -8, got 8",
    ),
    "sizes below zero whose product is right": (
        signature({"X": (FP32, [-1, -1])}),
        a_request(raw_tensor("X", FP32, [-2, -2], bytes(16))),
        f"{ANON} invalid shape for input 'X': shape [-2,-2] contains one or more invalid "
        "dimensions",
    ),
    "a size below zero of nothing": (
        signature({"X": (FP32, [-1, -1])}),
        a_request(raw_tensor("X", FP32, [-2, 0], b"")),
        f"{ANON} invalid shape for input 'X': shape [-2,0] contains one or more invalid dimensions",
    ),
    "rows below zero": (
        BATCHED,
        a_request(raw_tensor("X", FP32, [-1, 4], bytes(16))),
        f"{ANON} input byte size mismatch for input 'X' for model 'm'. "
        "Expected 68719476720, got 16",
    ),
    "strings below zero": (
        WORDS,
        a_request(words(wire(b"a"), -2)),
        f"{ANON} unexpected number of string elements 1 for inference input 'T' for model 'm', "
        "expecting -2",
    ),
    "no strings, below zero": (
        WORDS,
        a_request(words(b"", -2)),
        f"{ANON} expected -2 string elements for inference input 'T' for model 'm', got 0",
    ),
    "other shape": (
        FIXED,
        a_request(fp32("X", 4, 3)),
        f"{ANON} unexpected shape for input 'X' for model 'm'. Expected [4,2], got [4,3]. ",
    ),
    "other rank": (
        PLAIN,
        a_request(fp32("X", 1, 2)),
        f"{ANON} unexpected shape for input 'X' for model 'm'. Expected [-1], got [1,2]. ",
    ),
    "other shape on a batching model": (
        BATCHED,
        a_request(fp32("X", 1, 5)),
        f"{ANON} unexpected shape for input 'X' for model 'm'. Expected [-1,4], got [1,5]. {NOTE}",
    ),
    "no batch dimension": (
        BATCHED,
        a_request(fp32("X", 4)),
        f"{ANON} unexpected shape for input 'X' for model 'm'. Expected [-1,4], got [4]. {NOTE}",
    ),
    "too few bytes": (
        FIXED,
        a_request(raw_tensor("X", FP32, [4, 2], bytes(31))),
        f"{ANON} input byte size mismatch for input 'X' for model 'm'. Expected 32, got 31",
    ),
    "a batch of no rows": (
        BATCHED,
        a_request(fp32("X", 0, 4)),
        f"{ANON} input byte size mismatch for input 'X' for model 'm'. Expected 16, got 0",
    ),
    "string length cut": (
        WORDS,
        a_request(words(wire(b"a") + b"\1\0", 1)),
        f"{ANON} incomplete string length indicator for inference input 'T' for model 'm', "
        "expecting 4 bytes but only 2 bytes available. Please make sure the string length "
        "indicator is in one buffer.",
    ),
    "string content cut": (
        WORDS,
        a_request(words(wire(b"a") + b"\x09\0\0\0ab", 2)),
        "incomplete string data for inference input 'T', expecting string of length 9 but only 2 "
        "bytes available",
    ),
    "too many strings": (
        WORDS,
        a_request(words(wire(b"a", b"b", b"c"), 1)),
        f"{ANON} unexpected number of string elements 2 for inference input 'T' for model 'm', "
        "expecting 1",
    ),
    "too few strings": (
        WORDS,
        a_request(words(wire(b"a"), 3)),
        f"{ANON} expected 3 string elements for inference input 'T' for model 'm', got 1",
    ),
    "strings are counted over the batch": (
        WORD_ROWS,
        a_request(words(wire(b"a", b"b"), 2, 2)),
        f"{ANON} expected 4 string elements for inference input 'T' for model 'm', got 2",
    ),
    "too many strings, then a cut": (
        WORDS,
        a_request(words(wire(b"a", b"b") + b"\1\0", 1)),
        f"{ANON} unexpected number of string elements 2 for inference input 'T' for model 'm', "
        "expecting 1",
    ),
    "one string too many, and cut": (
        WORDS,
        a_request(words(wire(b"a") + b"\x09\0\0\0ab", 1)),
        f"{ANON} unexpected number of string elements 2 for inference input 'T' for model 'm', "
        "expecting 1",
    ),
    "too few strings, the last cut": (
        WORDS,
        a_request(words(wire(b"a") + b"\x09\0\0\0ab", 3)),
        f"{ANON} expected 3 string elements for inference input 'T' for model 'm', got 2",
    ),
    "too many strings in an array": (
        WORDS,
        a_request(raw_tensor("T", BYTES, [1], wire(b"a", b"b"))),
        f"{ANON} unexpected number of string elements 2 for inference input 'T' for model 'm', "
        "expecting 1",
    ),
}


@pytest.mark.parametrize(("model", "request_", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(model, request_, text):
    assert refusal(model, request_) == text


@pytest.mark.parametrize("name", ["string content cut", "string length cut"])
def test_only_truncated_contents_are_an_error_of_the_backend(name):
    model, request, _ = REFUSED[name]
    with pytest.raises(ServerError) as caught:
        RequestRules(model).admit(request)
    assert isinstance(caught.value, BackendError) is (name == "string content cut")


def test_the_text_has_the_id_of_the_request():
    request = a_request(int32("X", 1), id="q7")
    assert refusal(PLAIN, request).startswith("[request id: q7] inference input")


ORDER = {
    "output before number of inputs": (
        PAIR,
        a_request(requested_outputs=("Z",)),
        "unexpected inference output",
    ),
    "number of inputs before names": (
        PAIR,
        a_request(fp32("Z", 1)),
        "expected 2 inputs but got 1",
    ),
    "batch before datatype": (
        PAIR,
        a_request(int32("A", 1, 4), int32("B", 2, 1, 2)),
        "batch size does not match",
    ),
    "datatype before shape": (PLAIN, a_request(int32("X", 1, 2)), "data-type is 'INT32'"),
    "shape before byte size": (
        FIXED,
        a_request(raw_tensor("X", FP32, [1], b"")),
        "unexpected shape",
    ),
}


@pytest.mark.parametrize(("model", "request_", "text"), ORDER.values(), ids=ORDER)
def test_the_first_error_is_reported(model, request_, text):
    assert text in refusal(model, request_)


# ------------------------------------------------------------------------------------- admitted

ADMITTED = {
    "no elements": (PLAIN, a_request(fp32("X", 0))),
    "no strings": (WORDS, a_request(words(b"", 0))),
    "scalar of a scalar model": (signature({"X": (FP32, [])}), a_request(fp32("X"))),
    "whole batch": (BATCHED, a_request(fp32("X", 8, 4))),
    "one output": (PLAIN, a_request(fp32("X", 1), requested_outputs=("Y",))),
    "all optional inputs left out": (OPTIONAL, a_request(fp32("A", 1))),
    "one optional input left out": (OPTIONAL, a_request(fp32("A", 1), fp32("C", 1))),
    "only the number of inputs is compared": (OPTIONAL, a_request(fp32("B", 1))),
    "array of numbers": (PLAIN, a_request(array_tensor("X", [1, 2], np.float32))),
    "array of strings": (WORDS, a_request(array_tensor("T", [b"a", b""], object))),
    "no inputs at all": (signature(), a_request()),
}


@pytest.mark.parametrize(("model", "request_"), ADMITTED.values(), ids=ADMITTED)
def test_admitted(model, request_):
    RequestRules(model).admit(request_)


@pytest.mark.parametrize(
    ("model", "request_", "rows"),
    [
        (BATCHED, a_request(fp32("X", 5, 4)), 5),
        (FIXED, a_request(fp32("X", 4, 2)), 1),
    ],
    ids=["first dimension", "model does not batch"],
)
def test_batch_size(model, request_, rows):
    assert admitted(model, request_).batch_size == rows


def test_a_model_that_batches_fails_without_inputs_unlike_an_ensemble():
    model, request = signature(max_batch_size=4), a_request()
    with pytest.raises(BackendError) as fault:
        RequestRules(model).admit(request)
    assert fault.value.message == f"{ANON} out of bounds index 0: request has 0 inputs"
    RequestRules(model, reads_strings=False).admit(request)
    assert request.batch_size == 1


CUT_CONTENT = wire(b"a") + b"\x09\0\0\0ab"


def test_rules_that_do_not_read_strings_admit_truncated_ones():
    RequestRules(WORDS, reads_strings=False).admit(a_request(words(CUT_CONTENT, 2)))


@pytest.mark.parametrize(
    ("raw", "count", "text"),
    [
        (CUT_CONTENT, 3, "expected 3 string elements"),
        (CUT_CONTENT, 1, "unexpected number of string elements 2"),
        (wire(b"a") + b"\1\0", 1, "incomplete string length indicator"),
    ],
)
def test_rules_that_do_not_read_strings_still_count_them(raw, count, text):
    with pytest.raises(ServerError, match=text):
        RequestRules(WORDS, reads_strings=False).admit(a_request(words(raw, count)))


# ------------------------------------------------------------------------------------ batch keys

FREE = signature({"X": (FP32, [-1]), "N": (FP32, [2])}, max_batch_size=8)
RAGGED = signature({"X": (FP32, [-1], {"ragged": True})}, max_batch_size=8)
FREE_OPTIONAL = signature(
    {"A": (FP32, [1]), "B": (FP32, [-1], {"optional": True})}, max_batch_size=8
)

SHARE_A_BATCH = {
    "same free size": (FREE, [fp32("X", 1, 3)], [fp32("X", 1, 3)], True),
    "other free size": (FREE, [fp32("X", 1, 3)], [fp32("X", 1, 4)], False),
    "other number of rows": (FREE, [fp32("X", 1, 3)], [fp32("X", 2, 3)], True),
    "other order of inputs": (
        PAIR,
        [fp32("A", 1, 4), int32("B", 1, 1, 2)],
        [int32("B", 1, 1, 2), fp32("A", 1, 4)],
        True,
    ),
    "ragged": (RAGGED, [fp32("X", 1, 3)], [fp32("X", 1, 9)], True),
    "optional input on one side": (
        FREE_OPTIONAL,
        [fp32("A", 1, 1)],
        [fp32("A", 1, 1), fp32("B", 1, 2)],
        False,
    ),
    "optional input on both sides": (
        FREE_OPTIONAL,
        [fp32("A", 1, 1), fp32("B", 1, 2)],
        [fp32("B", 1, 2), fp32("A", 1, 1)],
        True,
    ),
    "optional input of another size": (
        FREE_OPTIONAL,
        [fp32("A", 1, 1), fp32("B", 1, 2)],
        [fp32("A", 1, 1), fp32("B", 1, 3)],
        False,
    ),
}


@pytest.mark.parametrize(
    ("model", "one", "other", "together"), SHARE_A_BATCH.values(), ids=SHARE_A_BATCH
)
def test_requests_with_equal_keys_share_a_batch(model, one, other, together):
    def completed(tensors):
        if model is FREE:
            tensors = [*tensors, fp32("N", tensors[0].shape[0], 2)]
        return admitted(model, a_request(*tensors))

    assert (completed(one).batch_key == completed(other).batch_key) is together


# -------------------------------------------------------------------------------------- reshape


def test_the_model_receives_the_shape_of_reshape():
    model = signature({"X": (FP32, [4], {"reshape": (2, 2)})}, max_batch_size=8)
    request = admitted(model, a_request(fp32("X", 3, 4)))
    assert request.inputs["X"].shape == (3, 2, 2)
    assert request.inputs["X"].array().shape == (3, 2, 2)


def test_zero_rows_with_the_data_of_one_become_a_row_without_a_batch_dimension():
    request = admitted(BATCHED, a_request(raw_tensor("X", FP32, [0, 4], bytes(16))))
    assert request.inputs["X"].shape == (4,)
    assert request.inputs["X"].array().shape == (4,)
    assert request.batch_size == 1


def test_an_empty_reshape_keeps_the_batch_dimension():
    model = signature({"X": (FP32, [1], {"reshape": ()})}, max_batch_size=8)
    assert admitted(model, a_request(fp32("X", 3, 1))).inputs["X"].shape == (3,)


def test_the_shape_in_the_request_is_checked():
    model = signature({"X": (FP32, [4], {"reshape": (2, 2)})}, max_batch_size=8)
    assert "Expected [-1,4], got [1,2,2]" in refusal(model, a_request(fp32("X", 1, 2, 2)))


@pytest.mark.parametrize(
    ("shape", "dims", "other", "result"),
    [
        ((4,), (4,), (2, 2), (2, 2)),
        ((2, 4, 7, 6), (2, 4, -1, 6), (8, -1, 1, 6), (8, 7, 1, 6)),
        ((5, 7), (-1, -1), (-1, 1, -1), (5, 1, 7)),
        ((1,), (1,), (), ()),
        ((0, 3), (-1, 3), (3, -1), (3, 0)),
    ],
)
def test_reshaped(shape, dims, other, result):
    assert reshaped(shape, dims, other) == result


#: Two layouts of the same elements: the products of sizes between free dimensions are equal.
BLOCKS = st.lists(
    st.sampled_from([((4,), (2, 2)), ((6,), (1, 6)), ((), ()), ((3, 2), (6,)), ((1,), ())]),
    min_size=1,
    max_size=4,
)


@given(BLOCKS, st.data())
def test_a_reshape_keeps_the_elements_and_can_be_reversed(blocks, data):
    dims, other = (), ()
    for left, right in blocks:
        dims, other = (*dims, *left, -1), (*other, *right, -1)
    shape = tuple(dim if dim != -1 else data.draw(st.integers(0, 5)) for dim in dims)
    there = reshaped(shape, dims, other)
    assert prod(there) == prod(shape)
    assert reshaped(there, other, dims) == shape
