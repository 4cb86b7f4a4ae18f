import fcntl
import gc
import os
from pathlib import Path

import numpy as np
import pytest
from runtime.devices.conformance_device import CAPACITY, DeviceConformance

from ge_runtime.errors import OutOfMemory
from ge_runtime.service.arenas import Arenas, SharedMemory
from ge_runtime.service.executions import NOWHERE
from ge_runtime.service.protocol import Broken
from ge_runtime.service.sealed import map_sealed, sealed_file


class Nobody:
    """Whom nothing is announced to."""

    def arena(self, shared):
        pass

    def forget(self, number):
        pass


class Service(Nobody):
    """The other side: maps what is announced."""

    def __init__(self):
        self.registered = []
        self.arenas = Arenas(self.registered.append, lambda memory: self.registered.pop())

    def arena(self, shared):
        self.arenas.add(shared.number, shared.descriptor, shared.nbytes)

    def forget(self, number):
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
    spot = device.spot(tensor)
    seen = service.arenas.view(spot, np.dtype(np.float32))
    np.testing.assert_array_equal(seen, tensor)
    seen[0, 0] = 1
    assert tensor[0, 0] == 1
    device.free_all()


def test_spots_are_of_whole_tensors_at_their_alignment():
    device = SharedMemory("cpu", Nobody())
    first, second = device.allocate("a", 100).memory, device.allocate("b", 100).memory
    assert device.spot(first) == (1, 0, (100,))
    assert device.spot(second[64:]) == (2, 64, (36,))
    assert device.spot(first[:0]) == (NOWHERE, 0, (0,))
    for elsewhere in (first[1:], first[::2], np.zeros(8), second[65:]):
        assert device.spot(elsewhere) is None
    device.free_all()
    assert device.spot(first) is None


def test_freed_memory_is_forgotten_by_the_service_and_stays_its_views():
    service = Service()
    device = SharedMemory("cpu", service)
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
        def arena(self, shared):
            raise MemoryError("the card can pin no more")

    device = SharedMemory("npu:0", Full())
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
    arenas = Arenas(lambda memory: None, lambda memory: None)
    descriptor = sealed_file("test", 4096)
    arenas.add(1, descriptor, 4096)
    os.close(descriptor)
    return arenas


@pytest.mark.parametrize(
    "spot",
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
def test_tensors_outside_an_arena_are_refused(arenas, spot):
    with pytest.raises(Broken):
        arenas.view(spot, np.dtype(np.float32))


def test_tensor_may_fill_an_arena_and_may_be_empty(arenas):
    assert arenas.view((1, 0, (1024,)), np.dtype(np.float32)).nbytes == 4096
    assert arenas.view((NOWHERE, 0, (3, 0)), np.dtype(np.float32)).shape == (3, 0)
    assert arenas.view((1, 64, ()), np.dtype(np.int64)).shape == ()


def test_arena_is_announced_once_and_forgotten_once(arenas):
    descriptor = sealed_file("test", 4096)
    for number in (1, -1, NOWHERE):
        with pytest.raises(Broken):
            arenas.add(number, descriptor, 4096)
    os.close(descriptor)
    arenas.remove(1)
    with pytest.raises(Broken):
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
        with pytest.raises(Broken):
            map_sealed(descriptor, nbytes)
    for descriptor in (shrinks, read_only, file, reading, writing):
        os.close(descriptor)
