"""The application for Ray Serve, without a cluster: deployments, and the states of replicas."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from support.servers import ROOT

from reference_server.autoscaling import ByWork
from reference_server.command import cli
from reference_server.core.telemetry import (
    Duration,
    FailureReason,
    Snapshot,
)
from reference_server.frontends.http.asgi import Body

# Tests import Ray when they use it: the import takes a second and prints many warnings.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"
    ),
]

VERSION = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self._version = np.array([int(args["model_version"])], np.int32)

    def execute(self, requests):
        version = pb_utils.Tensor("VERSION", self._version)
        return [pb_utils.InferenceResponse([version]) for _ in requests]
"""
CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "VERSION" data_type: TYPE_INT32 dims: 1 }
instance_group { count: 2 kind: KIND_CPU }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three models that answer with their version: plain, with batches, with sequences."""
    more = {
        "plain": "",
        "batches": "max_batch_size: 8",
        "sequences": "max_batch_size: 8 sequence_batching {}",
    }
    for name, lines in more.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(VERSION)
        (tmp_path / name / "config.pbtxt").write_text(CONFIG + lines)
    return tmp_path


def deployed(repository: Path, **more: object):
    from reference_server.ray import Arguments, app

    bound = app(Arguments(model_repository=str(repository), **more))
    models = bound._bound_deployment.init_args[1]
    return {name: model.handle._bound_deployment for name, model in models.items()}


def test_each_model_is_a_deployment_with_two_batches_per_instance(repository: Path):
    found = deployed(repository)
    assert {name: each.max_ongoing_requests for name, each in found.items()} == {
        "batches": 32,
        "plain": 4,
        "sequences": 100,
    }


def test_deployment_options_are_passed_to_serve(repository: Path):
    settings = {"num_replicas": 3, "ray_actor_options": {"resources": {"NPU": 1}}}
    plain = deployed(repository, models={"plain": {**settings, "loads": ["batches"]}})["plain"]
    assert (plain.num_replicas, plain.ray_actor_options["resources"]) == (3, {"NPU": 1})
    assert plain.init_args[1].startup_models == ("plain", "batches")


def test_the_example_is_valid():
    from ray.serve.schema import ServeDeploySchema

    from reference_server.ray import Arguments

    text = (ROOT / "deploy" / "ray" / "serve.yaml").read_text()
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(text)).applications
    assert application.import_path == "reference_server.ray:app"
    given = Arguments.model_validate(application.args)
    policy = given.models["ge_classifier"]["autoscaling_config"]["policy"]
    ByWork(**policy["policy_kwargs"])
    options, _ = cli.parse([*shlex.split(given.options), "--model-repository=/models"])
    assert set(options.startup_models) == given.models.keys()


def test_the_servers_options_select_models(repository: Path):
    assert list(
        deployed(repository, options="--model-control-mode=explicit --load-model=plain")
    ) == ["plain"]


def test_invalid_arguments_are_reported(repository: Path):
    with pytest.raises(ValueError, match="models: found unknown names absent"):
        deployed(repository, models={"absent": {}})
    with pytest.raises(ValueError, match=r"sequences has sequences.*expected num_replicas 1"):
        deployed(repository, models={"sequences": {"num_replicas": 2}})
    with pytest.raises(ValueError, match="options: '--nothing' has an invalid option"):
        deployed(repository, options="--nothing")
    with pytest.raises(ValueError, match="replicas"):
        deployed(repository, replicas=2)


def test_reconfigure_reloads_the_files(repository: Path):
    from reference_server.options import ControlMode, ServerOptions
    from reference_server.ray.replica import Replica

    tensor = {"name": "IN", "datatype": "INT32", "shape": [1], "data": [0]}
    asked = {
        "method": "POST",
        "path": "/v2/models/plain/infer",
        "raw_path": b"/v2/models/plain/infer",
        "query_string": b"",
        "headers": [],
    }

    async def version(replica: Replica) -> int:
        body = Body(json.dumps({"inputs": [tensor]}).encode())
        messages = await replica.answer(asked, body)
        return json.loads(messages[1]["body"])["outputs"][0]["data"][0]

    async def versions() -> list[int]:
        options = ServerOptions(
            (repository,), control_mode=ControlMode.EXPLICIT, startup_models=("plain",)
        )
        replica = Replica.__new__(Replica)
        await replica.__init__("plain", options)
        found = [await version(replica)]
        shutil.copytree(repository / "plain" / "1", repository / "plain" / "2")
        await replica.reconfigure({"release": 2})
        found.append(await version(replica))
        # The loaded version.
        assert await replica.record_autoscaling_stats() == {"rows": 1, "requests": 1, "pending": 0}
        await replica.check_health()  # although the old version may still be unloading
        await replica.__del__()
        return found

    assert asyncio.run(versions()) == [1, 2]


def test_counters_of_replicas_are_summed_by_version():
    from reference_server.ray import deployments

    first = Snapshot("m", 1, 5, 3, 2, success=Duration(3, 30), failures={FailureReason.OTHER: 1})
    second = Snapshot("m", 1, 9, 1, 1, success=Duration(1, 10), failures={FailureReason.OTHER: 2})
    other = Snapshot("m", 2, 7, 1, 1)
    (one, two) = deployments.summed([first, other, second])
    assert (one.last_inference_ms, one.inference_count, one.execution_count) == (9, 4, 3)
    assert (one.success, one.failures) == (Duration(4, 40), {FailureReason.OTHER: 3})
    assert two == other
    assert first.success == Duration(3, 30)
