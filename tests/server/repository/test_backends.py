"""Models of a Python-based backend: its code, their files."""

import textwrap

import pytest
from server.support.clock import ManualClock
from server.support.model_folders import VECTOR, write_model
from server.support.requests import Answers, a_request, array_tensor

from reference_server.observability.metric_registry import MetricRegistry
from reference_server.repository.loader import ModelLoader
from reference_server.repository.model_folders import ModelFolder
from reference_server.repository.model_ids import ModelId

CODE = """
    import helper
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            told = [__name__, helper.WHO, pb_utils.get_model_dir(), args["model_repository"]]
            self.told = np.array(told, dtype=object)

        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.told)])] * len(requests)
"""


def nothing_else(name, version):
    raise AssertionError(f"{name} is not asked for")


@pytest.fixture
def backends(tmp_path):
    folder = tmp_path / "backends" / "ge"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(textwrap.dedent(CODE))
    (folder / "helper.py").write_text("WHO = 'the backend'\n")
    return folder.parent


def test_the_backends_code_runs_on_the_models_files(models, backends):
    config = VECTOR.replace("TYPE_FP32 dims: [-1] }", "TYPE_STRING dims: [-1] }")
    path = write_model(models, "m", f'backend: "ge" {config}', None)
    (path / "1" / "helper.py").write_text("WHO = 'the model'\n")
    loader = ModelLoader(
        ManualClock(), MetricRegistry(), auto_complete_config=True, backend_directory=backends
    )
    folder = ModelFolder(ModelId("m"), path)
    served = loader.load(folder, loader.read_config(folder), 1, nothing_else)
    answers = Answers()
    served.infer(a_request(array_tensor("X", [b"x"], object), sink=answers))
    response = answers.wait()
    served.scheduler.close()
    assert response.error is None
    told = [element.decode() for element in response.outputs[0].array()]
    assert told == ["model", "the backend", str(path / "1"), str(path)]
    assert '"runtime":"model.py"' in served.config.json
