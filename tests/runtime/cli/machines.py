"""Facts about machines, for tests of doctor."""

from dataclasses import replace

from ge_runtime.child_process import ChildResult, Outcome
from ge_runtime.cli.doctor import Model
from ge_runtime.cli.doctor.machine import Cann, DeviceFile, Machine, SharedMemory
from ge_runtime.memory.machine import MemoryLimit

ABSENT = ChildResult(Outcome.ABSENT)
CUDA = "CUDAExecutionProvider, CPUExecutionProvider"
SET_ENV = "/usr/local/Ascend/cann/set_env.sh"

ATC_PACKAGES = (
    *("decorator", "attrs", "psutil", "scipy", "sympy", "absl-py", "cloudpickle", "cffi"),
)

ACL_FACTS = {"file": "/cann/acl.so", "soc": "Ascend910B3", "code": "0", "devices": "2"}

PLAIN = Machine(
    python=(3, 11, 4),
    user="triton",
    groups=frozenset({"triton"}),
    environment={},
    packages={"numpy": "1.26.4", "onnxruntime": "1.20.0"},
    imports={
        "numpy": ChildResult(Outcome.DONE),
        "onnxruntime": ChildResult(Outcome.DONE, {"providers": "CPUExecutionProvider"}),
        "torch": ABSENT,
        "acl": ABSENT,
        "torch_npu": ABSENT,
        "ge": ABSENT,
        "reference_server": ABSENT,
    },
    npu_driver=None,
    npu_smi=ABSENT,
    device_files=(),
    cann=None,
    atc=None,
    acl_folders=(),
    memory=(MemoryLimit("RAM", 16 * 2**30, 8 * 2**30, "/proc/meminfo"),),
    shared_memory=SharedMemory(64 * 2**20, 60 * 2**20),
    service_folder="/tmp/ge_runtime-1000",
    service_fault="",
    nvidia_driver=None,
    nvidia_smi=ABSENT,
)
"""A machine that serves on the CPU only."""

ASCEND = replace(
    PLAIN,
    groups=frozenset({"triton", "HwHiAiUser"}),
    environment={"ASCEND_HOME_PATH": "/usr/local/Ascend/cann"},
    packages={**PLAIN.packages, **dict.fromkeys(ATC_PACKAGES, "1.0")},
    imports={
        **PLAIN.imports,
        "acl": ChildResult(Outcome.DONE, ACL_FACTS),
    },
    npu_driver="25.0.rc1",
    npu_smi=ChildResult(Outcome.DONE),
    device_files=tuple(
        DeviceFile(f"/dev/{name}", "HwHiAiUser", usable=True)
        for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc")
    ),
    cann=Cann("/usr/local/Ascend/cann", "8.3.RC1", SET_ENV, sourced=True),
    atc="/usr/local/Ascend/cann/bin/atc",
    acl_folders=("/usr/local/Ascend/cann/lib64",),
)
"""A machine with two Ascend cards and CANN 8.3."""

NVIDIA = replace(
    PLAIN,
    imports={**PLAIN.imports, "onnxruntime": ChildResult(Outcome.DONE, {"providers": CUDA})},
    nvidia_driver="550.54",
    nvidia_smi=ChildResult(Outcome.DONE, {"0": "NVIDIA H100, 81559 MiB"}),
)
"""A machine with one GPU and ONNX Runtime for it."""

TORCH_NPU = replace(
    ASCEND,
    packages={**ASCEND.packages, "torch": "2.8.0+cpu", "torch-npu": "2.8.0"},
    imports={
        **ASCEND.imports,
        "torch": ChildResult(Outcome.DONE, {"cuda": ""}),
        "torch_npu": ChildResult(Outcome.DONE),
    },
)
"""ASCEND with torch and torch_npu."""


GE_PY = replace(
    ASCEND,
    packages={**ASCEND.packages, "ge-py": "0.0.1"},
    imports={
        **ASCEND.imports,
        "ge": ChildResult(
            Outcome.DONE, {"file": "/cann/python/site-packages/ge/__init__.py", "lacking": ""}
        ),
    },
)
"""ASCEND with GE-PY."""


def importing(machine, module, result):
    """Return the machine with another result of importing the module."""
    return replace(machine, imports={**machine.imports, module: result})


def with_package(machine, package, version):
    return replace(machine, packages={**machine.packages, package: version})


def without_package(machine, package):
    rest = {name: version for name, version in machine.packages.items() if name != package}
    return replace(machine, packages=rest)


def with_variable(machine, name, value):
    return replace(machine, environment={**machine.environment, name: value})


def model(name="encoder", needs=("cpu",), instances=1, engines=1, io_bytes=0, host_bytes=0):
    facts = {"engine": "onnxruntime", "io_bytes": str(io_bytes), "host_bytes": str(host_bytes)}
    return Model(name, frozenset(needs), instances, engines, ChildResult(Outcome.DONE, facts))
