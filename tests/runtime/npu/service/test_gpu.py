"""A fake GPU in a device service that runs in this process."""

import numpy as np
import pytest
from runtime.support.configs import encoder_config
from runtime.support.gpus import any_torch_will_do, fake_gpu, real_gpu
from runtime.support.graphs import ENCODER, encode
from runtime.support.services import held_service
from support.waiting import until

from ge_runtime import Runtime
from ge_runtime.engines.backend import open_backend
from ge_runtime.errors import EngineLost, NoDevice

CONFIG = encoder_config(
    {
        "placement": "service",
        "devices": "cuda:0",
        "engine": "torch",
        "gears.batch": "1, 8",
        "gears.tokens": "8, 32",
        "cost": "launch_us=100, element_ns=100, element2_ns=0",
    }
)


def request(*row):
    return {"input_ids": np.array([row]), "lengths": np.array([[len(row)]], np.int32)}


def right(runtime, *rows):
    answers = runtime.infer([request(*row) for row in rows])
    for answer, row in zip(answers, rows, strict=True):
        np.testing.assert_allclose(answer["embedding"], encode([row]), rtol=1e-5)
    return True


@pytest.fixture
def gpu(monkeypatch):
    return fake_gpu(monkeypatch)


@pytest.fixture
def served(services, gpu):
    services.path.mkdir(0o700)
    with held_service(services.path, device="cuda:0", backend=open_backend("cuda:0")):
        yield services


@pytest.mark.brute_force
def test_clients_share_weights_and_recordings_and_their_memory_is_pinned(served, gpu, version_dir):
    folder = version_dir(ENCODER, "torch")
    runtimes = [
        Runtime.open(folder, CONFIG, instance_name=f"encoder_{number}") for number in range(3)
    ]
    assert (served.path / "cuda-0.sock").exists()
    report = runtimes[0].report
    assert "encoder_0: cuda:0 is fake of a GPU" in report
    assert sum("not planned: " in line for line in report) == 2
    assert runtimes[0].plan.device_io_bytes > 0
    for runtime in runtimes:
        before = gpu.replays
        assert right(runtime, [1, 2, 3], [4] * 20)
        assert gpu.replays > before
    stats = served.stats("cuda:0")
    assert stats["place"] == {"kind": "cuda", "name": "cuda:0", "hardware": "fake of a GPU"}
    (model,) = stats["models"]
    assert model["clients"] == 3
    assert sum(gpu.pinned.values()) >= stats["memory"]["arenas"] > 0
    for runtime in runtimes:
        runtime.close()
    until(lambda: not served.stats("cuda:0")["clients"], "their leave")
    assert served.stats("cuda:0")["models"] == []
    assert not gpu.pinned


@pytest.mark.brute_force
def test_service_without_a_gpu_says_what_is_missing(services, monkeypatch, version_dir):
    any_torch_will_do(monkeypatch)
    config = encoder_config({"placement": "service", "devices": "cuda:7", "engine": "torch"})
    with pytest.raises(NoDevice, match="cuda"):
        Runtime.open(version_dir(ENCODER, "torch"), config, instance_name="encoder_0")
    assert services.stats("cuda:7")["clients"] == []


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["torch", "onnxruntime"])
def test_real_gpu_is_shared_by_clients(services, version_dir, engine):
    real_gpu(engine)
    config = {**CONFIG, "parameters": {**CONFIG["parameters"], "engine": {"string_value": engine}}}
    folder = version_dir(ENCODER, engine)
    runtimes = [
        Runtime.open(folder, config, instance_name=f"encoder_{number}") for number in range(2)
    ]
    assert all(right(runtime, [1, 2, 3], [4] * 20) for runtime in runtimes)
    (model,) = services.stats("cuda:0")["models"]
    assert model["clients"] == 2
    for runtime in runtimes:
        runtime.close()


@pytest.mark.brute_force
def test_lost_gpu_ends_its_service(services, gpu, version_dir):
    services.path.mkdir(0o700)
    backend = open_backend("cuda:0")
    with held_service(services.path, device="cuda:0", backend=backend) as (_, server):
        runtime = Runtime.open(version_dir(ENCODER, "torch"), CONFIG, instance_name="encoder_0")
        (answer,) = runtime.infer([request(99)])
        assert isinstance(answer, EngineLost)
        assert "the GPU is lost to this process" in str(answer)
        until(lambda: server._ending is not None, "its end")
        runtime.close()
