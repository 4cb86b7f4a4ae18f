"""GPUs for tests: a fake one, and a real one if there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runtime.support.fakes import FAKES

from ge_runtime import components
from ge_runtime.cuda import PROCESS_GPUS, CudaDriver, Gpus
from ge_runtime.engines import artifact, cuda_backend, torch_cuda
from ge_runtime.errors import NoDevice


def fake_gpu(monkeypatch):
    """`devices: cuda:<n>` and engine torch are the fake's; returns its machine."""
    pytest.importorskip("torch", reason="the torch engine needs torch")
    monkeypatch.syspath_prepend(FAKES)
    import fake_cuda

    fake_cuda.MACHINE.reset()
    monkeypatch.setattr(torch_cuda, "DEVICE_TYPE", "npu")
    monkeypatch.setattr(cuda_backend, "PROCESS_GPUS", gpus_of(fake_cuda.LIBRARY))
    any_torch_will_do(monkeypatch)
    return fake_cuda.MACHINE


def any_torch_will_do(monkeypatch):
    """Let engine torch on a GPU count as installed, even if torch was built for the CPU."""
    entries = [
        replace(entry, requires=replace(entry.requires, file="version.py"))
        if (entry.name, entry.device_kind) == ("torch", "cuda")
        else entry
        for entry in components._BUILT_IN
    ]
    monkeypatch.setattr(components, "_BUILT_IN", tuple(entries))


def gpus_of(library):
    """Return the GPUs of a process with this library as its driver."""
    return Gpus(lambda: CudaDriver(library))


def real_gpu(engine):
    """Skip the test without a GPU, or without the packages that the engine needs."""
    package = components.engines_on("cuda")[engine].requires
    if not artifact.is_installed(package):
        pytest.skip(f"needs an NVIDIA GPU and {package.name}, which is not installed")
    try:
        PROCESS_GPUS.gpu(0)
    except NoDevice as fault:
        pytest.skip(f"needs an NVIDIA GPU: {fault}")
