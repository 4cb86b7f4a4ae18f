"""A service in another container than its client: other files at equal paths, other processes."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from runtime.engines.conformance_engine import token_batch
from runtime.support.graphs import ENCODER, PIXELS, write

from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.service import connection
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.channel import PeerGone
from ge_runtime.npu.service.connection import Heartbeat
from ge_runtime.npu.service.launcher import RuntimeFolder
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
        f"{artifact.path}: found another file than the device service does, expected the same; a "
        "service in another container sees other folders: set XDG_RUNTIME_DIR so that each "
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
    with pytest.raises(ArtifactFault, match="found another file than the device service does"):
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
