"""Files in memory that two processes map."""

import errno
import fcntl
import gc
import os
from pathlib import Path

import numpy as np
import pytest
from runtime.devices.conformance_device import CAPACITY, DeviceConformance

from ge_runtime.errors import OutOfMemory
from ge_runtime.npu.service import shared_memory
from ge_runtime.npu.service.protocol import NOWHERE, ProtocolError
from ge_runtime.npu.service.shared_memory import (
    MappedArenas,
    SharedMemory,
    StagingBuffer,
    map_sealed,
    sealed_file,
)

SIZE = 1 << 20


@pytest.fixture
def file():
    descriptor = sealed_file("test", SIZE)
    yield descriptor
    os.close(descriptor)


def overcommit(monkeypatch, tmp_path, mode):
    setting = tmp_path / "overcommit_memory"
    setting.write_text(f"{mode}\n")
    monkeypatch.setattr(shared_memory, "_OVERCOMMIT", setting)


@pytest.mark.parametrize(("mode", "there"), [("0", False), ("1", False), ("2", True)])
def test_pages_come_as_they_are_touched_unless_the_kernel_may_run_out(
    file, monkeypatch, tmp_path, mode, there
):
    overcommit(monkeypatch, tmp_path, mode)
    map_sealed(file, SIZE, written=True).close()
    assert os.fstat(file).st_blocks == 0
    map_sealed(file, SIZE).close()
    assert (os.fstat(file).st_blocks * 512 >= SIZE) == there


def test_unavailable_pages_are_reported_before_they_are_touched(file, monkeypatch, tmp_path):
    def refuse(descriptor, start, nbytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    overcommit(monkeypatch, tmp_path, "2")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(MemoryError, match="No space left on device"):
        map_sealed(file, SIZE)


def test_system_without_the_setting_gives_pages_as_they_are_touched(file, monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "_OVERCOMMIT", tmp_path / "nothing")
    map_sealed(file, SIZE).close()
    assert os.fstat(file).st_blocks == 0


class Nobody:
    """An announcer that ignores all files."""

    def announce(self, shared):
        pass

    def withdraw(self, number):
        pass


class Service(Nobody):
    """The other side: maps what is announced."""

    def __init__(self):
        self.registered = []
        self.arenas = MappedArenas(self.registered.append, lambda memory: self.registered.pop())

    def announce(self, shared):
        self.arenas.add(shared.number, shared.descriptor, shared.nbytes)

    def withdraw(self, number):
        self.arenas.remove(number)


def open_files(name):
    links = Path("/proc/self/fd").iterdir()
    return sum(name in str(link.readlink()) for link in links if link.is_symlink())


class TestSharedMemory(DeviceConformance):
    @pytest.fixture
    def device(self):
        device = SharedMemory("dev", Nobody())
        device.capacity_bytes = CAPACITY
        yield device
        device.free_all()


def test_both_sides_see_the_same_bytes():
    service = Service()
    device = SharedMemory("cpu", service)
    memory = device.allocate("inputs", 1000).memory
    tensor = memory[64:88].view(np.float32).reshape(2, 3)
    tensor[...] = 7
    buffer = device.locate(tensor)
    seen = service.arenas.view(buffer, np.dtype(np.float32))
    np.testing.assert_array_equal(seen, tensor)
    seen[0, 0] = 1
    assert tensor[0, 0] == 1
    device.free_all()


def test_spots_are_of_whole_tensors_at_their_alignment():
    device = SharedMemory("cpu", Nobody())
    first, second = device.allocate("a", 100).memory, device.allocate("b", 100).memory
    assert device.locate(first) == (1, 0, (100,))
    assert device.locate(second[64:]) == (2, 64, (36,))
    assert device.locate(first[:0]) == (NOWHERE, 0, (0,))
    for elsewhere in (first[1:], first[::2], np.zeros(8), second[65:]):
        assert device.locate(elsewhere) is None
    device.free_all()
    assert device.locate(first) is None


@pytest.mark.brute_force
def test_freed_memory_is_forgotten_by_the_service_and_stays_its_views():
    service = Service()
    device = SharedMemory("cpu", service)
    gc.collect()  # of other tests
    before = open_files("ge_runtime arena")
    buffer = device.allocate("answers", 5000)
    answer = buffer.memory[:8]
    answer[...] = 3
    assert service.arenas.nbytes == 8192
    assert len(service.registered) == 1
    buffer.free()
    assert (service.arenas.nbytes, service.registered) == (0, [])
    assert answer.tolist() == [3] * 8
    del answer, buffer
    gc.collect()
    assert open_files("ge_runtime arena") == before


def test_memory_that_the_service_cannot_reach_is_not_had():
    class Full(Nobody):
        def announce(self, shared):
            raise MemoryError("the card can pin no more")

    device = SharedMemory("npu:0", Full())
    gc.collect()  # of other tests
    before = open_files("ge_runtime arena")
    with pytest.raises(OutOfMemory, match="npu:0: 'inputs': found 1,000 bytes wanted"):
        device.allocate("inputs", 1000)
    assert (device.shared, device.used_bytes) == ((), 0)
    assert open_files("ge_runtime arena") == before


@pytest.mark.parametrize("nbytes", [2**62, 2**70])
def test_more_than_the_machine_gives_is_refused(nbytes):
    with pytest.raises(OutOfMemory):
        SharedMemory("cpu", Nobody()).allocate("arena", nbytes)


@pytest.fixture
def arenas():
    arenas = MappedArenas(lambda memory: None, lambda memory: None)
    descriptor = sealed_file("test", 4096)
    arenas.add(1, descriptor, 4096)
    os.close(descriptor)
    return arenas


@pytest.mark.parametrize(
    "buffer",
    [
        (2, 0, (4,)),
        (1, 4096, (1,)),
        (1, 64, (1009,)),
        (1, 0, (2**62, 2**62)),
        (NOWHERE, 0, (2**62, 0)),
        (1, 2**63, (1,)),
        (1, 2**64 - 64, (16,)),
        (1, 4, (1,)),
        (NOWHERE, 0, (1,)),
    ],
)
def test_tensors_outside_an_arena_are_refused(arenas, buffer):
    with pytest.raises(ProtocolError):
        arenas.view(buffer, np.dtype(np.float32))


def test_tensor_may_fill_an_arena_and_may_be_empty(arenas):
    assert arenas.view((1, 0, (1024,)), np.dtype(np.float32)).nbytes == 4096
    assert arenas.view((NOWHERE, 0, (3, 0)), np.dtype(np.float32)).shape == (3, 0)
    assert arenas.view((1, 64, ()), np.dtype(np.int64)).shape == ()


def test_arena_is_announced_once_and_forgotten_once(arenas):
    descriptor = sealed_file("test", 4096)
    for number in (1, -1, NOWHERE):
        with pytest.raises(ProtocolError):
            arenas.add(number, descriptor, 4096)
    os.close(descriptor)
    arenas.remove(1)
    with pytest.raises(ProtocolError):
        arenas.remove(1)


def test_memory_that_its_maker_could_take_away_is_refused(tmp_path):
    shrinks = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(shrinks, 4096)
    fcntl.fcntl(shrinks, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    read_only = sealed_file("test", 4096)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 4096)
    reading, writing = os.pipe()
    for descriptor, nbytes in [
        (shrinks, 4096),
        (file, 4096),
        (reading, 4096),
        (read_only, 4097),
        (read_only, 0),
        (read_only, -1),
        (read_only, 2**70),
    ]:
        with pytest.raises(ProtocolError):
            map_sealed(descriptor, nbytes)
    for descriptor in (shrinks, read_only, file, reading, writing):
        os.close(descriptor)


def test_huge_pages_which_may_run_out_are_refused():
    try:
        huge = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"no huge pages in this kernel: {error}")
    os.ftruncate(huge, 1 << 30)
    fcntl.fcntl(huge, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    with pytest.raises(ProtocolError, match="found a file with pages of"):
        map_sealed(huge, 4096)
    os.close(huge)


@pytest.fixture
def memory():
    memory = SharedMemory("cpu", Nobody())
    yield memory
    memory.free_all()


def test_what_is_visible_stays_and_the_rest_gets_places_of_its_own(memory):
    staging = StagingBuffer(memory)
    here = memory.allocate("answers", 400).memory.view(np.float32)
    hidden = np.zeros((5, 7), np.int64)
    first, second, third = staging.staged([hidden, here, hidden])
    assert second is here
    for like in (first, third):
        assert (like.shape, like.dtype) == (hidden.shape, hidden.dtype)
        assert memory.locate(like) is not None
    assert not np.shares_memory(first, third)  # one may be read and the other written


def test_buffer_that_could_not_grow_is_had_again_for_what_fits(memory):
    staging = StagingBuffer(memory)
    staging.reserve(100, 1)
    with pytest.raises(OutOfMemory):
        staging.reserve(1 << 62, 1)
    (seen,) = staging.staged([np.ones(3, np.float32)])
    assert memory.locate(seen) is not None


def test_what_was_reserved_is_enough_for_as_many_tensors(memory):
    staging = StagingBuffer(memory)
    arrays = [np.zeros(size, np.uint8) for size in (1, 63, 64, 65, 1000)]
    staging.reserve(sum(array.nbytes for array in arrays), len(arrays))
    before = memory.allocations
    staging.staged(arrays)
    assert memory.allocations == before
