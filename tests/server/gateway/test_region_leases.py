"""Registered regions: names, types, users and bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
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


# ----------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("first", [system("r"), cuda("r")])
@pytest.mark.parametrize("second", [system("r"), cuda("r")])
def test_both_types_share_one_name_space(first, second):
    manager, _ = managing(first)
    code, said = refused(manager.register, second, Bytes)
    assert (code, said) == (Code.ALREADY_EXISTS, "shared memory region 'r' already in manager")


def test_a_name_in_use_is_refused_before_anything_is_opened():
    manager, _ = managing(system("r"))
    refused(manager.register, system("r"), lambda: pytest.fail("opened"))


def test_a_region_that_cannot_be_opened_is_not_registered():
    manager = SharedMemory()

    def fails():
        raise invalid_arg("no")

    assert refused(manager.register, system("r"), fails) == (Code.INVALID_ARG, "no")
    assert manager.regions(SystemRegion) == []


def test_regions_are_listed_by_type_and_name():
    manager, _ = managing(system("b"), cuda("c"), system("a"), cuda("A"))
    assert manager.regions(SystemRegion) == [system("a"), system("b")]
    assert manager.regions(CudaRegion) == [cuda("A"), cuda("c")]
    assert manager.regions(SystemRegion, "b") == [system("b")]


NOT_FOUND = {
    "system": (SystemRegion, "x", "Unable to find system shared memory region: 'x'"),
    "cuda": (CudaRegion, "x", "Unable to find cuda shared memory region: 'x'"),
    "system asked for as cuda": (
        CudaRegion,
        "s",
        "The region named 's' is registered as system shared memory, not CUDA shared memory",
    ),
    "cuda asked for as system": (
        SystemRegion,
        "c",
        "The region named 'c' is registered as CUDA shared memory, not system shared memory",
    ),
}


@pytest.mark.parametrize(("kind", "name", "said"), NOT_FOUND.values(), ids=NOT_FOUND)
def test_a_name_of_another_type_is_not_found(kind, name, said):
    manager, _ = managing(system("s"), cuda("c"))
    assert refused(manager.regions, kind, name) == (Code.NOT_FOUND, said)


# ------------------------------------------------------------------------------------ unregister


def test_unregister_closes_the_memory():
    manager, memories = managing(system("a"), system("b"))
    manager.unregister(SystemRegion, "a")
    assert memories["a"].closed
    assert not memories["b"].closed
    assert manager.regions(SystemRegion) == [system("b")]


def test_unregister_all_keeps_the_other_type():
    manager, memories = managing(system("a"), cuda("b"), system("c"))
    manager.unregister(SystemRegion)
    assert [name for name, memory in memories.items() if memory.closed] == ["a", "c"]
    assert manager.regions(CudaRegion) == [cuda("b")]


@pytest.mark.parametrize("name", ["x", "c"])
def test_unregister_ignores_names_of_another_type(name):
    manager, memories = managing(system("s"), cuda("c"))
    manager.unregister(SystemRegion, name)
    assert not any(memory.closed for memory in memories.values())


def test_a_region_in_use_stays_until_its_request_is_answered():
    manager, memories = managing(system("r"), system("s"))
    lease = manager.lease()
    lease.read("r", 0, 1)
    assert refused(manager.unregister, SystemRegion, "r") == (
        Code.INTERNAL,
        "Cannot unregister shared memory region 'r', it is currently in use.",
    )
    assert not memories["r"].closed
    manager.unregister(SystemRegion, "s")
    lease.release()
    manager.unregister(SystemRegion, "r")
    assert memories["r"].closed


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


def test_close_closes_all_regions():
    manager, memories = managing(system("s"), cuda("c"))
    manager.close()
    assert all(memory.closed for memory in memories.values())


# ---------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("use", ["read", "output_buffer"])
def test_an_unknown_region_is_not_found(use):
    lease = SharedMemory().lease()
    said = "Unable to find shared memory region: 'x'"
    assert refused(getattr(lease, use), "x", 0, 1) == (Code.NOT_FOUND, said)


OFFSET = "Invalid offset for shared memory region: 'r'"
END = "Invalid offset + byte size for shared memory region: 'r'"


@pytest.mark.parametrize("use", ["read", "output_buffer"])
@pytest.mark.parametrize(
    ("offset", "byte_size", "said"),
    [
        *((64, 0, OFFSET), (64, 1, OFFSET), (2**64 - 1, 1, OFFSET), (-1, 1, OFFSET)),
        *((0, 65, END), (63, 2, END), (0, 0, END), (1, 2**64 - 1, END), (16, 2**64 - 8, END)),
        (8, -1, END),
    ],
)
def test_parts_outside_of_a_region_are_refused(use, offset, byte_size, said):
    manager, _ = managing(system("r"))
    assert refused(getattr(manager.lease(), use), "r", offset, byte_size) == (
        Code.INVALID_ARG,
        said,
    )


@given(st.integers(0, 63), st.integers(0, 64))
def test_parts_inside_of_a_region_are_read_and_written(offset, byte_size):
    manager, memories = managing(system("r"))
    lease = manager.lease()
    if offset + byte_size > 64 or not offset + byte_size:
        assert refused(lease.read, "r", offset, byte_size) == (Code.INVALID_ARG, END)
        return
    expected = bytes(range(offset, offset + byte_size))
    assert bytes(lease.read("r", offset, byte_size)) == expected
    place = lease.output_buffer("r", offset, byte_size)
    assert place.byte_size == byte_size
    place.write(memoryview(b"\xff" * byte_size))
    before, after = bytes(range(offset)), bytes(range(offset + byte_size, 64))
    assert memories["r"].content == before + b"\xff" * byte_size + after


# ------------------------------------------------------------ inputs and outputs at one place

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
