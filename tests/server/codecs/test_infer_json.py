"""Inference requests and responses as JSON, beyond the rows of tests/recorded/test_http.py."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.regions import MadeUpRegions
from server.support.requests import NullSink, array_tensor, raw_tensor, signature

from reference_server.codecs.bodies import InputLimit
from reference_server.codecs.infer_json import InferRequestDecoder, json_length
from reference_server.codecs.inference import OutputForm, ResponseForm, classify
from reference_server.codecs.json_writer import InferResponseEncoder, encode
from reference_server.core.errors import Code, ServerError
from reference_server.core.profiles import NEWEST
from reference_server.core.request import InferResponse
from reference_server.core.tensor import DataType

MODEL = signature({"X": (DataType.FP32, [-1])}, name="m")
NO_REGIONS = MadeUpRegions()


def x(**changes):
    """The input X with its data in JSON and some changes; None removes a field."""
    entry = {"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]} | changes
    return {key: value for key, value in entry.items() if value is not None}


def binary(size, name="X", datatype="FP32", shape=(2,)):
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(shape),
        "parameters": {"binary_data_size": size},
    }


def document(*inputs, **fields):
    return json.dumps(fields | {"inputs": list(inputs)})


def decode(text, tail=b"", *, regions=NO_REGIONS):
    """Decode a body to the request and the form of its response."""
    head = text.encode()
    body = memoryview(bytearray(head + tail))
    return InferRequestDecoder().decode(MODEL, body, len(head), NullSink(), regions)


def request(*arguments, **more):
    return decode(*arguments, **more)[0]


def y(name="Y", **parameters):
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def test_the_greatest_strict_json_length():
    assert json_length(str(2**31 - 1), 2**32, strictly=True) == 2**31 - 1
    # An int32, but not within the body.
    with pytest.raises(ServerError, match="inference header size should be in range"):
        json_length(str(-(2**31)), 200, strictly=True)


def test_data_may_be_nested_99_deep():
    def nested(depth):
        return document(x(data="?", shape=[1])).replace('"?"', "[" * depth + "1" + "]" * depth)

    assert request(nested(99)).inputs["X"].array().tolist() == [1]
    with pytest.raises(ServerError) as caught:
        request(nested(100))
    assert caught.value.code is Code.INVALID_ARG
    too_deep = "JSON nesting depth exceeds maximum allowed limit (100)"
    assert caught.value.message == f"Unable to parse 'data': {too_deep}"
    with pytest.raises(ServerError) as caught:  # Triton has no prefix for strings, nor elsewhere
        request(nested(100).replace("FP32", "BYTES"))
    assert caught.value.message == too_deep
    with pytest.raises(ServerError) as caught:
        request(nested(100).replace('"data"', '"more"'))
    assert caught.value.message == too_deep


def twice(text, *tails, model=MODEL):
    """Two requests with the same JSON through one decoder."""
    decoder, head = InferRequestDecoder(), text.encode()
    for tail in tails:
        yield decoder.decode(model, memoryview(head + tail), len(head), NullSink(), NO_REGIONS)


def test_repeated_json_has_new_data():
    text = document(binary(8), binary(4, "Y", "INT32", [1]), id="q")
    one, two = twice(text, struct.pack("<2fi", 1, 2, 3), struct.pack("<2fi", 4, 5, 6))
    for (decoded, _), expected in ((one, [1, 2, 3]), (two, [4, 5, 6])):
        values = [*decoded.inputs["X"].array().tolist(), *decoded.inputs["Y"].array().tolist()]
        assert values == expected


def test_repeated_json_with_data_of_another_size_is_parsed_again():
    decoder, head = InferRequestDecoder(), document(binary(8)).encode()
    decoder.decode(MODEL, memoryview(head + bytes(8)), len(head), NullSink(), NO_REGIONS)
    with pytest.raises(ServerError, match="unexpected additional input data"):
        decoder.decode(MODEL, memoryview(head + bytes(9)), len(head), NullSink(), NO_REGIONS)
    with pytest.raises(ServerError, match="expecting 1 additional bytes"):
        decoder.decode(MODEL, memoryview(head + bytes(7)), len(head), NullSink(), NO_REGIONS)


def test_requests_from_the_cache_do_not_share_inputs():
    (one, _), (two, _) = twice(document(binary(8)), bytes(8), bytes(8))
    one.inputs.clear()
    assert list(two.inputs) == ["X"]


def test_the_cache_is_bounded():
    decoder = InferRequestDecoder()
    for _ in range(2):
        for number in range(600):
            head = document(binary(8), id=str(number)).encode()
            body = memoryview(head + bytes(8))
            decoded, _ = decoder.decode(MODEL, body, len(head), NullSink(), NO_REGIONS)
            assert decoded.id == str(number)


FLOATS = struct.pack("<4f", 1, 2, 3, 4)


def in_region(name="X", region="r", size=8, offset=None, **more):
    """An input in shared memory; None removes a parameter."""
    parameters = {
        "shared_memory_region": region,
        "shared_memory_byte_size": size,
        "shared_memory_offset": offset,
    } | more
    parameters = {key: value for key, value in parameters.items() if value is not None}
    return {"name": name, "datatype": "FP32", "shape": [2], "parameters": parameters}


def regions(**more):
    return MadeUpRegions(r=FLOATS, s=bytes(64), **more)


def test_an_input_in_shared_memory_is_a_view():
    memory = regions()
    decoded = request(document(in_region(offset=8)), regions=memory)
    assert memory.asked == [("read", "r", 8, 8)]
    assert decoded.inputs["X"].array().tolist() == [3, 4]
    memory.bytes["r"][8:12] = FLOATS[:4]
    assert bytes(decoded.inputs["X"].raw()) == FLOATS[:4] + FLOATS[12:]


def test_repeated_json_reads_shared_memory_again():
    memory = regions()
    outputs = [
        {"name": "Z"},
        *(y(shared_memory_region="s", shared_memory_byte_size=n) for n in (8, 4)),
    ]
    text = document(in_region("A", offset=8), binary(8, "B"), outputs=outputs)
    decoder, head = InferRequestDecoder(), text.encode()
    for tail in (FLOATS[:8], FLOATS[8:]):
        memory.asked.clear()
        body = memoryview(head + tail)
        decoded, form = decoder.decode(MODEL, body, len(head), NullSink(), memory)
        assert memory.asked == [
            ("read", "r", 8, 8),
            ("output_buffer", "s", 0, 8),
            ("output_buffer", "s", 0, 4),
        ]
        assert bytes(decoded.inputs["A"].raw()) == FLOATS[8:]
        assert bytes(decoded.inputs["B"].raw()) == tail
        assert form.of("Y").buffer.byte_size == 8
        assert form.of("Z").buffer is None


def test_repeated_json_is_refused_after_its_region_is_unregistered():
    memory, text = regions(), document(in_region()).encode()
    decoder = InferRequestDecoder()
    decoder.decode(MODEL, memoryview(text), len(text), NullSink(), memory)
    del memory.bytes["r"]
    with pytest.raises(ServerError, match="no region 'r'"):
        decoder.decode(MODEL, memoryview(text), len(text), NullSink(), memory)


def test_the_size_of_strings_includes_their_lengths():
    text = document(binary(0, "X", "BYTES", [200]) | {"parameters": {}, "data": [""] * 200})
    head = memoryview(text.replace(" ", "").encode())
    decoder = InferRequestDecoder(NEWEST, InputLimit(800))
    decoder.decode(MODEL, head, len(head), NullSink(), NO_REGIONS)
    decoder = InferRequestDecoder(NEWEST, InputLimit(799))
    with pytest.raises(ServerError, match=r"JSON input 'X' has a byte_size \(800 bytes\) that"):
        decoder.decode(MODEL, head, len(head), NullSink(), NO_REGIONS)


def test_json_of_more_bytes_than_the_limit_is_refused():
    head = memoryview(document(x()).encode())
    InferRequestDecoder(NEWEST, InputLimit(len(head))).decode(
        MODEL, head, len(head), NullSink(), NO_REGIONS
    )
    decoder = InferRequestDecoder(NEWEST, InputLimit(len(head) - 1))
    for decode_with in (decoder.decode, decoder.decode_uncached):
        with pytest.raises(ServerError, match=f"request JSON size of {len(head)} bytes exceeds"):
            decode_with(MODEL, head, len(head), NullSink(), NO_REGIONS)


def test_a_shape_of_more_bytes_than_the_limit_is_refused_before_its_data_is_read():
    head = memoryview(document(x(shape=[50], data=["no number"])).encode())
    decoder = InferRequestDecoder(NEWEST, InputLimit(199))
    with pytest.raises(ServerError, match=r"JSON input 'X' has a byte_size \(200 bytes\) that"):
        decoder.decode(MODEL, head, len(head), NullSink(), NO_REGIONS)


BINARY = OutputForm(binary=True)
NUMBERS = array_tensor("Y", [[1, 2.5]], np.float32)
INTS = array_tensor("Z", [3], np.int32)


def encoded(*tensors, form=None, labels=None, max_batch_size=0, **fields):
    response = InferResponse("m", 1, fields.pop("id", ""), tensors, **fields)
    return encode(
        response, form or ResponseForm(), signature(max_batch_size=max_batch_size), labels or {}
    )


FORMS = [BINARY, OutputForm(), OutputForm(binary=True, classes=1)]
TYPES = [np.int32, np.float32, np.float64, np.bool_, np.object_]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "id", 'i"d']),
            st.lists(
                st.tuples(
                    *(st.sampled_from("YZ"), st.integers(0, 3), st.sampled_from(TYPES)),
                    st.sampled_from(FORMS),
                ),
                max_size=2,
                unique_by=lambda output: output[0],
            ),
            st.sampled_from([(), (("key", 1),)]),
        ),
        max_size=6,
    )
)
def test_the_cache_changes_no_response(responses):
    encoder = InferResponseEncoder()
    for place, (id, outputs, parameters) in enumerate([*responses, *responses]):
        numbers = place + np.arange(3) / 2
        tensors = [
            array_tensor(name, numbers[:count].astype(dtype), dtype)
            for name, count, dtype, _ in outputs
        ]
        form = ResponseForm(outputs={name: form for name, _, _, form in outputs})
        asked = InferResponse("m", 1, id, tensors, parameters), form, signature(), {}
        assert answered(encoder.encode, asked) == answered(encode, asked)


def answered(encode, asked):
    """Return the encoded body or the error, in a form that can be compared."""
    try:
        return encode(*asked)
    except ServerError as error:
        return error.code, error.message


def test_long_outputs_are_not_joined():
    long = array_tensor("Y", np.zeros(1 << 16, np.float32))
    encoder = InferResponseEncoder()
    asked = InferResponse("m", 1, "", [NUMBERS, long, INTS]), ResponseForm(), signature(), {}
    for _ in range(2):
        parts, _ = encoder.encode(*asked)
        assert b"".join(parts) == b"".join(encode(*asked).parts)
        assert len(parts) > 1


def test_binary_data_is_not_copied():
    array = np.zeros(4, np.float32)
    result = encoded(array_tensor("Y", array), form=ResponseForm(BINARY))
    assert np.shares_memory(np.frombuffer(result.parts[1], np.uint8), array)


def classes(values, count, *, dtype=np.float32, labels=(), batches=False):
    """Shape and texts of the classes."""
    result = classify(array_tensor("Y", values, dtype), count, labels, batches=batches)
    assert (result.name, result.datatype) == ("Y", DataType.BYTES)
    assert result.array().shape == result.shape
    return result.shape, [text.decode() for text in result.array().ravel()]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.integers(1, 10))
def test_the_order_is_that_of_a_stable_sort(values, count):
    expected = sorted(range(len(values)), key=lambda index: -values[index])[:count]
    assert classes(values, count, dtype=np.int32)[1] == [
        f"{values[index]}:{index}" for index in expected
    ]


@pytest.mark.parametrize(
    ("tensor", "form", "is_large"),
    [
        (array_tensor("Y", np.zeros(8192, np.float32)), OutputForm(classes=1), False),
        (array_tensor("Y", np.zeros((2, 4097), np.float32)), OutputForm(classes=1), True),
        (array_tensor("Y", np.zeros(100_000, np.float32)), OutputForm(binary=True), False),
        (array_tensor("Y", np.array([b"x"] * 8193, object)), OutputForm(binary=True), True),
        (raw_tensor("Y", DataType.BYTES, (8193,), bytes(4 * 8193)), OutputForm(), False),
    ],
    ids=["few", "many", "numbers", "strings", "bytes"],
)
def test_large_responses(tensor, form, is_large):
    assert ResponseForm(form).is_large_response([tensor]) is is_large
