"""The shared memory operations."""

import pytest
from server.support.regions import object_file, shared_object

from reference_server.core.errors import Code, ServerError
from reference_server.core.metadata import CudaRegion, SystemRegion
from reference_server.gateway.shared_memory import SharedMemory


@pytest.fixture
def key():
    with shared_object(bytes(4096)) as made:
        yield made


@pytest.fixture
def shared_memory():
    memory = SharedMemory()
    yield memory
    memory.close()


def test_a_system_region_is_registered_and_unregistered(key, shared_memory):
    shared_memory.register_system("r", key, 64)
    assert shared_memory.regions(SystemRegion) == [SystemRegion("r", key, 0, 64)]
    lease = shared_memory.lease()
    lease.output_buffer("r", 0, 4).write(memoryview(b"abcd"))
    lease.release()
    assert object_file(key).read_bytes()[:4] == b"abcd"
    shared_memory.unregister(SystemRegion, "r")
    assert shared_memory.regions(SystemRegion) == []


def test_system_and_cuda_regions_are_separate(key, shared_memory):
    shared_memory.register_system("r", key, 64)
    shared_memory.unregister(CudaRegion, "r")
    shared_memory.unregister(CudaRegion)
    assert shared_memory.regions(CudaRegion) == []
    with pytest.raises(ServerError, match="not CUDA shared memory"):
        shared_memory.regions(CudaRegion, "r")


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_objects_of_a_server_are_refused(slashes, shared_memory):
    key = slashes + "triton_python_backend_shm_region_7"
    with pytest.raises(ServerError) as caught:
        shared_memory.register_system("r", key, 64)
    assert (caught.value.code, caught.value.message) == (
        Code.INVALID_ARG,
        f"cannot register shared memory region 'r' with key '{key}' as the key contains the "
        "reserved prefix 'triton_python_backend_shm_region_'",
    )
