"""Models of a Python-based backend: the backend's code runs with the model's files."""

import textwrap
from dataclasses import replace

import pytest
from server.support.clock import ManualClock
from server.support.model_folders import OPTIONS, VECTOR, write_model
from server.support.requests import Answers, a_request, array_tensor

from reference_server.observability.metric_registry import MetricRegistry
from reference_server.repository.loader import ModelLoader
from reference_server.repository.model_folders import ModelFolder, ModelId

CODE = """
    import helper
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            facts = [__name__, helper.OWNER, pb_utils.get_model_dir(), args["model_repository"]]
            self.facts = np.array(facts, dtype=object)

        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.facts)])] * len(requests)
"""


def no_model(name, version):
    raise AssertionError(f"{name} must not be looked up")


@pytest.fixture
def backends(tmp_path):
    folder = tmp_path / "backends" / "ge"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(textwrap.dedent(CODE))
    (folder / "helper.py").write_text("OWNER = 'the backend'\n")
    return folder.parent


def test_backend_code_runs_with_the_files_of_the_model(models, backends):
    config = VECTOR.replace("TYPE_FP32 dims: [-1] }", "TYPE_STRING dims: [-1] }")
    path = write_model(models, "m", f'backend: "ge" {config}', None)
    (path / "1" / "helper.py").write_text("OWNER = 'the model'\n")
    loader = ModelLoader(
        ManualClock(), MetricRegistry(), replace(OPTIONS, backend_directory=backends)
    )
    folder = ModelFolder(ModelId("m"), path)
    served = loader.load(folder, loader.read_config(folder), 1, no_model)
    answers = Answers()
    served.infer(a_request(array_tensor("X", [b"x"], object), sink=answers))
    response = answers.wait()
    served.scheduler.close()
    assert response.error is None
    facts = [element.decode() for element in response.outputs[0].array()]
    assert facts == ["model", "the backend", str(path / "1"), str(path)]
    assert '"runtime":"model.py"' in served.config.json
