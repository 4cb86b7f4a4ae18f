"""Responses as bodies: the cache, pieces and copies."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import array_tensor, signature

from reference_server.codecs.inference import OutputForm, ResponseForm
from reference_server.codecs.json_writer import InferResponseEncoder, encode
from reference_server.core.errors import ServerError
from reference_server.core.request import InferResponse

BINARY = OutputForm(binary=True)
FLOATS = array_tensor("Y", [[1, 2.5]], np.float32)
INTS = array_tensor("Z", [3], np.int32)


def encoded(*tensors, form=None, labels=None, max_batch_size=0, **fields):
    response = InferResponse("m", 1, fields.pop("id", ""), tensors, **fields)
    return encode(
        response, form or ResponseForm(), signature(max_batch_size=max_batch_size), labels or {}
    )


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


# ---------------------------------------------------------------------------------------- binary


def test_binary_data_is_not_copied():
    array = np.zeros(4, np.float32)
    result = encoded(array_tensor("Y", array), form=ResponseForm(BINARY))
    assert np.shares_memory(np.frombuffer(result.parts[1], np.uint8), array)
