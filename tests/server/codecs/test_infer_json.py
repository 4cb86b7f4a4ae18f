"""Decoding of inference requests, beyond the requests of tests/recorded/test_http.py."""

import json
import struct

import numpy as np
import pytest
from server.support.regions import MadeUpRegions
from server.support.requests import NullSink, signature

from reference_server.codecs.bodies import InputLimit
from reference_server.codecs.infer_json import InferRequestDecoder, json_length
from reference_server.core.errors import Code, ServerError
from reference_server.core.profiles import NEWEST
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


# --------------------------------------------------------------------------- where the JSON ends


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_a_strict_json_length_is_an_int32(number):
    with pytest.raises(ServerError) as caught:
        json_length(str(number), 2**32, strictly=True)
    assert caught.value.message == (
        "Unable to parse Inference-Header-Content-Length, value is out of range "
        f"[ -2147483648, 2147483647 ], got: {number}"
    )


def test_the_greatest_strict_json_length():
    assert json_length(str(2**31 - 1), 2**32, strictly=True) == 2**31 - 1
    # An int32, but not within the body.
    with pytest.raises(ServerError, match="inference header size should be in range"):
        json_length(str(-(2**31)), 200, strictly=True)


# --------------------------------------------------------------------------------------- inputs


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


def test_binary_inputs_are_views_of_the_body():
    head = document(binary(8)).encode()
    body = memoryview(bytearray(head + bytes(8)))
    decoded, _ = InferRequestDecoder().decode(MODEL, body, len(head), NullSink(), NO_REGIONS)
    body[len(head) :] = struct.pack("<2f", 3, 4)
    assert bytes(decoded.inputs["X"].raw()) == struct.pack("<2f", 3, 4)


# ------------------------------------------------------------------------- the same header again


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


def test_repeated_json_gives_the_same_request():
    text = document(
        binary(8),
        id="q",
        parameters={
            "sequence_id": "s",
            "sequence_start": True,
            "priority": 1,
            "timeout": 2,
            "a": 3,
            "binary_data_output": True,
        },
        outputs=[y(classification=1)],
    )
    (one, one_form), (two, two_form) = twice(text, bytes(8), bytes(8))
    assert one_form == two_form
    for name in (
        *("id", "requested_outputs", "parameters", "correlation_id", "flags", "priority"),
        *("timeout_us", "batch_size", "batch_key", "model_version"),
    ):
        assert getattr(one, name) == getattr(two, name), name


def test_repeated_json_with_data_of_another_size_is_parsed_again():
    decoder, head = InferRequestDecoder(), document(binary(8)).encode()
    decoder.decode(MODEL, memoryview(head + bytes(8)), len(head), NullSink(), NO_REGIONS)
    with pytest.raises(ServerError, match="unexpected additional input data"):
        decoder.decode(MODEL, memoryview(head + bytes(9)), len(head), NullSink(), NO_REGIONS)
    with pytest.raises(ServerError, match="expecting 1 additional bytes"):
        decoder.decode(MODEL, memoryview(head + bytes(7)), len(head), NullSink(), NO_REGIONS)


def test_cached_json_serves_any_model():
    decoder, head = InferRequestDecoder(), document(binary(8)).encode()
    body = memoryview(head + bytes(8))
    for name in ("m", "n"):
        model = signature({"X": (DataType.FP32, [-1])}, name=name)
        decoded, _ = decoder.decode(model, body, len(head), NullSink(), NO_REGIONS)
        assert decoded.model_name == name


def test_requests_from_the_cache_do_not_share_inputs():
    (one, _), (two, _) = twice(document(binary(8)), bytes(8), bytes(8))
    one.inputs.clear()
    assert list(two.inputs) == ["X"]


def test_mixed_inputs_are_read_each_time():
    text = document(binary(8), x(name="J"))
    (one, _), (two, _) = twice(text, bytes(8), bytes(8))
    assert not np.shares_memory(one.inputs["J"].array(), two.inputs["J"].array())


def test_the_cache_is_bounded():
    decoder = InferRequestDecoder()
    for _ in range(2):
        for number in range(600):
            head = document(binary(8), id=str(number)).encode()
            body = memoryview(head + bytes(8))
            decoded, _ = decoder.decode(MODEL, body, len(head), NullSink(), NO_REGIONS)
            assert decoded.id == str(number)


# --------------------------------------------------------------------------------- shared memory

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
