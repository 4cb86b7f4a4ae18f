"""Tensors: wire bytes and arrays, and which of them can be written."""

import numpy as np
import pytest

from reference_server.core import byte_strings
from reference_server.core.errors import ServerError
from reference_server.core.tensor import DataType, Tensor, check_rank

NUMBERS = [member for member in DataType if member is not DataType.BYTES]


def memory(size, *, misaligned_by=0):
    """Return `size` writable bytes, `misaligned_by` bytes after a multiple of 64."""
    block = np.zeros(size + 128, np.uint8)
    start = -block.__array_interface__["data"][0] % 64 + misaligned_by
    return block.data[start : start + size]


def fp32(*values, shape=None):
    array = np.array(values, np.float32)
    return Tensor("T", DataType.FP32, shape or array.shape, array=array)


def of_bytes(raw, datatype=DataType.FP32, shape=(2,)):
    return Tensor("T", datatype, shape, raw=memoryview(raw))


def test_writable_aligned_bytes_are_viewed():
    raw = memory(8)
    array = of_bytes(raw).array()
    array[1] = 1
    assert bytes(raw[4:]) == np.float32(1).tobytes()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(np.array([1, 2], np.float32).tobytes(), id="read-only"),
        pytest.param(memory(8, misaligned_by=2), id="misaligned"),
    ],
)
def test_bytes_that_cannot_be_used_in_place_are_copied(raw):
    array = of_bytes(raw).array()
    assert not np.shares_memory(array, np.frombuffer(raw, np.uint8))
    assert array.flags.writeable
    assert array.flags.aligned
    assert array.tobytes() == bytes(raw)


@pytest.mark.parametrize("datatype", NUMBERS)
def test_every_number_type_keeps_its_bytes(datatype):
    raw = bytes(range(6 * datatype.byte_size))
    tensor = of_bytes(raw, datatype, (2, 3))
    assert tensor.array().dtype == datatype.numpy
    assert tensor.array().shape == (2, 3)
    again = Tensor("T", datatype, (2, 3), array=tensor.array())
    assert bytes(again.raw()) == raw


def test_a_contiguous_array_is_viewed():
    array = np.zeros(2, np.float32)
    raw = Tensor("T", DataType.FP32, (2,), array=array).raw()
    assert np.shares_memory(np.frombuffer(raw, np.uint8), array)


def test_strings_get_their_lengths():
    array = np.array([b"a", "é", 7], dtype=object)
    tensor = Tensor("T", DataType.BYTES, (3,), array=array)
    assert bytes(tensor.raw()) == b"\1\0\0\0a\2\0\0\0\xc3\xa9\1\0\0\x007"


@pytest.mark.parametrize(
    "tensor",
    [
        of_bytes(b"\1\0\0\0a\0\0\0\0", DataType.BYTES, (5,)),
        Tensor("T", DataType.BYTES, (5,), array=np.array([b"a", b""], object)),
    ],
)
def test_strings_are_counted_regardless_of_the_shape(tensor):
    assert tensor.string_count() == 2


def test_very_many_strings_are_counted_once_and_others_let_in(monkeypatch):
    pauses = []
    monkeypatch.setattr(byte_strings.gil, "yield_gil", lambda: pauses.append(None))
    few, many = (of_bytes(bytes(4 * count), DataType.BYTES, (1,)) for count in (4, 100_000))
    assert not few.has_uncounted_strings
    assert many.has_uncounted_strings
    many.count_strings()
    assert len(pauses) > 100
    pauses.clear()
    for each in (many, many.renamed("U"), many.protected()):
        assert not each.has_uncounted_strings
        assert each.string_count() == 100_000
    assert not pauses


def test_many_truncated_strings_raise_the_error_each_time():
    many = of_bytes(bytes(99_999), DataType.BYTES, (1,))
    many.count_strings()
    for _ in range(2):
        with pytest.raises(byte_strings.Malformed, match="found 3 bytes after 24999 elements"):
            many.string_count()


def test_a_shape_has_at_most_a_thousand_dimensions():
    check_rank("X", 1024)
    with pytest.raises(
        ServerError, match="input 'X': found 1025 dimensions, expected at most 1024"
    ):
        check_rank("X", 1025)


def test_renamed_shares_the_elements():
    tensor = fp32(1, 2)
    other = tensor.renamed("U")
    assert (other.name, other.shape, other.datatype) == ("U", (2,), DataType.FP32)
    assert np.shares_memory(other.array(), tensor.array())
    assert tensor.name == "T"


def test_protected_elements_cannot_be_written():
    tensor = fp32(1, 2)
    assert not tensor.protected().array().flags.writeable
    assert tensor.array().flags.writeable


def test_the_array_of_protected_bytes_is_a_copy():
    raw = memory(8)
    of_bytes(raw).protected().array()[:] = 1
    assert bytes(raw) == bytes(8)


def test_frozen_elements_are_equal_and_immutable():
    array = np.array([[1, 2], [3, 4]], np.float32)
    for given in (array, array.T):
        frozen = Tensor("T", DataType.FP32, (2, 2), array=given).frozen()
        assert frozen.raw().readonly
        expected = given.tolist()
        given[:] = 0
        assert frozen.array().tolist() == expected
        given[:] = expected


def test_frozen_bytes_are_a_copy():
    raw = memory(8)
    frozen = of_bytes(raw).frozen()
    raw[:] = b"\1" * 8
    assert bytes(frozen.raw()) == bytes(8)


def test_a_slice_is_frozen_without_the_other_bytes():
    frozen = of_bytes(memoryview(bytes(16))[:8]).frozen()
    assert len(frozen.raw().obj) == 8


def test_repr_shows_the_form():
    assert repr(fp32(1, 2)) == "Tensor('T', FP32, [2], held as array)"
    assert repr(of_bytes(b"", None)) == "Tensor('T', <invalid>, [2], held as bytes)"
