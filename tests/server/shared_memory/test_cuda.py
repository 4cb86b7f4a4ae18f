"""GPU memory: the calls of the driver, and its errors."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

from reference_server.core.errors import Code, ServerError
from reference_server.core.metadata import CudaRegion
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.shared_memory.cuda import CudaMemory, CudaPython, DriverError

HANDLE = bytes(range(64))
REFUSED = Code.INVALID_ARG, "failed to register shared memory region: invalid args"


class HostDriver:
    """A driver whose devices are in host memory; `log` has its calls."""

    def __init__(self, size=64, fails=()):
        self.memory = np.arange(size, dtype=np.uint8)
        self.log = []
        self._fails = fails

    def open(self, raw_handle, device_id):
        self._called("open", raw_handle, device_id)
        return self.memory.ctypes.data

    def size(self, device_id, pointer):
        self._called("size", device_id)
        return self.memory.nbytes

    def read(self, device_id, pointer, host, byte_size):
        self._called("read", device_id, pointer - self.memory.ctypes.data, byte_size)
        ctypes.memmove(host, pointer, byte_size)

    def write(self, device_id, pointer, host, byte_size):
        self._called("write", device_id, pointer - self.memory.ctypes.data, byte_size)
        ctypes.memmove(pointer, host, byte_size)

    def close(self, device_id, pointer):
        self._called("close", device_id)

    def _called(self, name, *arguments):
        self.log.append((name, *arguments))
        if name in self._fails:
            raise DriverError(f"{name}: cudaErrorSomething")


def opened(driver, byte_size=64, device_id=3, handle=HANDLE):
    return CudaMemory(CudaRegion("r", device_id, byte_size), handle, lambda: driver)


def refusal(call, *arguments, **more):
    with pytest.raises(ServerError) as caught:
        call(*arguments, **more)
    return caught.value.code, caught.value.message


def test_a_handle_is_opened_on_its_device():
    driver = HostDriver()
    opened(driver)
    assert driver.log == [("open", HANDLE, 3), ("size", 3)]


@pytest.mark.parametrize(
    "changes",
    [
        *({"handle": HANDLE[:-1]}, {"handle": HANDLE + b"x"}, {"handle": b""}),
        *({"byte_size": 0}, {"device_id": -1}, {"device_id": 2**31}),
    ],
)
def test_an_invalid_region_does_not_reach_the_driver(changes):
    driver = HostDriver()
    assert refusal(opened, driver, **changes) == REFUSED
    assert driver.log == []


@pytest.mark.parametrize(("size", "fails"), [(63, ()), (64, ("size",))])
def test_a_too_small_allocation_is_closed(size, fails):
    driver = HostDriver(size, fails)
    assert refusal(opened, driver) == REFUSED
    assert driver.log[-1] == ("close", 3)


def test_without_a_driver_the_error_is_tritons():
    def none():
        raise DriverError("nothing here")

    assert refusal(CudaMemory, CudaRegion("r", 0, 64), HANDLE, none) == REFUSED


def test_reading_copies_from_the_device():
    driver = HostDriver()
    memory = opened(driver)
    view = memory.read(8, 4)
    view[0] = 99
    assert bytes(view[1:]) == bytes([9, 10, 11])
    assert driver.memory[8] == 8
    assert driver.log[-1] == ("read", 3, 8, 4)


def test_writing_copies_to_the_device():
    driver = HostDriver()
    opened(driver).write(60, memoryview(b"abcd"))
    assert driver.memory[-4:].tobytes() == b"abcd"
    assert driver.log[-1] == ("write", 3, 60, 4)


def test_empty_copies_need_no_driver():
    driver = HostDriver()
    memory = opened(driver)
    memory.write(8, memoryview(b""))
    assert bytes(memory.read(8, 0)) == b""
    assert [name for name, *_ in driver.log] == ["open", "size"]


@pytest.mark.parametrize("fails", ["read", "write"])
def test_the_error_of_a_copy_names_the_region(fails):
    memory = opened(HostDriver(fails=(fails,)))
    use = memory.read if fails == "read" else memory.write
    argument = 4 if fails == "read" else memoryview(b"abcd")
    assert refusal(use, 0, argument) == (
        Code.INTERNAL,
        f"shared memory region 'r' on device 3 cannot be used: {fails}: cudaErrorSomething",
    )


def test_closing_ignores_an_ended_client():
    driver = HostDriver(fails=("close",))
    opened(driver).close()
    assert driver.log[-1] == ("close", 3)


def test_an_output_is_written_to_the_device():
    driver = HostDriver()
    shared_memory = SharedMemory(lambda: driver)
    shared_memory.register_cuda("r", HANDLE, 0, 64)
    lease = shared_memory.lease()
    lease.output_buffer("r", 4, 2).write(lease.read("r", 0, 2))
    lease.release()
    assert driver.memory[4:6].tolist() == [0, 1]
    assert shared_memory.regions(CudaRegion) == [CudaRegion("r", 0, 64)]
    shared_memory.unregister(CudaRegion, "r")
    assert driver.log[-1] == ("close", 0)


# ------------------------------------------------------------------------------------ a real GPU

CLIENT = """
import ctypes, sys
from cuda.bindings import runtime
def ok(result):
    code, *values = result
    assert int(code) == 0, code
    return values
ok(runtime.cudaSetDevice(0))
(pointer,) = ok(runtime.cudaMalloc(4096))
host = (ctypes.c_char * 4096).from_buffer_copy(bytes(range(256)) * 16)
to_device = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
ok(runtime.cudaMemcpy(pointer, ctypes.addressof(host), 4096, to_device))
(handle,) = ok(runtime.cudaIpcGetMemHandle(pointer))
print(ctypes.string_at(handle.getPtr(), 64).hex(), flush=True)
sys.stdin.readline()
to_host = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
ok(runtime.cudaMemcpy(ctypes.addressof(host), pointer, 4096, to_host))
print(host.raw[:8].hex(), flush=True)
"""


@pytest.fixture
def client_on_a_gpu():
    """Another process with an allocation on the first GPU, and the allocation's handle."""
    pytest.importorskip("cuda.bindings.runtime", reason="cuda-python is not installed")
    try:
        CudaPython()._on(0)
    except DriverError as error:
        pytest.skip(f"no GPU: {error}")
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        assert process.stdout is not None
        yield process, bytes.fromhex(process.stdout.readline())
        process.kill()


def test_a_region_of_another_process_on_a_gpu(client_on_a_gpu):
    process, handle = client_on_a_gpu
    shared_memory = SharedMemory()
    shared_memory.register_cuda("r", handle, 0, 4096)
    assert refusal(shared_memory.cuda_register, "s", handle, 0, 1 << 40) == REFUSED
    assert refusal(shared_memory.cuda_register, "s", handle, 99, 64) == REFUSED
    lease = shared_memory.lease()
    assert bytes(lease.read("r", 3, 4)) == bytes([3, 4, 5, 6])
    lease.output_buffer("r", 0, 8).write(memoryview(b"from us!"))
    lease.release()
    shared_memory.unregister(CudaRegion, "r")
    output, _ = process.communicate("\n")
    assert bytes.fromhex(output) == b"from us!"
