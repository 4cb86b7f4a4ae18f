"""NVIDIA's driver: a fake of its library, and the real one if it is installed."""

import logging
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import numpy as np
import pytest
from runtime.support.fakes import FAKES
from runtime.support.gpus import gpus_of

from ge_runtime.cuda import CAPTURING, Context, CudaDriver, CudaFault, Gpus, PinnedMemory
from ge_runtime.devices import PAGE, Watch
from ge_runtime.errors import EngineFault, EngineLost, NoDevice, OutOfMemory

TIMEOUT_S = 30

pytest.importorskip("torch", reason="the fake of a GPU is made of torch")


@pytest.fixture
def machine():
    return SimpleNamespace(lost=None, capture=None, pins=True, pinned={})


@pytest.fixture
def library(monkeypatch, machine):
    """A function: the fake's library."""
    monkeypatch.syspath_prepend(FAKES)
    from fake_cuda.libcuda import Library

    return lambda **more: Library(machine, **more)


@pytest.fixture
def gpu(library):
    return gpus_of(library()).gpu(0)


def memory_of(gpu, allocations=lambda: 0):
    return PinnedMemory(gpu, Watch(gpu.name, allocations))


# -- which there are ----------------------------------------------------------------------------


def test_gpus_are_opened_once_and_known_by_name(library):
    gpus = gpus_of(library())
    assert gpus.gpu(1) is gpus.gpu(1)
    assert gpus.gpu(1) is not gpus.gpu(0)
    assert (gpus.gpu(1).name, gpus.gpu(1).hardware) == ("cuda:1", "fake of a GPU")


def test_gpu_that_is_not_there_is_reported_with_the_count(library):
    with pytest.raises(
        NoDevice, match=r"cuda:2: found 2 GPU\(s\), expected more than 2: `nvidia-s"
    ):
        gpus_of(library()).gpu(2)


def test_a_machine_without_a_driver_is_reported_with_the_fix(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr("ge_runtime.cuda.ctypes.CDLL", missing)
    with pytest.raises(
        NoDevice, match=r"found no driver \(libcuda\.so\.1: cannot open shared .*al"
    ):
        Gpus().gpu(0)


def test_the_error_of_a_driver_that_cannot_be_initialized_is_reported(monkeypatch, library):
    monkeypatch.setattr("ge_runtime.cuda.ctypes.CDLL", lambda name: library(begins_with=100))
    with pytest.raises(NoDevice) as raised:
        CudaDriver.load()
    assert str(raised.value).startswith(
        "cuda: found a driver that cannot be initialized (cuInit: CUDA_ERROR_NO_DEVICE (100): no "
        "CUDA-capable device is detected), expected a working one: `nvidia-smi` shows its state"
    )


def test_calls_leave_the_threads_own_context_alone(library):
    theirs = library()
    context = Context(CudaDriver(theirs), 0)
    theirs._stack().append(7)
    context.pin(PAGE, PAGE)
    context.wait()
    with pytest.raises(CudaFault, match=r"cuMemHostUnregister: CUDA_ERROR_HOST_MEMORY_NOT_REG"):
        context.unpin(2 * PAGE)
    assert theirs._stack() == [7]


def test_stream_is_one_users_until_it_is_given_back(gpu):
    first, second = gpu.acquire_stream(), gpu.acquire_stream()
    assert first
    assert second not in (0, first)
    gpu.release_stream(first)
    assert gpu.acquire_stream() == first


# -- losing one ---------------------------------------------------------------------------------


def test_fault_is_what_the_text_says_while_the_gpu_is_well(gpu):
    assert type(gpu.fault("no room", no_memory=True)) is OutOfMemory
    assert type(gpu.fault("bad shape", no_memory=False)) is EngineFault
    gpu.health.ensure_available()


def test_gpu_that_broke_is_lost_for_good_with_what_broke_it_first(gpu, machine):
    machine.lost = "anything"
    first = gpu.fault("bad index", no_memory=False)
    assert type(first) is EngineLost
    assert str(first) == (
        "bad index; the GPU is lost to this process: cuCtxSynchronize: CUDA_ERROR_ASSERT (710): "
        "device-side assert triggered; the process has to be restarted, which a device service "
        "does by itself"
    )
    machine.lost = None
    assert str(gpu.fault("no room", no_memory=True)) == str(first)


def test_a_lost_gpu_cannot_be_opened(library, machine):
    gpus = gpus_of(library())
    machine.lost = "anything"
    gpus.gpu(0).fault("bad index", no_memory=False)
    with pytest.raises(EngineLost, match="bad index"):
        gpus.gpu(0)
    gpus.gpu(1)


def test_capture_of_another_thread_is_no_loss(gpu, machine):
    machine.capture = object()
    assert type(gpu.fault("bad shape", no_memory=False)) is EngineFault


def test_waiting_for_the_gpu_does_not_break_a_capture(gpu, library):
    with ThreadPoolExecutor(1) as beside:
        with CAPTURING:
            found = beside.submit(gpu.fault, "bad shape", no_memory=False)
            assert not wait([found], 0.05).done
        assert type(found.result(TIMEOUT_S)) is EngineFault


# -- memory -------------------------------------------------------------------------------------


def test_buffers_are_pinned_in_whole_pages_until_they_are_freed(gpu, machine):
    memory = memory_of(gpu)
    buffers = [memory.allocate("inputs", nbytes) for nbytes in (1, PAGE, PAGE + 1, 0)]
    assert sorted(machine.pinned.values()) == [PAGE, PAGE, 2 * PAGE]
    assert [len(buffer.memory) for buffer in buffers] == [1, PAGE, PAGE + 1, 0]
    kept = buffers[0].memory
    memory.free_all()
    assert not machine.pinned
    kept[...] = 1  # a view outlives it, in ordinary memory


def test_existing_memory_is_pinned_and_unpinned(gpu, machine, caplog):
    memory = memory_of(gpu)
    own = np.zeros(3 * PAGE, np.uint8)[PAGE : 2 * PAGE]
    memory.register(own)
    assert machine.pinned == {own.ctypes.data: PAGE}
    memory.unregister(own)
    memory.unregister(own)
    assert not machine.pinned
    memory.register(own)
    memory.unregister_all()
    assert not machine.pinned
    assert not caplog.messages


def test_memory_that_cannot_be_pinned_serves_as_it_is(gpu, machine, caplog):
    machine.pins = False
    memory = memory_of(gpu)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            memory.allocate("inputs", 100).memory[...] = 1
    (reported,) = caplog.messages
    assert reported.startswith(
        "cuda:0: memory is not pinned, copies are slower: cuMemHostRegister_v2: "
    )
    memory.free_all()


def test_memory_of_a_lost_gpu_is_left_alone(gpu, machine):
    memory = memory_of(gpu)
    memory.allocate("inputs", 100)
    machine.lost = "anything"
    memory.free_all()  # before the failure is detected
    gpu.fault("bad index", no_memory=False)
    memory.unregister_all()
    assert list(machine.pinned.values()) == [PAGE]


def test_allocations_on_the_device_count_as_defects_from_the_freeze_on(gpu, caplog):
    asked = [5]
    memory = memory_of(gpu, lambda: asked[0])
    asked[0] = 7
    assert memory.allocations_after_freeze == 0
    memory.freeze()
    memory.freeze()
    asked[0] = 9
    assert memory.allocations_after_freeze == memory.allocations_after_freeze == 2
    (reported,) = caplog.messages
    assert reported.startswith("cuda:0: torch's allocator allocated memory 2 time(s) while serving")


@pytest.mark.gpu
def test_real_driver_pins_waits_and_names_its_gpu():
    try:
        gpu = Gpus().gpu(0)
    except NoDevice as fault:
        pytest.skip(f"needs an NVIDIA GPU: {fault}")
    assert gpu.hardware
    memory = memory_of(gpu)
    memory.allocate("inputs", PAGE + 1).memory[...] = 1
    gpu.context.wait()
    memory.free_all()
    assert not memory._pinned
