"""compose.yaml in a real Docker engine: from a tree without models to answers, and down again.

The compose command drives, the engine's own interface looks. It happens in a copy of the tree,
under a project name and ports of its own: a stack that somebody runs is left alone.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import numpy as np
import pytest
from docker.models.containers import Container
from support.prometheus import Prometheus
from support.servers import ROOT, free_ports
from support.waiting import until
from tritonclient.http import InferenceServerClient, InferInput

pytestmark = pytest.mark.stack

# What docs/deployment.md says that each image adds to its base; engines count a little differently.
ADDED_MB = re.compile(r"^\| `([a-z-]+)` \| (\d+) MB \|", re.M)
BASE = "python:3.11-slim-bookworm"
# What the server grants its last requests.
DRAIN_SECONDS = 30


@dataclass(frozen=True)
class Stack:
    """One run of compose.yaml."""

    engine: docker.DockerClient
    directory: Path
    project: str
    ports: dict[str, int]

    def compose(self, *arguments: str, **environment: str) -> str:
        """Run a compose command and give its output; its failure is the test's."""
        command = ["docker", "compose", "--project-name", self.project, *arguments]
        ports = {name: str(port) for name, port in self.ports.items()}
        result = subprocess.run(
            command,
            cwd=self.directory,
            env=os.environ | ports | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}"
        return result.stdout

    def containers(self, *labels: str) -> list[Container]:
        """The project's containers that have these labels, running or ended."""
        wanted = [f"com.docker.compose.project={self.project}", *labels]
        return self.engine.containers.list(all=True, filters={"label": wanted})

    def container(self, service: str) -> Container:
        (container,) = self.containers(f"com.docker.compose.service={service}")
        return container

    def output(self, service: str) -> str:
        """All that a service has printed."""
        return self.container(service).logs().decode()


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    """A Docker engine that compose can drive, or a skip that names what is missing."""
    # The commands ask first: where no engine answers, the library leaves its socket open.
    unmeasured = "image sizes: not measured here"
    if not shutil.which("docker"):
        pytest.skip(f"there is no docker command here; {unmeasured}")
    for question, lack in (
        (["docker", "info", "--format", "{{.ServerVersion}}"], "no Docker engine runs here"),
        (["docker", "compose", "version"], "a Docker engine runs here, but there is no compose"),
    ):
        answer = subprocess.run(question, capture_output=True, text=True, check=False)
        if answer.returncode:
            pytest.skip(f"{lack}; {unmeasured}: {answer.stderr.strip()}")
    with contextlib.closing(docker.from_env()) as client:
        yield client


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree as a clone has it: without the models' artifacts."""
    ignored = shutil.ignore_patterns(
        *(".git", ".venv", ".oracle", ".cache", "__pycache__"),
        *("*.onnx", "*.pt2", "tokenizer.json", "characters.txt"),
    )
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("stack") / "tree", ignore=ignored)


@pytest.fixture(scope="module")
def stack(engine: docker.DockerClient, tree: Path) -> Iterator[Stack]:
    names = [
        *("HTTP_PORT", "GRPC_PORT", "METRICS_PORT"),
        *("TRITON_HTTP_PORT", "TRITON_GRPC_PORT", "TRITON_METRICS_PORT"),
        "PROMETHEUS_PORT",
    ]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    stack = Stack(engine, tree, f"stack-{uuid.uuid4().hex[:8]}", ports)
    try:
        # Returns once the client is started, hence with a healthy server.
        stack.compose("up", "--build", "--detach")
        yield stack
    finally:
        stack.compose("--profile", "*", "down", "--timeout", "5")


def test_models_are_built_into_the_mounted_repository_and_belong_to_its_owner(stack):
    assert stack.container("models").wait()["StatusCode"] == 0
    repository = stack.directory / "model_repository"
    built = {file.parent.parent.name: file for file in repository.glob("*/1/*.onnx")}
    assert built.keys() == {
        *("text_encoder", "text_classifier", "ge_classifier"),
        *("text_pipeline_fused", "voice_activity"),
        *("ocr_detection", "ocr_angle", "ocr_recognition"),
    }
    assert {file.stat().st_uid for file in built.values()} == {repository.stat().st_uid}


def test_server_answers_from_outside(stack):
    assert ask(stack.ports["HTTP_PORT"], "My parcel never arrived.") == "delivery"


def test_server_is_healthy_unprivileged_and_reads_only(stack):
    server = stack.container("server").attrs
    assert server["State"]["Health"]["Status"] == "healthy"
    assert server["Config"]["User"] == "1000:1000"
    assert [(mount["Destination"], mount["RW"]) for mount in server["Mounts"]] == [
        ("/models", False)
    ]


def test_the_sizes_of_the_images_are_those_of_the_page(stack):
    stack.compose("--profile", "triton", "build")
    base = stack.engine.images.pull(BASE).attrs["Size"]
    rows = []
    for image, told in ADDED_MB.findall((ROOT / "docs" / "deployment.md").read_text()):
        size = stack.engine.images.get(image).attrs["Size"]
        rows.append((image, size / 1e6, (size - base) / 1e6, int(told)))
    print(f"{'image':20} {'MB':>6} {'added':>6} {'page':>6}   base {base / 1e6:.0f} MB")
    for image, size, added, told in rows:
        print(f"{image:20} {size:6.0f} {added:6.0f} {told:6}")
    assert len(rows) == 3
    assert all(abs(added - told) <= told / 4 for _, _, added, told in rows)


def test_tritonserver_gives_the_same_answer_from_the_same_folders(stack):
    stack.compose("--profile", "triton", "up", "--build", "--detach", "--wait", "triton")
    for text in ["My parcel never arrived.", "我忘记了密码，登录不了。"]:
        answers = {ask(stack.ports[port], text) for port in ("HTTP_PORT", "TRITON_HTTP_PORT")}
        assert len(answers) == 1


def test_prometheus_watches_the_servers_that_run(stack):
    stack.compose("--profile", "observe", "up", "--build", "--detach", "--wait", "prometheus")
    prometheus = Prometheus(f"localhost:{stack.ports['PROMETHEUS_PORT']}")
    until(lambda: [value for _, value in prometheus.values('up{job="reference"}')] == [1])


def test_perf_analyzer_measures_the_server(stack):
    report = stack.compose("run", "--build", "--rm", "perf", PERF_MODEL="ge_classifier")
    assert "Concurrency: 4, throughput: " in report


def test_models_that_are_there_are_left_alone(stack):
    (encoder,) = (stack.directory / "model_repository").glob("text_encoder/1/model.onnx")
    before = encoder.stat()
    stack.compose("up", "--force-recreate", "--detach", "models")
    assert stack.container("models").wait()["StatusCode"] == 0
    assert "text_encoder/1/model.onnx is up to date" in stack.output("models")
    assert encoder.stat().st_mtime_ns == before.st_mtime_ns


def test_stack_stops_cleanly_and_leaves_nothing(stack):
    server = stack.container("server")
    started = time.monotonic()
    stack.compose("--profile", "*", "stop")
    assert time.monotonic() - started < DRAIN_SECONDS
    server.reload()
    assert server.attrs["State"]["ExitCode"] == 0
    assert "successfully unloaded 'text_encoder'" in stack.output("server")

    stack.compose("--profile", "*", "down")
    label = f"com.docker.compose.project={stack.project}"
    assert stack.containers() == []
    assert stack.engine.networks.list(filters={"label": label}) == []
    assert stack.engine.volumes.list(filters={"label": label}) == []


def ask(port: int, text: str) -> str:
    """The label of a text, from the server at this port."""
    tensor = InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text], dtype=object))
    with InferenceServerClient(f"localhost:{port}") as client:
        return client.infer("text_pipeline", [tensor]).as_numpy("label")[0, 0].decode()
