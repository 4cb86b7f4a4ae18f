"""Tests of Tensor: accepted arrays, references, copies and strings."""

import copy
import pickle

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from triton_python_backend_utils import Tensor, TritonModelException

from reference_server.core import tensor as core
from reference_server.core.tensor import DataType

NUMBERS = [
    DataType.BOOL,
    DataType.UINT8,
    DataType.UINT16,
    DataType.UINT32,
    DataType.UINT64,
    DataType.INT8,
    DataType.INT16,
    DataType.INT32,
    DataType.INT64,
    DataType.FP16,
    DataType.FP32,
    DataType.FP64,
]


def received(datatype: DataType, array: np.ndarray) -> Tensor:
    """Return a tensor as received in a request's body."""
    raw = core.Tensor("IN", datatype, array.shape, array=array).raw()
    return Tensor._received(
        core.Tensor("IN", datatype, array.shape, raw=memoryview(bytearray(raw)))
    )


# ------------------------------------------------------------------------------------ construction


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda d: d.value)
def test_numbers_of_every_type_are_kept_by_reference(datatype):
    array = np.ones((2, 3), datatype.numpy)
    tensor = Tensor("X", array)
    assert tensor.as_numpy() is array
    assert (tensor.name(), tensor.shape(), tensor.is_cpu()) == ("X", [2, 3], True)
    assert tensor._core.datatype is datatype
    assert tensor._core.array() is array


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1, 1)])
def test_scalars_and_empty_arrays_are_arrays_too(shape):
    tensor = Tensor("X", np.zeros(shape, np.float32))
    assert tensor.shape() == list(shape)
    assert tensor.as_numpy().shape == shape


@pytest.mark.parametrize("value", [[1, 2], 4, np.int32(4), b"x", None], ids=repr)
def test_only_arrays_are_accepted(value):
    with pytest.raises(
        TypeError, match=r"^argument 'numpy_array': found .*; expected numpy.ndarray$"
    ):
        Tensor("X", value)


def test_a_masked_array_is_refused_rather_than_unmasked():
    with pytest.raises(AttributeError, match=r"'numpy.ndarray' object has no attribute"):
        Tensor("X", np.ma.masked_array([1.0, 2.0], mask=[True, False]))


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[:, ::2],
        lambda a: a[::-1],
        lambda a: np.broadcast_to(a[0], (4, 6)),
        lambda a: np.asfortranarray(a),
    ],
)
def test_an_array_out_of_order_is_copied_into_order(view):
    array = view(np.arange(24.0).reshape(4, 6))
    tensor = Tensor("X", array)
    assert tensor.as_numpy().flags.c_contiguous
    assert not np.shares_memory(tensor.as_numpy(), array)
    np.testing.assert_array_equal(tensor.as_numpy(), array)
    assert tensor._core.array() is tensor.as_numpy()


def test_subclasses_and_flags_are_kept():
    matrix = np.arange(4.0).reshape(2, 2).view(np.matrix)
    matrix.flags.writeable = False
    tensor = Tensor("X", matrix)
    assert tensor.as_numpy() is matrix
    assert type(tensor._core.array()) is np.ndarray
    assert np.shares_memory(tensor._core.array(), matrix)


# ------------------------------------------------------------------------------------------ strings


def test_strings_are_encoded_when_the_tensor_is_made():
    array = np.array([["a", b"\xff"], [5, None]], dtype=object)
    tensor = Tensor("X", array)
    array[0, 0] = "changed"
    assert tensor.as_numpy() is array
    assert tensor._core.datatype is DataType.BYTES
    assert tensor._core.array().tolist() == [[b"a", b"\xff"], [b"5", b"None"]]


def test_fixed_width_strings_lose_their_padding():
    tensor = Tensor("X", np.array([b"ab\0", b"c"], dtype="S5"))
    assert tensor._core.array().tolist() == [b"ab", b"c"]


def test_text_that_has_no_utf8_is_refused():
    with pytest.raises(UnicodeEncodeError):
        Tensor("X", np.array(["\ud800"], dtype=object))


# ----------------------------------------------------------------------------------------- received


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda d: d.value)
def test_a_received_tensor_is_one_writable_array(datatype):
    tensor = received(datatype, np.ones((2, 2), datatype.numpy))
    array = tensor.as_numpy()
    assert tensor.as_numpy() is array
    assert array.flags.writeable
    assert array.dtype == datatype.numpy
    array[0, 0] = 0
    assert tensor.as_numpy().tolist() == [[0, 1], [1, 1]]


def test_a_read_only_array_of_another_model_is_copied():
    answered = np.arange(3.0)
    answered.flags.writeable = False
    array = Tensor._received(Tensor("X", answered)._core).as_numpy()
    assert array.flags.writeable
    assert not np.shares_memory(array, answered)


def test_bf16_has_no_numpy_array():
    tensor = Tensor._received(core.Tensor("IN", DataType.BF16, (2,), raw=memoryview(bytearray(4))))
    assert tensor.shape() == [2]
    for _ in range(2):
        with pytest.raises(TritonModelException) as caught:
            tensor.as_numpy()
        assert str(caught.value) == (
            "Tensor dtype is BF16 and cannot be converted to NumPy. "
            "Use to_dlpack() and from_dlpack() instead."
        )


# --------------------------------------------------------------------------------------- as objects


@pytest.mark.parametrize("code", range(1, 14))
def test_the_type_code_agrees_with_the_helpers(code):
    tensor = Tensor("X", np.zeros(1, pb_utils.triton_to_numpy_type(code)))
    assert tensor.triton_dtype() == code


def test_each_call_of_shape_gives_a_new_list():
    tensor = Tensor("X", np.zeros((1, 2)))
    tensor.shape().clear()
    assert tensor.shape() == [1, 2]


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize(
    "value",
    [
        Tensor("X", np.zeros(1)),
        pb_utils.InferenceResponse([]),
        pb_utils.TritonError("x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_native_objects_are_neither_copied_nor_pickled(value, act):
    kind = type(value).__name__
    with pytest.raises(TypeError, match=f"^cannot pickle 'c_python_backend_utils.{kind}' object$"):
        act(value)


def test_native_objects_take_no_attributes_but_subclasses_do():
    with pytest.raises(AttributeError):
        Tensor("X", np.zeros(1)).mine = 1

    class Mine(Tensor):
        pass

    mine = Mine("X", np.zeros(1))
    mine.attribute = 1
    assert mine == mine
    assert len({mine, Tensor("X", np.zeros(1))}) == 2


# --------------------------------------------------------------------------------------- properties

ELEMENTS = st.one_of(
    st.binary(), st.text(st.characters(exclude_categories=["Cs"])), st.integers(), st.none()
)


@settings(max_examples=20)
@given(arrays.arrays(st.sampled_from([np.dtype(d.numpy) for d in NUMBERS]), arrays.array_shapes()))
def test_numbers_keep_their_bits(array):
    sent = Tensor("X", array)._core
    back = Tensor._received(
        core.Tensor("X", sent.datatype, sent.shape, raw=memoryview(bytearray(sent.raw())))
    ).as_numpy()
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


@settings(max_examples=20)
@given(st.lists(ELEMENTS), st.booleans())
def test_strings_become_bytes(elements, reverse):
    array = np.empty(len(elements), object)
    array[:] = elements
    array = array[::-1] if reverse else array
    sent = Tensor("X", array)._core
    back = Tensor._received(core.Tensor("X", sent.datatype, sent.shape, raw=sent.raw())).as_numpy()
    expected = [e if isinstance(e, bytes) else str(e).encode() for e in array.tolist()]
    assert back.tolist() == expected
