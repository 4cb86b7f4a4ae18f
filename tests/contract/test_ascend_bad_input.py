"""Models that a simulated card cannot serve, on both servers: the reason, and no other damage."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contract.ascend_repository import (
    CHIP,
    DEVICE,
    GRAPH,
    STARTERS,
    Served,
    build,
    reconfigure,
    serving,
)
from contract.test_same_repository import image
from support.waiting import until
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.oracle

MODEL = "ge_classifier"
PICTURE = replace(image(random.Random(5)), model="sound")
# Enough for the classifier, too little for the encoder's weights.
HBM_MIB = 64
REASONS = {
    "corrupt": (
        "ArtifactFault: {folder}/1/model.om: npu:0, AscendSimulator, cannot execute it: ",
        "100013 ACL_ERROR_PARSE_MODEL",
        "`ge-runtime build` compiles it from model.onnx for this chip",
    ),
    "cut_short": (
        "ArtifactFault: {folder}/1/model.om: npu:0, AscendSimulator, cannot execute it: ",
        "145006 ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID",
    ),
    "for_another_chip": (
        "ArtifactFault: {folder}/1/model.om: npu:0, AscendSimulator, cannot execute it: ",
        "found a model for Ascend910B3, expected AscendSimulator",
    ),
    "without_a_gear": (
        "ArtifactFault: ",
        "found no gear 8x48x48 for batch, height, width, expected all that config.pbtxt names",
        "it was compiled for 1x32x32, 1x256x256, 8x32x32, 8x64x64: run `ge-runtime build`",
    ),
    "workspace_too_large": ("PlanFault: the graph does not fit: ", "expected at most "),
    "weights_too_large": ("PlanFault: the graph does not fit: ", "expected at most "),
    "on_no_card": (
        "NoDevice: npu:7 cannot be used: acl.rt.set_device: 107001 ACL_ERROR_RT_INVALID_DEVICEID",
    ),
    "not_compiled": (
        "ArtifactFault: {folder}/1: found ",
        "expected model.om (for om)",
        "`ge-runtime build` builds the artifacts",
    ),
}


@pytest.fixture(scope="module")
def repository(
    card_repository: Path, real_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Write a valid model and invalid models, each with one instance."""
    repository = tmp_path_factory.mktemp("bad") / "repository"
    graph = real_repository / MODEL / GRAPH

    def model(name: str, was: str = DEVICE, now: str = DEVICE, *, source: str = MODEL) -> Path:
        folder = Path(shutil.copytree(card_repository / source, repository / name))
        reconfigure(folder, "count: 2", "count: 1")
        reconfigure(folder, was, now)
        return folder

    model("sound")
    om = model("corrupt") / "1" / "model.om"
    content = bytearray(om.read_bytes())
    content[len(content) // 2] ^= 1
    om.write_bytes(content)
    om = model("cut_short") / "1" / "model.om"
    om.write_bytes(om.read_bytes()[:-1])
    build(model("for_another_chip"), graph, chip="Ascend910B3")
    model("without_a_gear", "8x64x64", "8x48x48")
    build(model("workspace_too_large", "8x64x64", "32x256x256"), graph)
    model("weights_too_large", source="text_encoder")
    model("on_no_card", DEVICE, "npu:7")
    (model("not_compiled") / "1" / "model.om").unlink()
    return repository


@pytest.fixture(scope="module", params=STARTERS)
def served(
    request: pytest.FixtureRequest,
    oracle_installed: None,
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """Run either server with all models. The reference server has them in its own process."""
    flags = {"ready_path": "/v2/health/live", "exit_on_error": False, "model_load_thread_count": 8}
    if request.param != "tritonserver":
        flags |= {"backend_config": "python,host=inline"}
    folder = tmp_path_factory.mktemp("services")
    with serving(request.param, repository, folder, {"hbm_mib": HBM_MIB}, **flags) as served:
        yield served


@pytest.mark.parametrize("name", REASONS)
def test_what_cannot_be_served_has_its_reason(name: str, served: Served, repository: Path):
    with InferenceServerClient(served.server.http) as client:
        rows = {row["name"]: row for row in client.get_model_repository_index()}
    assert rows[name]["state"] == "UNAVAILABLE"
    for part in REASONS[name]:
        assert part.format(folder=repository / name) in rows[name]["reason"]


def test_the_sound_model_is_alone_on_the_card_and_answers(served: Served):
    stats = served.services.stats(DEVICE)
    assert [client["name"] for client in stats["clients"]] == ["sound_0_0"]
    assert [model["clients"] for model in stats["models"]] == [1]
    assert stats["memory"]["allocated"].keys() == {"weights", "workspace", "device I/O"}
    assert stats["place"]["hardware"] == CHIP
    assert isinstance(served.ask(PICTURE), np.ndarray)


@pytest.mark.parametrize("name", STARTERS)
def test_a_damaged_file_is_told_and_loads_once_it_is_mended(
    name: str, oracle_installed: None, repository: Path, tmp_path: Path
):
    """Loaded models continue to serve, and a failed load leaves nothing on the card."""
    mended = Path(shutil.copytree(repository / "sound", tmp_path / "models" / "mended"))
    om = mended / "1" / "model.om"
    content = om.read_bytes()
    request = replace(PICTURE, model="mended")
    flags = {"model_control_mode": "explicit", "exit_on_error": False}
    with (
        serving(name, tmp_path / "models", tmp_path, ready_path="/v2/health/live", **flags) as one,
        InferenceServerClient(one.server.http, network_timeout=60) as client,
    ):

        def fail_to_load() -> None:
            om.write_bytes(content[:-1])
            with pytest.raises(InferenceServerException) as failed:
                client.load_model("mended")
            told, _, frames = failed.value.message().partition("\n\nAt:\n")
            assert f"{om}: npu:0, {CHIP}, cannot execute it: " in told
            assert re.findall(r"\(\d+\): (\w+)", frames) == ["__init__", "initialize"]

        def load() -> None:
            om.write_bytes(content)
            client.load_model("mended")

        def allocated() -> dict[str, int]:
            own: dict[str, int] = one.stats()["memory"]["allocated"]
            return own

        fail_to_load()
        load()
        answer, expected = one.ask(request), allocated()
        fail_to_load()
        assert allocated() == expected
        np.testing.assert_array_equal(one.ask(request), answer)
        load()
        # The real server answers while it still unloads the previous model.
        until(lambda: allocated() == expected, "the memory of one model")
        np.testing.assert_array_equal(one.ask(request), answer)


@pytest.mark.parametrize("name", STARTERS)
def test_a_lost_device_is_told_and_had_again_by_the_next_service(
    name: str, oracle_installed: None, repository: Path, tmp_path: Path
):
    """A process cannot use a lost device again, so the service must end.

    The device is lost after the load of the model, during which it is used some dozens of times.
    """
    loads = {"model_control_mode": "explicit", "load_model": "sound"}
    pids: set[int | None] = set()
    refusals: list[str] = []
    with serving(name, repository, tmp_path, {"faults": "execute@200=lost"}, **loads) as served:

        def ask() -> None:
            answer = served.ask(PICTURE)
            if isinstance(answer, np.ndarray):
                pids.add(served.services.pid(DEVICE))
            else:
                assert answer.status() == "503"
                refusals.append(answer.message())

        def lost_twice() -> bool:
            for _ in range(20):  # hundreds of executions, without a pause after each
                ask()
            return len(pids - {None}) >= 3

        until(lost_twice, "the third service")
    assert "507010 ACL_ERROR_RT_LOST_HEARTBEAT, the device is lost" in refusals[0]
    for refusal in refusals:
        assert "the device is lost" in refusal or f"service of {DEVICE} (pid " in refusal


FULL = """
import json, os, random, sys
from pathlib import Path
from contract.ascend_repository import serving
from contract.test_ascend_bad_input import PICTURE
from tritonclient.http import InferenceServerClient
import numpy as np
name, repository, folder = sys.argv[1:]
flags = {"model_control_mode": "explicit", "load_model": "sound", "exit_on_error": False}
with serving(name, Path(repository), Path(folder), ready_path="/v2/health/live", **flags) as served:
    with InferenceServerClient(served.server.http) as client:
        (row,) = [one for one in client.get_model_repository_index() if one["name"] == "sound"]
    answered = isinstance(served.ask(PICTURE), np.ndarray)
    print(json.dumps([answered, row.get("reason", ""), os.listdir("/dev/shm")]))
"""
"""A program that sends requests to a valid model while /dev/shm is full."""


@pytest.mark.parametrize("name", STARTERS)
def test_a_full_dev_shm_is_told_by_the_real_server_and_not_needed_otherwise(
    name: str, oracle_installed: None, repository: Path, tmp_path: Path
):
    """There is no space for the shared memory of the device service and the reference server."""
    apart = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k none /dev/shm && "$@"']
    if subprocess.run([*apart, "sh", "true"], check=False, capture_output=True).returncode:
        pytest.skip("a /dev/shm of its own needs CAP_SYS_ADMIN")
    program = [sys.executable, "-c", FULL, name, str(repository), str(tmp_path)]
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [*apart, "sh", *program],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
    )
    answered, reason, left = json.loads(done.stdout)
    assert left == []
    assert answered is (name != "tritonserver")
    if not answered:
        assert reason.startswith("Internal: Unable to initialize shared memory key ")
        assert reason.endswith("Error: No space left on device")
