"""acl.util: addresses of Python objects."""

from threading import Event

import numpy as np
import pytest
from simulator.support.driving import D2H, H2D, MIB, content, ok

import ascend_simulator
from ascend_simulator import SimulatorWarning


@pytest.fixture
def util(machine):
    """acl.util, which works without init."""
    return machine().util


def test_bytes_are_converted_in_both_directions(util):
    given = bytes(range(100))
    assert util.ptr_to_bytes(util.bytes_to_ptr(given), 100) == given


def test_an_array_is_converted_in_both_directions(util):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pytest.warns(SimulatorWarning, match="deprecated"):
        ptr = util.numpy_to_ptr(array)
    assert ptr == array.ctypes.data
    with pytest.warns(SimulatorWarning, match="deprecated"):
        view = util.ptr_to_numpy(ptr, (3, 4), 11)
    view[1, 2] = 100
    assert array[1, 2] == 100
    assert (view.dtype, view.shape) == (np.float32, (3, 4))


def test_numpy_to_ptr_warns_for_noncontiguous_arrays(util):
    with pytest.warns(SimulatorWarning) as warned:
        util.numpy_to_ptr(np.zeros((4, 4))[:, 1])
    assert ["not-contiguous" in str(one.message) for one in warned] == [False, True]


def test_numpy_contiguous_to_ptr_copies_only_noncontiguous_arrays(util):
    whole = np.arange(16).reshape(4, 4)
    ptr, array = util.numpy_contiguous_to_ptr(whole)
    assert ptr == whole.ctypes.data
    assert array is whole
    ptr, array = util.numpy_contiguous_to_ptr(whole[:, 1])
    assert array.tolist() == [1, 5, 9, 13]
    assert ptr == array.ctypes.data


def test_an_array_is_written_through_its_address(acl):
    device, array = ok(acl.rt.malloc(64, 0)), np.zeros((2, 64), np.uint8)
    ptr, _ = acl.util.numpy_contiguous_to_ptr(array[0])
    ok(acl.rt.memset(device, 64, 5, 64))
    ok(acl.rt.memcpy(ptr, 64, device, 64, D2H))
    assert array.tolist() == [[5] * 64, [0] * 64]
    ok(acl.rt.memset(ptr, 128, 6, 128))  # within the array that it is a view of
    assert (array == 6).all()


@pytest.mark.parametrize("given", [[1], b"1", 1, None])
def test_numpy_converters_take_arrays_only(util, given):
    with pytest.raises(ValueError, match="ndarray"):
        util.numpy_to_ptr(given)
    with pytest.raises(ValueError, match="ndarray"):
        util.numpy_contiguous_to_ptr(given)


@pytest.mark.parametrize("given", [bytearray(4), "text", np.zeros(4), 1])
def test_bytes_to_ptr_takes_bytes_only(util, given):
    with pytest.raises(ValueError, match="bytes"):
        util.bytes_to_ptr(given)


def test_ptr_to_numpy_takes_a_tuple_and_a_known_type(util):
    ptr = util.bytes_to_ptr(given := bytes(64))
    with pytest.raises(TypeError, match="tuple"):
        util.ptr_to_numpy(ptr, [16], 11)
    with pytest.warns(SimulatorWarning), pytest.raises(ValueError, match="found 9"):
        util.ptr_to_numpy(ptr, (16,), 9)
    assert len(given) == 64


@pytest.mark.parametrize(
    ("npy_type", "dtype"),
    [(0, "?"), (2, "u1"), (5, "i4"), (7, "i8"), (11, "f4"), (12, "f8"), (23, "f2")],
)
def test_type_numbers_are_numpys(util, npy_type, dtype):
    array = np.ones(8, dtype)
    assert np.dtype(dtype).num == npy_type
    with pytest.warns(SimulatorWarning):
        view = util.ptr_to_numpy(array.ctypes.data, (8,), npy_type)
    assert view.dtype == np.dtype(dtype)
    assert view.tolist() == array.tolist()


def test_an_owner_with_another_reference_is_not_a_violation(acl):
    device = ok(acl.rt.malloc(64, 0))
    base = np.arange(100, dtype=np.uint8)
    ptr, view = acl.util.numpy_contiguous_to_ptr(base[10:74])
    del view
    ok(acl.rt.memcpy(device, 64, ptr, 64, H2D))
    assert content(device, 64) == bytes(range(10, 74))
    given = bytes(range(64))
    ptr = acl.util.bytes_to_ptr(given)
    ok(acl.rt.memcpy(device, 64, ptr, 64, H2D))
    assert given == content(device, 64)


def test_foreign_and_large_memory_is_not_watched(acl):
    device = ok(acl.rt.malloc(64, 0))
    foreign = bytearray(64)
    for array in (np.frombuffer(foreign, np.uint8), np.zeros(2 * MIB, np.uint8)):
        ptr = acl.util.numpy_contiguous_to_ptr(array)[0]
        ok(acl.rt.memcpy(device, 64, ptr, 64, H2D))


def test_helper_threads_run_and_are_waited_for(util):
    stop, seen = Event(), []

    def helper(arguments):
        assert stop.wait(30)
        seen.extend(arguments)

    thread = ok(util.start_thread(helper, [1, 2]))
    assert ascend_simulator.report().live == ["acl helper"]
    stop.set()
    assert util.stop_thread(thread) == 0
    assert seen == [1, 2]
    assert util.stop_thread(thread) == 100000
