import resource

import pytest

from ge_runtime.errors import PlanFault
from ge_runtime.memory.machine import (
    MemoryLimit,
    ensure_fits,
    host_bytes,
    lacking,
    own_resident_bytes,
    read_limits,
)
from ge_runtime.memory.plan import GearPlan, Plan

GIB = 2**30
MEMINFO = f"""\
MemTotal:       {16 * GIB // 1024} kB
MemFree:        {GIB // 1024} kB
MemAvailable:   {8 * GIB // 1024} kB
HugePages_Total:       0
"""
UNLIMITED_V1 = "9223372036854771712\n"


@pytest.fixture
def machine(tmp_path):
    """Return a function: files -> a root with them, by default of a machine with RAM."""

    def build(files=None, *, meminfo=MEMINFO):
        for name, text in {"proc/meminfo": meminfo, **(files or {})}.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return build


def test_free_ram_is_the_available_memory_of_the_kernel(machine):
    assert read_limits(machine()) == (MemoryLimit("RAM", 16 * GIB, 8 * GIB, "/proc/meminfo"),)


def test_private_memory_is_resident_minus_shared(machine, tmp_path):
    root = machine({"proc/self/statm": "1024 100 50 1 0 90 0\n"})
    assert own_resident_bytes(root) == 50 * resource.getpagesize()
    assert own_resident_bytes(tmp_path / "elsewhere") is None


def test_a_kernel_without_available_memory_is_ignored(machine):
    assert read_limits(machine(meminfo="MemTotal: 1 kB\n")) == ()


def test_groups_of_version_2_are_read_from_the_innermost_outwards(machine):
    group = "sys/fs/cgroup/pods/one"
    limits = read_limits(
        machine(
            {
                "proc/self/cgroup": "0::/pods/one\n",
                f"{group}/memory.max": f"{2 * GIB}\n",
                f"{group}/memory.current": f"{GIB}\n",
                f"{group}/memory.stat": "anon 5\ninactive_file 1048576\nactive_file 7\n",
                "sys/fs/cgroup/pods/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/pods/memory.current": f"{5 * GIB}\n",
            }
        )
    )
    assert limits[1:] == (
        MemoryLimit("control group /pods/one", 2 * GIB, GIB + 2**20, f"/{group}"),
        MemoryLimit("control group /pods", 4 * GIB, 0, "/sys/fs/cgroup/pods"),
    )


@pytest.mark.parametrize("limit", ["max", f"{16 * GIB}"], ids=["no limit", "above RAM"])
def test_groups_that_limit_nothing_are_ignored(machine, limit):
    files = {
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/a/memory.max": f"{limit}\n",
        "sys/fs/cgroup/a/memory.current": "0\n",
    }
    assert len(read_limits(machine(files))) == 1


def test_groups_of_version_1_are_found_among_other_controllers(machine):
    group = "sys/fs/cgroup/memory/docker/ab"
    limits = read_limits(
        machine(
            {
                "proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/docker/ab\n0::/\n",
                f"{group}/memory.limit_in_bytes": f"{GIB}\n",
                f"{group}/memory.usage_in_bytes": "4096\n",
                f"{group}/memory.stat": "inactive_file 1\ntotal_inactive_file 1024\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
            }
        )
    )
    assert limits[1:] == (MemoryLimit("control group /docker/ab", GIB, GIB - 3072, f"/{group}"),)


def test_in_a_container_the_mount_is_its_own_group(machine):
    """The path is that of the host, and does not exist below the mount."""
    files = {
        "proc/self/cgroup": "4:memory:/docker/ab\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
    }
    assert read_limits(machine(files))[1] == MemoryLimit(
        "control group /", GIB, GIB, "/sys/fs/cgroup/memory"
    )


def test_the_address_space_is_a_limit(machine):
    files = {
        "proc/self/limits": (
            "Limit                     Soft Limit           Hard Limit           Units\n"
            "Max data size             unlimited            unlimited            bytes\n"
            "Max address space         1073741824           unlimited            bytes\n"
        ),
        "proc/self/statm": "1024 100 50 1 0 90 0\n",
    }
    assert read_limits(machine(files))[1] == MemoryLimit(
        "address space (ulimit -v)", GIB, GIB - 1024 * resource.getpagesize(), "/proc/self/limits"
    )


def plan(workspace=1000, inputs=64, answers=128):
    gear = GearPlan({"batch": 1}, inputs, answers, workspace, workspace, 0)
    return Plan(weights_bytes=500, gears=(gear,), answer_slots=3, workspace_known=True)


def test_on_the_host_executions_take_workspace_and_batches():
    assert host_bytes(plan(), on_host=True) == 1000 + 64 + 3 * 128
    assert host_bytes(plan(), on_host=True, engines=2) == 2 * (1000 + 64 + 3 * 128)


def test_the_tightest_limit_comes_first():
    limits = [MemoryLimit(name, 100, free, "") for name, free in (("a", 9), ("b", 5), ("c", 10))]
    assert [limit.name for limit in lacking(10, limits)] == ["b", "a"]


def test_a_plan_that_does_not_fit_is_refused_with_both_tables():
    limits = [MemoryLimit("RAM", 16 * GIB, 8 * GIB, "/proc/meminfo")]
    ensure_fits(8 * GIB, limits, plan())
    with pytest.raises(PlanFault) as raised:
        ensure_fits(8 * GIB + 1, limits, plan())
    text = str(raised.value)
    assert text.startswith(
        "the plan does not fit this machine: found 8,589,934,593 bytes wanted, expected at most "
        "8,589,934,592, the free part of RAM (/proc/meminfo): lower a limit or max_batch_size, or "
        "give the process more memory\n"
    )
    assert "\nweights " in text
    assert text.endswith(
        "\n            needed           free              of"
        "\nRAM  8,589,934,593  8,589,934,592  17,179,869,184  too little"
    )
