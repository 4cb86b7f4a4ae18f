"""Responses as bodies, byte for byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.regions import MadeUpRegions
from server.support.requests import array_tensor, signature

from reference_server.codecs.inference import OutputForm, ResponseForm
from reference_server.codecs.json_writer import InferResponseEncoder, encode
from reference_server.core.errors import Code, ServerError
from reference_server.core.request import InferResponse
from reference_server.core.tensor import DataType, Tensor

BINARY = OutputForm(binary=True)
FLOATS = array_tensor("Y", [[1, 2.5]], np.float32)
INTS = array_tensor("Z", [3], np.int32)


def encoded(*tensors, form=None, labels=None, max_batch_size=0, **fields):
    response = InferResponse("m", 1, fields.pop("id", ""), tensors, **fields)
    return encode(
        response, form or ResponseForm(), signature(max_batch_size=max_batch_size), labels or {}
    )


def text(*tensors, **more):
    """The JSON of a response that has no binary data."""
    result = encoded(*tensors, **more)
    assert result.json_length is None
    (part,) = result.parts
    return part


# ----------------------------------------------------------------------------- one after the other

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
    asked = InferResponse("m", 1, "", [FLOATS, long, INTS]), ResponseForm(), signature(), {}
    for _ in range(2):
        parts, _ = encoder.encode(*asked)
        assert b"".join(parts) == b"".join(encode(*asked).parts)
        assert len(parts) > 1


# ------------------------------------------------------------------------------------------ JSON


def test_outputs_are_flat():
    assert text(FLOATS, INTS) == (
        b'{"model_name":"m","model_version":"1","outputs":['
        b'{"name":"Y","datatype":"FP32","shape":[1,2],"data":[1.0,2.5]},'
        b'{"name":"Z","datatype":"INT32","shape":[1],"data":[3]}]}'
    )


def test_an_id_comes_first():
    assert text(id='q"1').startswith(rb'{"id":"q\"1","model_name":"m"')


def test_no_outputs():
    assert text() == b'{"model_name":"m","model_version":"1","outputs":[]}'


def test_no_elements():
    tensor = array_tensor("Y", np.zeros((0, 3), np.float32))
    assert b'"shape":[0,3],"data":[]}' in text(tensor)


def test_a_scalar():
    assert b'"shape":[],"data":[7.0]}' in text(array_tensor("Y", np.float32(7)))


def test_elements_are_in_row_order():
    tensor = array_tensor("Y", np.arange(4, dtype=np.int64).reshape(2, 2).T)
    assert b'"shape":[2,2],"data":[0,2,1,3]}' in text(tensor)


def test_strings_that_are_not_utf8_are_copied():
    tensor = array_tensor("Y", [b"\xff", "数".encode()], object)
    assert b'"datatype":"BYTES","shape":[2],"data":["\xff","\xe6\x95\xb0"]}' in text(tensor)


def test_names_are_escaped():
    assert rb'{"name":"a\"b"' in text(INTS.renamed('a"b'))


@pytest.mark.parametrize(
    "tensor",
    [
        array_tensor("Y", [1], np.float16),
        Tensor("Y", DataType.BF16, (1,), raw=memoryview(bytes(2))),
    ],
    ids=["FP16", "BF16"],
)
def test_types_without_json(tensor):
    with pytest.raises(ServerError) as caught:
        encoded(tensor)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        f"sending {tensor.datatype.value} data via JSON is not supported. Please use the binary "
        "data format for output"
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (2**64 - 1, "18446744073709551615"),
        (1.5, "1.5"),
        (1e21, "1e21"),
        ("a\n", r'"a\n"'),
    ],
)
def test_parameters(value, written):
    body = text(parameters=[("k", value)])
    assert body == (
        b'{"model_name":"m","model_version":"1","parameters":{"k":%b},"outputs":[]}'
        % written.encode()
    )


def test_parameters_may_repeat():
    body = text(parameters=[("k", 1), ("l", False), ("k", 1)])
    assert b'"parameters":{"k":1,"l":false,"k":1}' in body


# ---------------------------------------------------------------------------------------- binary


def test_binary_data_follows_in_the_order_of_the_outputs():
    result = encoded(FLOATS, INTS, form=ResponseForm(BINARY))
    head = (
        b'{"model_name":"m","model_version":"1","outputs":['
        b'{"name":"Y","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}},'
        b'{"name":"Z","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}}]}'
    )
    assert result.parts == [head, np.array([1, 2.5], np.float32).tobytes(), b"\3\0\0\0"]
    assert result.json_length == len(head)


def test_each_output_has_its_own_form():
    result = encoded(FLOATS, INTS, form=ResponseForm(outputs={"Z": BINARY}))
    assert b'"shape":[1,2],"data":[1.0,2.5]}' in result.parts[0]
    assert result.parts[1:] == [b"\3\0\0\0"]


def test_a_listed_output_ignores_the_default_form():
    result = encoded(FLOATS, INTS, form=ResponseForm(BINARY, {"Y": OutputForm()}))
    assert b'"shape":[1,2],"data":[1.0,2.5]}' in result.parts[0]
    assert len(result.parts) == 2


def test_binary_strings_have_length_prefixes():
    tensor = array_tensor("Y", [b"a", "é"], object)
    result = encoded(tensor, form=ResponseForm(BINARY))
    assert result.parts[1] == b"\1\0\0\0a\2\0\0\0\xc3\xa9"
    assert b'"binary_data_size":11' in result.parts[0]


def test_binary_half_floats():
    result = encoded(array_tensor("Y", [1], np.float16), form=ResponseForm(BINARY))
    assert result.parts[1] == b"\x00\x3c"


def test_empty_binary_data_needs_no_header():
    empty = array_tensor("Y", np.zeros(0, np.float32))
    body = text(empty, form=ResponseForm(BINARY))
    assert b'"shape":[0],"parameters":{"binary_data_size":0}}' in body


def test_binary_data_is_not_copied():
    array = np.zeros(4, np.float32)
    result = encoded(array_tensor("Y", array), form=ResponseForm(BINARY))
    assert np.shares_memory(np.frombuffer(result.parts[1], np.uint8), array)


# --------------------------------------------------------------------------------------- classes


def test_classes_replace_the_output():
    body = text(
        FLOATS,
        form=ResponseForm(outputs={"Y": OutputForm(classes=1)}),
        labels={"Y": ("cat", "dog")},
        max_batch_size=8,
    )
    assert b'"datatype":"BYTES","shape":[1,1],"data":["2.500000:1:dog"]}' in body


def test_without_a_batch_classes_are_one_row():
    body = text(FLOATS, form=ResponseForm(outputs={"Y": OutputForm(classes=1)}))
    assert b'"shape":[1],"data":["2.500000:1"]}' in body


def test_classes_in_binary():
    form = ResponseForm(outputs={"Y": OutputForm(binary=True, classes=1)})
    assert encoded(FLOATS, form=form).parts[1] == b"\x0a\0\0\x002.500000:1"


# --------------------------------------------------------------------------------- shared memory


def placed(memory, **places):
    """The form of outputs that go to the region `s`: offset and size by name."""
    return ResponseForm(
        outputs={
            name: OutputForm(buffer=memory.output_buffer("s", *place))
            for name, place in places.items()
        }
    )


def test_an_output_with_a_buffer_is_written_to_it():
    memory = MadeUpRegions(s=bytes(24))
    assert text(FLOATS, INTS, form=placed(memory, Y=(4, 16))) == (
        b'{"model_name":"m","model_version":"1","outputs":['
        b'{"name":"Y","datatype":"FP32","shape":[1,2]},'
        b'{"name":"Z","datatype":"INT32","shape":[1],"data":[3]}]}'
    )
    assert memory.bytes["s"] == bytes(4) + np.array([1, 2.5], np.float32).tobytes() + bytes(12)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (array_tensor("Y", np.array([[1, 2], [3, 4]], np.uint8).T), bytes([1, 3, 2, 4])),
        (array_tensor("Y", [b"ab", b""], object), b"\2\0\0\0ab\0\0\0\0"),
        (array_tensor("Y", np.empty((0, 2), np.float32)), b""),
        (array_tensor("Y", np.array([0.5], np.float16)), np.array([0.5], np.float16).tobytes()),
    ],
    ids=["a transposed array", "strings", "nothing", "FP16"],
)
def test_a_buffer_receives_the_wire_form(tensor, expected):
    memory = MadeUpRegions(s=bytes(16))
    text(tensor, form=placed(memory, Y=(0, 16)))
    assert memory.bytes["s"] == expected.ljust(16, b"\0")


def test_an_output_can_fill_its_buffer():
    memory = MadeUpRegions(s=bytes(8))
    text(FLOATS, form=placed(memory, Y=(0, 8)))
    with pytest.raises(ServerError) as caught:
        text(FLOATS, form=placed(memory, Y=(0, 7)))
    assert (caught.value.code, caught.value.message) == (
        Code.INTERNAL,
        "shared memory size specified with the request for output 'Y' (7 bytes) should be at least "
        "8 bytes to hold the results",
    )
