"""GPUs for tests: the fake of one, and the real one where there is one."""

from __future__ import annotations

import pytest
from runtime.support.fakes import FAKES

from ge_runtime.cuda.driver import CudaDriver
from ge_runtime.cuda.gpu import PROCESS_GPUS, Gpus
from ge_runtime.engines import artifact, cuda_place, torch_cuda
from ge_runtime.errors import NoDevice


def fake_gpu(monkeypatch):
    """`devices: cuda:<n>` and engine torch are the fake's; returns its machine."""
    pytest.importorskip("torch", reason="the torch engine needs torch")
    monkeypatch.syspath_prepend(FAKES)
    import fake_cuda

    fake_cuda.MACHINE.reset()
    monkeypatch.setattr(torch_cuda, "DEVICE_TYPE", "npu")
    monkeypatch.setattr(cuda_place, "PROCESS_GPUS", gpus_of(fake_cuda.LIBRARY))
    monkeypatch.setitem(artifact._LIBRARIES, "torch for CUDA", ("torch", "version.py"))
    return fake_cuda.MACHINE


def gpus_of(library):
    """The GPUs of a process with this library for a driver."""
    return Gpus(lambda: CudaDriver(library))


def real_gpu(package):
    """Skips the test where there is no GPU, or not what `package` says an engine needs of it."""
    if not artifact.is_installed(package):
        pytest.skip(f"needs an NVIDIA GPU and {package}, which is not installed")
    try:
        PROCESS_GPUS.gpu(0)
    except NoDevice as fault:
        pytest.skip(f"needs an NVIDIA GPU: {fault}")
