"""Findings about constructed machines, and their fixes."""

import platform
import subprocess
from dataclasses import replace

import pytest
from runtime.cli.machines import (
    ABSENT,
    ACL_FACTS,
    ASCEND,
    CUDA,
    GE_PY,
    NVIDIA,
    PLAIN,
    SET_ENV,
    TORCH_NPU,
    importing,
    model,
    with_package,
    with_variable,
    without_package,
)

from ge_runtime.child_process import ChildResult, Outcome
from ge_runtime.cli.doctor import examine, required_by
from ge_runtime.cli.doctor.findings import NEEDS, State, faults_of
from ge_runtime.cli.doctor.machine import Cann, DeviceFile, SharedMemory
from ge_runtime.cli.doctor.package_checks import CANN_OF_TORCH_NPU as TABLE
from ge_runtime.memory.machine import MemoryLimit

ALL = frozenset(NEEDS)
MISSING, WRONG, UNKNOWN = State.MISSING, State.WRONG, State.UNKNOWN


def find(machine, group, what, models=()):
    """Return the finding of one check with everything required."""
    (found,) = (
        each for each in examine(machine, models, ALL) if (each.group, each.what) == (group, what)
    )
    return found


def failed(error):
    return ChildResult(Outcome.FAILED, error=error)


def cann(version="8.3.RC1", sourced=True):
    return replace(ASCEND, cann=Cann("/usr/local/Ascend/cann", version, SET_ENV, sourced))


def files(*given):
    return replace(ASCEND, device_files=tuple(DeviceFile(*each) for each in given))


def acl_code(code, devices="0"):
    facts = {**ACL_FACTS, "code": str(code), "devices": devices}
    return importing(ASCEND, "acl", ChildResult(Outcome.DONE, facts))


LACKS_HAL = "ImportError: libascend_hal.so: cannot open shared object file: No such file"
OTHER_PROCESSOR = (
    "ImportError: /cann/acl.so: cannot open shared object file: No such file or directory"
)
NOT_READABLE = "ImportError: /cann/acl.so: cannot open shared object file: Permission denied"
LACKS_GE = "ImportError: libge_runner.so: cannot open shared object file: No such file"
STUB = "/usr/local/Ascend/cann/runtime/lib64/stub"

CASES = {
    "an old Python": (replace(PLAIN, python=(3, 9, 1)), "Python", "Python", WRONG, "newer Python"),
    "no numpy": (importing(PLAIN, "numpy", ABSENT), "Python", "numpy", MISSING, "numpy>=1.26,<3"),
    "an old numpy": (with_package(PLAIN, "numpy", "1.24.4"), "Python", "numpy", WRONG, "pip"),
    "a broken numpy": (
        importing(PLAIN, "numpy", ChildResult(Outcome.CRASHED, error="signal 11")),
        *("Python", "numpy", WRONG, "--force-reinstall"),
    ),
    "numpy without a version": (
        without_package(PLAIN, "numpy"),
        *("Python", "numpy", UNKNOWN, "if models fail"),
    ),
    "no onnxruntime": (
        importing(PLAIN, "onnxruntime", ABSENT),
        *("Engines", "onnxruntime", MISSING, "pip install 'onnxruntime>=1.18'"),
    ),
    "an old onnxruntime": (
        with_package(PLAIN, "onnxruntime", "1.17.3"),
        *("Engines", "onnxruntime", WRONG, "pip install 'onnxruntime>=1.18'"),
    ),
    "no torch": (PLAIN, "Engines", "torch", MISSING, "ge-runtime[torch]"),
    "a broken torch": (
        importing(PLAIN, "torch", failed("ImportError: libc10.so")),
        *("Engines", "torch", WRONG, "--force-reinstall"),
    ),
    "torch that torch_npu breaks": (
        importing(
            with_package(PLAIN, "torch-npu", "2.13.0"), "torch", failed("RuntimeError: libhccl.so")
        ),
        *("Engines", "torch", WRONG, "TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
    ),
    "no shared memory": (
        replace(PLAIN, shared_memory=None),
        *("Shared memory", "/dev/shm", MISSING, "--shm-size=1g"),
    ),
    "shared memory that is full": (
        replace(PLAIN, shared_memory=SharedMemory(2**20, 0)),
        *("Shared memory", "/dev/shm", WRONG, "`mount -o remount,size=1g /dev/shm`"),
    ),
    "a service folder of another user": (
        replace(PLAIN, service_fault="/tmp/ge_runtime-1000 belongs to user 7 and has mode 0755"),
        *("Device service", "runtime folder", WRONG, "XDG_RUNTIME_DIR"),
    ),
    "no driver": (PLAIN, "Ascend driver", "driver", MISSING, "npu-driver"),
    "a driver without a version": (
        replace(ASCEND, npu_driver=""),
        *("Ascend driver", "driver", UNKNOWN, "npu-smi info"),
    ),
    "a driver that does not answer": (
        replace(ASCEND, npu_smi=failed("dcmi module initialize failed. ret is -8005")),
        *("Ascend driver", "npu-smi", WRONG, "dmesg"),
    ),
    "no cards": (PLAIN, "Ascend driver", "cards", MISSING, "--device /dev/davinci0"),
    "ASCEND_VISIBLE_DEVICES is void": (
        with_variable(PLAIN, "ASCEND_VISIBLE_DEVICES", "void"),
        *("Ascend driver", "cards", MISSING, "ASCEND_VISIBLE_DEVICES=<its cards>"),
    ),
    "only a card": (
        files(("/dev/davinci0", "HwHiAiUser", True)),
        *("Ascend driver", "management", MISSING, "--device /dev/hisi_hdc"),
    ),
    "a user outside the group": (
        replace(
            files(("/dev/davinci0", "HwHiAiUser", False)), groups=frozenset({"triton", "video"})
        ),
        *("Ascend driver", "permissions", WRONG, "`usermod -aG HwHiAiUser triton`"),
    ),
    "a user in a group that may not write": (
        files(("/dev/davinci0", "HwHiAiUser", False)),
        *("Ascend driver", "permissions", WRONG, "`chmod g+rw /dev/davinci0` as root"),
    ),
    "a group that exists only on the host": (
        files(("/dev/davinci0", "1000", False)),
        *("Ascend driver", "permissions", WRONG, "--group-add 1000"),
    ),
    "visible devices that are no numbers": (
        with_variable(ASCEND, "ASCEND_RT_VISIBLE_DEVICES", "0-1"),
        *("Ascend driver", "ASCEND_RT_VISIBLE_DEVICES", WRONG, "e.g. 0,1"),
    ),
    "no visible devices": (
        with_variable(ASCEND, "ASCEND_RT_VISIBLE_DEVICES", ""),
        *("Ascend driver", "ASCEND_RT_VISIBLE_DEVICES", WRONG, "unset it"),
    ),
    "the same visible device twice": (
        with_variable(ASCEND, "ASCEND_RT_VISIBLE_DEVICES", "1,1"),
        *("Ascend driver", "ASCEND_RT_VISIBLE_DEVICES", WRONG, "e.g. 0,1"),
    ),
    "visible devices in another order": (
        with_variable(ASCEND, "ASCEND_RT_VISIBLE_DEVICES", "1,0"),
        *("Ascend driver", "ASCEND_RT_VISIBLE_DEVICES", WRONG, "e.g. 0,1"),
    ),
    "visible devices of the host": (
        with_variable(ASCEND, "ASCEND_RT_VISIBLE_DEVICES", "1,6,7"),
        *("Ascend driver", "ASCEND_RT_VISIBLE_DEVICES", WRONG, "remove 6, 7"),
    ),
    "no CANN": (PLAIN, "CANN", "toolkit", MISSING, "Ascend-cann-toolkit"),
    "ASCEND_HOME_PATH that does not exist": (
        with_variable(PLAIN, "ASCEND_HOME_PATH", "/opt/cann"),
        *("CANN", "toolkit", WRONG, "source the set_env.sh"),
    ),
    "a CANN without a version": (
        cann(version=None),
        *("CANN", "toolkit", UNKNOWN, "cann/*-linux/ascend_toolkit_install.info`"),
    ),
    "a script not sourced": (
        cann(sourced=False),
        "CANN",
        "environment",
        WRONG,
        f"source {SET_ENV}",
    ),
    "no ACL in LD_LIBRARY_PATH": (
        replace(ASCEND, acl_folders=()),
        *("CANN", "LD_LIBRARY_PATH", MISSING, "set_env.sh"),
    ),
    "the stub library first": (
        replace(ASCEND, acl_folders=(STUB, "/usr/local/Ascend/cann/lib64")),
        *("CANN", "LD_LIBRARY_PATH", WRONG, f"remove {STUB}"),
    ),
    "a Python that CANN does not support": (
        replace(ASCEND, python=(3, 12, 3)),
        *("CANN", "Python", WRONG, "a Python in that range"),
    ),
    "an unknown release of CANN": (
        cann("9.7.0"),
        "CANN",
        "Python",
        UNKNOWN,
        "Runtime Dependencies",
    ),
    "no pyACL, no CANN": (PLAIN, "CANN", "pyACL", MISSING, "set_env.sh"),
    "no pyACL": (importing(ASCEND, "acl", ABSENT), "CANN", "pyACL", MISSING, f"source {SET_ENV}"),
    "pyACL without the driver's libraries": (
        importing(ASCEND, "acl", failed(LACKS_HAL)),
        *("CANN", "pyACL", WRONG, "/usr/local/Ascend/driver/lib64/driver"),
    ),
    "pyACL without CANN's libraries": (
        importing(ASCEND, "acl", failed(LACKS_GE)),
        *("CANN", "pyACL", WRONG, "set_env.sh"),
    ),
    "pyACL of another processor": (
        importing(ASCEND, "acl", failed(OTHER_PROCESSOR)),
        *("CANN", "pyACL", WRONG, f"install the CANN for {platform.machine()}"),
    ),
    "pyACL that this user may not read": (
        importing(ASCEND, "acl", failed(NOT_READABLE)),
        *("CANN", "pyACL", WRONG, "usermod -aG HwHiAiUser"),
    ),
    "pyACL of another Python": (
        importing(ASCEND, "acl", failed("ImportError: /cann/acl.so: undefined symbol: PyFPE_jbuf")),
        *("CANN", "pyACL", WRONG, "a Python that this CANN supports"),
    ),
    "pyACL that hangs": (
        importing(ASCEND, "acl", ChildResult(Outcome.TIMED_OUT, error="no end after 60 s")),
        *("CANN", "pyACL", WRONG, "npu-smi info"),
    ),
    "the stub library loaded": (acl_code(100039), "CANN", "devices", MISSING, "`stub`"),
    "no device for ACL": (acl_code(0), "CANN", "devices", MISSING, "its cards"),
    "no permission for ACL": (acl_code(207006), "CANN", "devices", MISSING, "permissions"),
    "a driver too old for CANN": (
        acl_code(507899),
        "CANN",
        "devices",
        MISSING,
        "update the driver",
    ),
    "an unknown code of ACL": (acl_code(500001), "CANN", "devices", MISSING, "ascend/log"),
    "no compiler": (PLAIN, "Ascend's compiler", "atc", MISSING, "toolkit"),
    "packages that atc imports": (
        without_package(without_package(ASCEND, "decorator"), "absl-py"),
        *("Ascend's compiler", "packages", WRONG, "`pip install decorator absl-py`"),
    ),
    "no atc, and no packages for it": (
        replace(without_package(ASCEND, "scipy"), atc=None),
        *("Ascend's compiler", "packages", MISSING, "`pip install scipy`"),
    ),
    "a Python too new for CANN 9.0": (
        replace(cann("9.0.0"), python=(3, 14, 0)),
        *("CANN", "Python", WRONG, "or install CANN 9.1"),
    ),
    "a torch_npu too old for CANN 9.2": (
        replace(TORCH_NPU, cann=Cann("/cann", "9.2.0", SET_ENV, sourced=True)),
        *("torch_npu", "fits CANN", WRONG, "torch_npu>=2.9"),
    ),
    "a torch_npu that no table names for CANN 9.2": (
        replace(
            with_package(TORCH_NPU, "torch-npu", "2.12.0"),
            cann=Cann("/cann", "9.2.0", SET_ENV, sourced=True),
        ),
        *("torch_npu", "fits CANN", UNKNOWN, "does not name this CANN"),
    ),
    "a numpy too new for the compiler": (
        ASCEND,
        *("Ascend's compiler", "numpy", WRONG, "with numpy 1.19.2 to 1.24"),
    ),
    "a protobuf too new for the compiler": (
        with_package(ASCEND, "protobuf", "6.33.6"),
        *("Ascend's compiler", "protobuf", WRONG, "with protobuf 3.20.x"),
    ),
    "no protobuf for the compiler": (
        ASCEND,
        *("Ascend's compiler", "protobuf", MISSING, "with protobuf 3.20.x"),
    ),
    "no torch_npu": (
        without_package(TORCH_NPU, "torch-npu"),
        *("torch_npu", "torch_npu", MISSING, "torch_npu==2.8.0"),
    ),
    "neither torch nor torch_npu": (PLAIN, "torch_npu", "torch_npu", MISSING, "install torch_npu`"),
    "torch_npu without CANN": (
        importing(TORCH_NPU, "torch_npu", failed("ImportError: libhccl.so")),
        *("torch_npu", "torch_npu", WRONG, "set_env.sh"),
    ),
    "torch_npu for another torch": (
        with_package(TORCH_NPU, "torch", "2.9.1+cpu"),
        *("torch_npu", "fits torch", WRONG, "pip install torch==2.8.0"),
    ),
    "torch_npu for another CANN, which has one for this torch": (
        replace(
            with_package(with_package(TORCH_NPU, "torch-npu", "2.9.0"), "torch", "2.9.0+cpu"),
            cann=Cann("/cann", "9.1.0", SET_ENV, sourced=True),
        ),
        *("torch_npu", "fits CANN", WRONG, "`pip install torch_npu==2.9.0.post6`"),
    ),
    "torch_npu for another CANN, which has none for this torch": (
        replace(TORCH_NPU, cann=Cann("/cann", "9.1.0", SET_ENV, sourced=True)),
        *("torch_npu", "fits CANN", WRONG, "`pip install torch_npu==2.12.0 torch==2.12.0`"),
    ),
    "torch_npu for another patch of this CANN": (
        replace(
            with_package(TORCH_NPU, "torch-npu", "2.8.0.post2"),
            cann=Cann("/cann", "8.5.1", SET_ENV, sourced=True),
        ),
        *("torch_npu", "fits CANN", UNKNOWN, "install CANN 8.5.0 if models fail"),
    ),
    "torch_npu for a CANN that has none": (
        replace(TORCH_NPU, cann=Cann("/cann", "8.1.RC1", SET_ENV, sourced=True)),
        *("torch_npu", "fits CANN", WRONG, "install CANN 8.3.RC1"),
    ),
    "torch_npu that is not in the table": (
        with_package(TORCH_NPU, "torch-npu", "2.13.0"),
        *("torch_npu", "fits CANN", UNKNOWN, "that table"),
    ),
    "two types of accelerators in one process": (
        importing(
            TORCH_NPU, "torch", ChildResult(Outcome.DONE, {"cuda": "12.8", "cuda_devices": "1"})
        ),
        *("torch_npu", "only accelerator", WRONG, "CUDA_VISIBLE_DEVICES="),
    ),
    "no GE-PY": (ASCEND, "GE-PY", "ge", MISSING, "ge-runtime build"),
    "a GE-PY of another release": (
        importing(
            GE_PY, "ge", ChildResult(Outcome.DONE, {"file": "", "lacking": "ge.session.Session"})
        ),
        *("GE-PY", "ge", WRONG, "another release"),
    ),
    "no NVIDIA driver": (PLAIN, "NVIDIA", "driver", MISSING, "--gpus all"),
    "an NVIDIA driver without a version": (
        replace(NVIDIA, nvidia_driver=""),
        *("NVIDIA", "driver", UNKNOWN, "nvidia-smi"),
    ),
    "no nvidia-smi": (PLAIN, "NVIDIA", "GPUs", MISSING, "--gpus all"),
    "no GPU": (
        replace(NVIDIA, nvidia_smi=ChildResult(Outcome.DONE)),
        *("NVIDIA", "GPUs", MISSING, "--gpus all"),
    ),
    "a GPU that does not answer": (
        replace(NVIDIA, nvidia_smi=failed("Driver/library version mismatch")),
        *("NVIDIA", "GPUs", WRONG, "reload its module"),
    ),
    "no engine for a GPU": (PLAIN, "NVIDIA", "engine", MISSING, "pip install 'onnxruntime-gpu["),
    "two engines in one folder": (
        with_package(NVIDIA, "onnxruntime-gpu", "1.31.1"),
        *("NVIDIA", "engine", WRONG, "`pip uninstall -y onnxruntime onnxruntime-gpu; pip install"),
    ),
    "an engine without CUDA's libraries": (
        importing(
            NVIDIA,
            "onnxruntime",
            ChildResult(Outcome.DONE, {"providers": CUDA, "cuda_error": "libcublasLt.so.12: no"}),
        ),
        *("NVIDIA", "engine", WRONG, "install CUDA and cuDNN"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_found_with_its_fix(case):
    machine, group, what, state, cure = CASES[case]
    finding = find(machine, group, what)
    assert (finding.state, cure in finding.cure) == (state, True), finding
    assert finding.found
    assert finding.expected


@pytest.mark.parametrize(
    ("machine", "required"),
    [
        (PLAIN, {"cpu", "service"}),
        (ASCEND, {"cpu", "npu", "service"}),
        (TORCH_NPU, {"npu", "torch", "torch_npu"}),
        (GE_PY, {"npu", "ge_session"}),
        (NVIDIA, {"cuda"}),
        (
            importing(
                importing(NVIDIA, "onnxruntime", PLAIN.imports["onnxruntime"]),
                "torch",
                ChildResult(Outcome.DONE, {"cuda": "12.8", "cuda_devices": "1"}),
            ),
            {"cuda"},
        ),
    ],
)
def test_a_complete_machine_has_no_faults(machine, required):
    assert faults_of(examine(machine, [], frozenset(required)), frozenset(required)) == []


def test_every_finding_that_is_not_ok_has_a_fix():
    machines = [PLAIN, *(machine for machine, *_ in CASES.values())]
    for machine in machines:
        for finding in examine(machine, [model()], ALL):
            assert (finding.state is State.OK) == (not finding.cure), finding


def test_wrong_items_are_faults_only_if_required():
    machine = with_variable(PLAIN, "ASCEND_HOME_PATH", "/opt/cann")
    for required, count in (({"cpu"}, 0), ({"npu"}, 5)):
        findings = examine(machine, [], frozenset(required))
        assert State.WRONG in {each.state for each in findings}
        assert len(faults_of(findings, frozenset(required))) == count


def test_the_compiler_is_a_fault_only_where_models_are_built():
    for machine in (PLAIN, ASCEND):  # ASCEND's numpy is too new for its compiler
        findings = examine(machine, [], ALL)
        compiler = [each for each in findings if each.group == "Ascend's compiler"]
        assert faults_of(compiler, ALL - {"build"}) == []
        assert faults_of(compiler, frozenset({"build"}))


def test_the_fix_for_the_stub_works_in_a_shell():
    finding = find(replace(ASCEND, acl_folders=(STUB, "/lib64")), "CANN", "LD_LIBRARY_PATH")
    line = finding.cure.split("`")[1]
    shell = f"LD_LIBRARY_PATH=/a:{STUB}:/b; {line}; echo $LD_LIBRARY_PATH"
    assert subprocess.check_output(["bash", "-c", shell], text=True) == "/a:/b\n"


def test_a_newer_cann_is_suggested_only_if_it_supports_this_python():
    assert "or install CANN 9.1" in find(replace(ASCEND, python=(3, 12, 3)), "CANN", "Python").cure
    newest = replace(cann("9.1.0"), python=(3, 15, 0))
    assert find(newest, "CANN", "Python").cure == "run the models with a Python in that range"


def test_patch_releases_of_python_are_ignored():
    assert find(replace(ASCEND, python=(3, 11, 9)), "CANN", "Python").state is State.OK
    assert find(replace(cann("9.1.0"), python=(3, 13, 1)), "CANN", "Python").state is State.OK
    assert find(replace(cann("9.1.0"), python=(3, 15, 0)), "CANN", "Python").state is State.WRONG


def test_the_newest_cann_pins_no_packages_for_its_compiler():
    findings = examine(with_package(cann("9.1.0"), "numpy", "2.4.6"), [], ALL)
    compiler = {each.what: each.state for each in findings if each.group == "Ascend's compiler"}
    assert compiler == {"atc": State.OK, "numpy": State.OK, "packages": State.OK}
    required = examine(cann("9.2.0"), [], frozenset({"build"}))
    assert faults_of(required, frozenset({"build"})) == []


@pytest.mark.parametrize(("version", "release"), TABLE.items())
def test_each_torch_npu_in_the_table_fits_its_cann(version, release):
    machine = with_package(TORCH_NPU, "torch-npu", version)
    fitting = replace(machine, cann=Cann("/cann", release, SET_ENV, sourced=True))
    assert find(fitting, "torch_npu", "fits CANN").state is State.OK


def test_a_simulator_is_reported_and_needs_neither_driver_nor_cann():
    facts = {**ACL_FACTS, "soc": "AscendSimulator", "devices": "1"}
    machine = importing(PLAIN, "acl", ChildResult(Outcome.DONE, facts))
    findings = examine(machine, [], frozenset({"npu"}))
    assert faults_of(findings, frozenset({"npu"})) == []
    assert [(each.what, each.found) for each in findings if each.group == "CANN"] == [
        ("pyACL", "a simulator, AscendSimulator"),
        ("devices", "1 device(s)"),
    ]
    assert "Ascend driver" not in {each.group for each in findings}


@pytest.mark.parametrize("text", ["0", "0,1", "1"])
def test_visible_devices_are_numbered_inside_the_container(text):
    finding = find(
        with_variable(ASCEND, "ASCEND_RT_VISIBLE_DEVICES", text),
        "Ascend driver",
        "ASCEND_RT_VISIBLE_DEVICES",
    )
    assert (finding.state, finding.found) == (State.OK, f"'{text}'")


def test_shared_memory_must_hold_inputs_and_outputs_of_every_engine():
    """Each instance has a region of 1 MiB, and each engine the bytes of one batch."""
    models = [model(engines=4, io_bytes=9 * 2**20), model("other", io_bytes=22 * 2**20)]
    enough = replace(PLAIN, shared_memory=SharedMemory(2**30, 60 * 2**20))
    finding = find(enough, "Shared memory", "/dev/shm", models)
    assert finding.state is State.OK
    assert finding.found == "60.0 MiB free of 1.0 GiB, 60.0 MiB needed"
    short = replace(PLAIN, shared_memory=SharedMemory(2**30, 60 * 2**20 - 1))
    finding = find(short, "Shared memory", "/dev/shm", models)
    assert (finding.state, finding.expected) == (
        State.WRONG,
        "60.0 MiB for inputs and outputs of 5 engine(s)",
    )


def test_every_memory_limit_must_hold_the_plans_of_all_instances():
    limits = (
        MemoryLimit("RAM", 16 * 2**30, 8 * 2**30, "/proc/meminfo"),
        MemoryLimit("control group /a", 2**30, 100 * 2**20, "/sys/fs/cgroup/a"),
    )
    machine = replace(PLAIN, memory=limits)
    models = [model(instances=2, host_bytes=40 * 2**20), model("other", host_bytes=20 * 2**20)]
    assert find(machine, "Memory", "RAM", models).state is State.OK
    finding = find(machine, "Memory", "control group /a", models)
    assert finding.state is State.OK
    assert finding.found == "100.0 MiB free of 1.0 GiB, 100.0 MiB needed"
    finding = find(machine, "Memory", "control group /a", [*models, model(host_bytes=1)])
    assert (finding.state, finding.expected) == (
        State.WRONG,
        "100.0 MiB for the plans of 4 instance(s)",
    )


def test_a_model_that_disagrees_with_its_graph_is_a_fault():
    broken = replace(model(), inspected=failed("output 'x': found FP32[4], expected FP32[5]"))
    finding = find(PLAIN, "Models", "encoder", [broken])
    assert (finding.state, finding.found) == (State.WRONG, broken.inspected.error)
    assert "ge-runtime inspect" in finding.cure


def test_models_of_engines_that_never_ran_on_a_device_are_experimental():
    for need in ("torch_npu", "ge_session"):
        found = find(ASCEND, "Models", "encoder", [model(needs=["npu", need])]).found
        assert found.endswith("; experimental: never run on a device")
    assert "experimental" not in find(PLAIN, "Models", "encoder", [model()]).found


def test_models_determine_the_requirements():
    assert required_by([], []) == {"cpu"}
    assert required_by([], [model(needs=["torch", "cuda"])]) == {"torch", "cuda"}
    assert required_by(["service"], [model()]) == {"service", "cpu"}
    assert required_by(["npu"], []) == {"npu"}


def test_the_reference_server_names_its_triton_version():
    facts = {"default": "tritonserver 9.9.0 (newest)", "proven": "2.51"}
    machine = importing(PLAIN, "reference_server", ChildResult(Outcome.DONE, facts))
    found = find(machine, "Reference server", "reference_server")
    assert found.state is State.OK
    assert found.found == "as tritonserver 9.9.0 (newest); --triton-version=2.51"
    assert not [each for each in examine(PLAIN, (), ALL) if each.group == "Reference server"]
