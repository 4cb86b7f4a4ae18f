"""The checks of requests, beyond the refusals of tests/recorded, and the fields that they set."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import a_request, raw_tensor, signature

from reference_server.core.errors import BackendError, ServerError
from reference_server.core.rules import RequestRules, reshaped
from reference_server.core.tensor import DataType

FP32, INT32, BYTES = DataType.FP32, DataType.INT32, DataType.BYTES
BATCHED = signature({"X": (FP32, [4])}, {"Y": (FP32, [4])}, max_batch_size=8)
PAIR = signature({"A": (FP32, [4]), "B": (INT32, [1, 2])}, max_batch_size=8)
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


def admitted(signature, request):
    RequestRules(signature).admit(request)
    return request


CUT_LENGTH = wire(b"a") + b"\1\0"
CUT_CONTENT = wire(b"a") + b"\x09\0\0\0ab"


@pytest.mark.parametrize(
    ("raw", "count", "is_of_backend"), [(CUT_CONTENT, 2, True), (CUT_LENGTH, 1, False)]
)
def test_only_truncated_contents_are_an_error_of_the_backend(raw, count, is_of_backend):
    with pytest.raises(ServerError) as caught:
        RequestRules(WORDS).admit(a_request(words(raw, count)))
    assert isinstance(caught.value, BackendError) is is_of_backend


def test_a_model_that_batches_fails_without_inputs_unlike_an_ensemble():
    model, request = signature(max_batch_size=4), a_request()
    with pytest.raises(BackendError) as fault:
        RequestRules(model).admit(request)
    assert fault.value.message == (
        "[request id: <id_unknown>] out of bounds index 0: request has 0 inputs"
    )
    RequestRules(model, reads_strings=False).admit(request)
    assert request.batch_size == 1


@pytest.mark.parametrize(
    ("raw", "count", "text"),
    [
        (CUT_CONTENT, 3, "expected 3 string elements"),
        (CUT_CONTENT, 1, "unexpected number of string elements 2"),
        (CUT_LENGTH, 1, "incomplete string length indicator"),
    ],
)
def test_rules_that_do_not_read_strings_still_count_them(raw, count, text):
    with pytest.raises(ServerError, match=text):
        RequestRules(WORDS, reads_strings=False).admit(a_request(words(raw, count)))


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
