"""Memory that can be shared and memory that is kept: reported, and freed."""

import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER, encode
from support.waiting import until

from ge_runtime import PlanFault, Runtime
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.protocol import Timeouts

pytestmark = pytest.mark.brute_force

CONFIG = encoder_config(
    {"placement": "service", "cost": "launch_us=100, element_ns=100, element2_ns=0"}
)


@contextmanager
def files_of_at_most(nbytes):
    """No file of this process grows beyond it, those in memory among them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def descriptors():
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_memory_that_cannot_be_shared_is_a_fault_of_the_plan(services, version_dir):
    folder = version_dir(ENCODER)
    # Without probes of the service, because each needs a descriptor.
    backend = ServiceBackend("cpu", "who keeps the service", timeouts=Timeouts(probe_s=3600.0))
    before = descriptors()
    with files_of_at_most(0), pytest.raises(PlanFault) as raised:
        Runtime.open(folder, CONFIG, instance_name="encoder_0")
    text = str(raised.value)
    assert text.startswith("the planned memory cannot be allocated: cpu: '")
    assert "expected no more than the machine has in addition to the 0 in use" in text
    until(lambda: descriptors() <= before, "the end of its descriptors")
    until(lambda: len(services.stats()["clients"]) == 1, "the end of what was opened")
    assert services.stats()["models"] == []
    assert services.stats()["memory"]["arenas"] == 0
    runtime = Runtime.open(folder, CONFIG, instance_name="encoder_0")
    request = {"input_ids": np.array([[1, 2]]), "lengths": np.array([[2]], np.int32)}
    (answer,) = runtime.infer([request])
    np.testing.assert_allclose(answer["embedding"], encode([[1, 2]]), rtol=1e-5)
    runtime.close()
    backend.close()


def test_dev_shm_is_not_used(services, version_dir):
    """So the size of /dev/shm does not matter, which is 64 MiB in a container by default."""
    runtime = Runtime.open(version_dir(ENCODER), CONFIG, instance_name="encoder_0")
    maps = Path(f"/proc/{services.pid()}/maps").read_text()
    assert "/memfd:ge_runtime" in maps
    assert "/dev/shm/" not in maps
    runtime.close()


@pytest.mark.brute_force
def test_answers_beyond_the_planned_slots_allocate_nothing_that_is_shared(services, version_dir):
    runtime = Runtime.open(version_dir(ENCODER), CONFIG, instance_name="encoder_0")
    planned = services.stats()["memory"]["arenas"]
    kept = []
    for token in range(8):
        ids = np.full((8, 32), token)
        lengths = np.full((8, 1), 32, np.int32)
        kept += runtime.infer([{"input_ids": ids, "lengths": lengths}])
    assert runtime.counts().answers_spilled == 5
    assert runtime.gauges()["allocations_after_freeze"] == 0
    assert services.stats()["memory"]["arenas"] == planned
    for token, answer in enumerate(kept):
        expected = encode([[token] * 32] * 8)
        np.testing.assert_allclose(answer["embedding"], expected, rtol=1e-5)
    runtime.close()
