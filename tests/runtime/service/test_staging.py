import numpy as np
import pytest

from ge_runtime.errors import OutOfMemory
from ge_runtime.service.arenas import SharedMemory
from ge_runtime.service.staging import Staging


class Nobody:
    """No service: see `arenas.Announce`."""

    def arena(self, shared):
        pass

    def forget(self, number):
        pass


@pytest.fixture
def memory():
    memory = SharedMemory("cpu", Nobody())
    yield memory
    memory.free_all()


def test_what_is_visible_stays_and_the_rest_gets_places_of_its_own(memory):
    staging = Staging(memory)
    here = memory.allocate("answers", 400).memory.view(np.float32)
    hidden = np.zeros((5, 7), np.int64)
    first, second, third = staging.visible([hidden, here, hidden])
    assert second is here
    for like in (first, third):
        assert (like.shape, like.dtype) == (hidden.shape, hidden.dtype)
        assert memory.spot(like) is not None
    assert not np.shares_memory(first, third)  # one may be read and the other written


def test_buffer_that_could_not_grow_is_had_anew_for_what_fits(memory):
    staging = Staging(memory)
    staging.reserve(100, 1)
    with pytest.raises(OutOfMemory):
        staging.reserve(1 << 62, 1)
    (seen,) = staging.visible([np.ones(3, np.float32)])
    assert memory.spot(seen) is not None


def test_what_was_reserved_is_enough_for_as_many_tensors(memory):
    staging = Staging(memory)
    arrays = [np.zeros(size, np.uint8) for size in (1, 63, 64, 65, 1000)]
    staging.reserve(sum(array.nbytes for array in arrays), len(arrays))
    before = memory.allocations
    staging.visible(arrays)
    assert memory.allocations == before
