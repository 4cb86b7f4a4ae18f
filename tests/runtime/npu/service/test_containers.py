"""Services in other containers: files, device numbers and processes that differ."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from runtime.engines.conformance_engine import token_batch
from runtime.support.graphs import ENCODER, PIXELS, copy_of, write
from runtime.support.services import held_service

from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.content import ContentHashes
from ge_runtime.errors import ArtifactFault, ServiceFault
from ge_runtime.npu.service import connection
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.channel import PeerGone
from ge_runtime.npu.service.connection import Heartbeat
from ge_runtime.npu.service.launcher import RuntimeFolder
from ge_runtime.npu.service.messages import physical_device
from ge_runtime.npu.service.protocol import Timeouts

pytestmark = pytest.mark.brute_force


@pytest.fixture
def backend(services):
    backend = ServiceBackend("cpu", "client")
    yield backend
    backend.close()


@pytest.fixture
def seen_twice(tmp_path, monkeypatch):
    """A path that is another file for the service, whose working directory is /."""
    there = tmp_path / "there" / "model.onnx"
    here = tmp_path / "here" / there.relative_to("/")
    for file in (there, here):
        file.parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    return Artifact(Path(f"/proc/self/cwd{there}"), "onnxruntime", ""), there, here


def test_path_that_is_another_file_for_the_service_is_refused(seen_twice, backend):
    artifact, there, here = seen_twice
    write(PIXELS, "onnxruntime", there.parent)
    write(ENCODER, "onnxruntime", here.parent)
    with pytest.raises(ArtifactFault) as raised:
        backend.open([artifact], threads=1, outputs=["embedding"])
    assert str(raised.value) == (
        f"{artifact.path}: found a file that differs from the device service's, expected the same; "
        "a service in another container sees other folders: set XDG_RUNTIME_DIR so that each "
        "container has its own service"
    )


def test_path_that_is_no_file_here_is_refused(seen_twice, backend):
    artifact, there, _ = seen_twice
    write(ENCODER, "onnxruntime", there.parent)
    with pytest.raises(ArtifactFault, match="cannot be read: No such file or directory"):
        backend.open([artifact], threads=1, outputs=["embedding"])


def test_path_that_is_a_file_of_equal_content_for_the_service_is_as_good(seen_twice, backend):
    artifact, there, here = seen_twice
    shutil.copy(write(ENCODER, "onnxruntime", there.parent), here)
    engine = backend.open([artifact], threads=1, outputs=["embedding"])
    inputs, expected = token_batch(2, 3)
    results = engine.run(inputs, {"embedding": None})
    np.testing.assert_allclose(results["embedding"], expected, rtol=1e-5)


def test_equal_graph_with_other_weights_for_the_service_is_refused(seen_twice, backend):
    """One file in two folders, each with its own external weights."""
    artifact, there, here = seen_twice
    model = ENCODER.onnx()
    onnx.save(model, there, save_as_external_data=True, location="k", size_threshold=128)
    os.link(there, here)
    (here.parent / "k").write_bytes(bytes((there.parent / "k").stat().st_size))
    with pytest.raises(ArtifactFault, match="found a file that differs from the device service's"):
        backend.open([artifact], threads=1, outputs=["embedding"])
    shutil.copy(there.parent / "k", here.parent)
    backend.open([artifact], threads=1, outputs=["embedding"]).close()


@pytest.mark.parametrize(
    ("reach", "said"), [(False, "could not be killed from here"), (True, "was killed")]
)
def test_service_that_hangs_is_said_to_be_ended_if_it_is(services, monkeypatch, reach, said):
    with RuntimeFolder.open(services.path) as folder, subprocess.Popen(["sleep", "600"]) as service:
        pid = service.pid if reach else 0  # 0 is the process ID of a process in another container
        heartbeat = Heartbeat("cpu", folder, Timeouts(probe_s=-1.0, hung_s=-1.0), pid, lambda: None)
        monkeypatch.setattr(connection, "connect", lambda device, folder, patience: patience())
        try:
            with pytest.raises(PeerGone, match=f"{said}$"):
                heartbeat.check()
            assert heartbeat.stopped == reach
        finally:
            service.kill()


def test_equal_files_are_equal_and_others_are_not(tmp_path):
    contents = ContentHashes()
    one, other = write(ENCODER, "onnxruntime", tmp_path / "1"), tmp_path / "copy.onnx"
    other.write_bytes(one.read_bytes())
    different = write(copy_of(np.int8), "onnxruntime", tmp_path / "2")
    assert contents.of(one) == contents.of(other) != contents.of(different)


def test_file_is_read_again_once_it_is_another(tmp_path):
    contents, path = ContentHashes(), tmp_path / "model.onnx"
    path.write_bytes(b"one")
    first = contents.of(path)
    later = tmp_path / "later"
    later.write_bytes(b"two")
    later.replace(path)
    assert contents.of(path) != first


def test_empty_file_is_a_content_and_a_missing_one_is_a_fault(tmp_path):
    contents, path = ContentHashes(), tmp_path / "model.onnx"
    path.touch()
    assert contents.of(path) == contents.of(path)
    with pytest.raises(ArtifactFault, match=r"none\.onnx: cannot be read: No such file"):
        contents.of(tmp_path / "none.onnx")


def test_weights_in_other_files_are_part_of_the_content(tmp_path):
    for version, weight in (("1", 1.0), ("2", 2.0)):
        model = onnx.load(write(ENCODER, "onnxruntime", tmp_path / version))
        table = next(one for one in model.graph.initializer if one.name == "table")
        table.raw_data = np.full((16, 4), weight, np.float32).tobytes()
        onnx.external_data_helper.convert_model_to_external_data(
            model, location="weights", size_threshold=0
        )
        onnx.save(model, tmp_path / version / "model.onnx")
    paths = [tmp_path / version / "model.onnx" for version in "12"]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    contents = ContentHashes()
    assert contents.of(paths[0]) != contents.of(paths[1])
    weights = paths[0].with_name("weights")
    first = contents.of(paths[0])
    weights.write_bytes(weights.read_bytes() + b"more")
    assert contents.of(paths[0]) != first


@pytest.mark.parametrize(
    ("device", "environment", "meant"),
    [
        ("cpu", {"CUDA_VISIBLE_DEVICES": "1"}, ""),
        ("cuda:2", {}, "2"),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": "3, 1"}, "3"),
        (
            "cuda:1",
            {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "ASCEND_RT_VISIBLE_DEVICES": "5"},
            "GPU-b",
        ),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": ""}, ""),
        ("npu:1", {"ASCEND_RT_VISIBLE_DEVICES": "4,6"}, "6"),
        ("npu:2", {"ASCEND_RT_VISIBLE_DEVICES": "4,6"}, ""),
        ("npu:0", {"ASCEND_RT_VISIBLE_DEVICES": "4, 6"}, "4"),
        ("npu:1", {"ASCEND_RT_VISIBLE_DEVICES": "4, 6"}, ""),
        ("npu:1", {"ASCEND_RT_VISIBLE_DEVICES": "4,6 ,7"}, "6"),
        ("npu:1", {"ASCEND_RT_VISIBLE_DEVICES": "4,x,7"}, ""),
        ("npu:0", {"ASCEND_RT_VISIBLE_DEVICES": "6,4"}, ""),
        ("npu:0", {"ASCEND_RT_VISIBLE_DEVICES": "4,4"}, ""),
        ("npu:0", {"ASCEND_RT_VISIBLE_DEVICES": ""}, ""),
    ],
)
def test_number_is_that_of_the_environment(device, environment, meant):
    assert physical_device(device, environment) == meant


def test_client_for_which_a_number_is_another_card_is_refused(services, monkeypatch):
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")
    with held_service(services.path, device="npu:0"):
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
        with pytest.raises(ServiceFault) as raised:
            ServiceBackend("npu:0", "of another server")
        assert str(raised.value) == (
            "the device service refuses: found npu:0 to be the machine's device '1', expected "
            "'0' as in this service: ASCEND_RT_VISIBLE_DEVICES differs. Set XDG_RUNTIME_DIR so "
            "that each process has its own service"
        )
        monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES")
        ServiceBackend("npu:0", "of a server that has all").close()
