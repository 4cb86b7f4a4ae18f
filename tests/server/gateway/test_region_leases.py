"""Registered regions: names, types, users and bounds."""

import pytest
from server.support.regions import shared_object

from reference_server.core.errors import Code, ServerError, invalid_arg
from reference_server.core.metadata import CudaRegion, SystemRegion
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.shared_memory.region import InputBuffers, SystemMemory


class Bytes:
    """The memory of a region, as a bytearray."""

    def __init__(self, content=b""):
        self.content = bytearray(content)
        self.closed = False

    def read(self, offset, byte_size):
        return memoryview(bytearray(self.content[offset : offset + byte_size]))

    def write(self, offset, data):
        self.content[offset : offset + len(data)] = data

    def close(self):
        assert not self.closed
        self.closed = True


def system(name, byte_size=64):
    return SystemRegion(name, f"/{name}", 0, byte_size)


def cuda(name):
    return CudaRegion(name, 0, 64)


def managing(*regions):
    """Return a SharedMemory with these regions, and their memories."""
    manager, memories = SharedMemory(), {}
    for region in regions:
        memories[region.name] = Bytes(bytes(range(region.byte_size)))
        manager.register(region, lambda name=region.name: memories[name])
    return manager, memories


def refused(call, *arguments):
    with pytest.raises(ServerError) as caught:
        call(*arguments)
    return caught.value.code, caught.value.message


def test_a_region_that_cannot_be_opened_is_not_registered():
    manager = SharedMemory()

    def fails():
        raise invalid_arg("no")

    assert refused(manager.register, system("r"), fails) == (Code.INVALID_ARG, "no")
    assert manager.regions(SystemRegion) == []


@pytest.mark.parametrize("kind", [SystemRegion, CudaRegion])
def test_unregister_all_names_those_in_use(kind):
    make, said = (system, "system") if kind is SystemRegion else (cuda, "cuda")
    manager, memories = managing(make("c"), make("a"), make("b"))
    lease = manager.lease()
    lease.output_buffer("c", 0, 1)
    lease.read("a", 0, 1)
    assert refused(manager.unregister, kind) == (
        Code.INTERNAL,
        f"Failed to unregister the following {said} shared memory regions: a ,c ,",
    )
    assert memories["b"].closed


def test_a_region_has_as_many_users_as_requests():
    manager, _ = managing(system("r"))
    leases = [manager.lease() for _ in range(3)]
    for lease in leases:
        lease.read("r", 0, 1)
        lease.output_buffer("r", 1, 1)
    for lease in leases:
        assert refused(manager.unregister, SystemRegion, "r")[0] is Code.INTERNAL
        lease.release()
        lease.release()
    manager.unregister(SystemRegion, "r")


def test_a_refused_part_uses_its_region_until_the_release():
    manager, _ = managing(system("r"))
    lease = manager.lease()
    refused(lease.read, "r", 64, 1)
    lease.release()
    manager.unregister(SystemRegion, "r")


HALF = 1 << 20


@pytest.mark.parametrize("second_key", ["", "/"], ids=["same key", "another key"])
def test_an_output_does_not_change_an_input_of_its_request(second_key):
    with shared_object(b"a" * HALF + b"b" * HALF) as key:
        manager = SharedMemory()
        for name, spelled in (("r", key), ("s", second_key + key)):
            region = SystemRegion(name, spelled, 0, 2 * HALF)
            manager.register(region, lambda region=region: SystemMemory(region, InputBuffers()))
        lease = manager.lease()
        first, second = lease.read("r", 0, HALF), lease.read("r", HALF, HALF)
        places = lease.output_buffer("s", HALF, HALF), lease.output_buffer("s", 0, HALF)
        for place, data in zip(places, (first, second), strict=True):
            place.write(data)
        lease.release()
        assert bytes(manager.lease().read("r", 0, 2 * HALF)) == b"b" * HALF + b"a" * HALF
        manager.close()
