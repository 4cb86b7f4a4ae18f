"""Loading one version: scheduler, instances, labels."""

from types import SimpleNamespace

import pytest
from server.support.clock import ManualClock
from server.support.configs import ensemble, model_config, step
from server.support.model_folders import OPTIONS, VECTOR, write_ensemble, write_model
from server.support.requests import Answers, a_request, array_tensor

from reference_server.core.errors import Code, ServerError
from reference_server.core.health import Health
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.repository.loader import ModelLoader
from reference_server.repository.model_folders import ModelFolder, ModelId
from reference_server.scheduling.ensemble import EnsembleScheduler
from reference_server.scheduling.instance_scheduler import InstanceScheduler

LABELLED = """
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] label_filename: "labels.txt" }
"""


def unlabelled(name, version):
    """Return a model of a step, with the attributes that the loader uses."""
    return SimpleNamespace(labels={}, config=model_config(VECTOR, name), health=Health())


@pytest.fixture
def load():
    """A function that loads a version of the model in a folder; it is closed after the test."""
    loaded = []

    def load_one(path, version=1):
        loader = ModelLoader(ManualClock(), MetricRegistry(), OPTIONS)
        folder = ModelFolder(ModelId(path.name), path)
        served = loader.load(folder, loader.read_config(folder), version, unlabelled)
        loaded.append(served)
        return served

    yield load_one
    for served in loaded:
        served.scheduler.close()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 1),
        ("instance_group { count: 3 }", 3),
        ("instance_group { count: 2 } instance_group { }", 3),
    ],
)
def test_number_of_instances(models, load, text, count):
    served = load(write_model(models, "m", VECTOR + text))
    assert isinstance(served.scheduler, InstanceScheduler)
    assert f"of {count} instances" in repr(served.scheduler)


def test_an_ensemble_has_none(models, load):
    path = write_ensemble(models, "e", ensemble(step("m", {"X": "I"}, {"Y": "O"})))
    assert isinstance(load(path).scheduler, EnsembleScheduler)


def test_loaded_version_is_reported(models, load):
    served = load(write_model(models, "m", versions=(1, 3)), version=3)
    assert (served.version, served.statistics.snapshot().version) == (3, 3)


ARGUMENTS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.text = "|".join([
                args["model_name"], args["model_version"], args["model_instance_name"],
                args["model_repository"],
            ])

        def execute(self, requests):
            text = np.array([self.text.encode()], dtype=object)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", text)]) for _ in requests]
"""


def test_initialize_arguments(models, load):
    text = 'output { name: "Y" data_type: TYPE_STRING dims: [1] } instance_group { name: "g" }'
    path = write_model(models, "m", text, ARGUMENTS, versions=(2,))
    answers = Answers()
    load(path, version=2).infer(a_request(sink=answers))
    (output,) = answers.wait().outputs
    assert output.array().tolist() == [f"m|2|g_0|{path}".encode()]


def test_outputs_are_reshaped_to_the_configured_dims(models, load):
    text = """
        input { name: "X" data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] } }
        output { name: "Y" data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] } }
    """
    answers = Answers()
    served = load(write_model(models, "m", text))
    served.infer(a_request(array_tensor("X", [1, 2, 3, 4], "float32"), sink=answers))
    (output,) = answers.wait().outputs
    assert output.array().tolist() == [1, 2, 3, 4]


# ---------------------------------------------------------------------------------------- labels


def test_labels_are_split_at_line_feeds(models, load):
    path = write_model(models, "m", LABELLED, files={"labels.txt": "cat\n\nbär\x85\u2028x\n"})
    assert load(path).labels == {"Y": ("cat", "", "bär\x85\u2028x", "")}


STARTING = """
    class TritonPythonModel:
        def initialize(self, args):
            open(args["model_repository"] + "/started", "x").close()
"""


def test_missing_label_file_fails_before_initialize(models, load):
    path = write_model(models, "m", LABELLED, STARTING)
    with pytest.raises(ServerError) as caught:
        load(path)
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message == (
        f"failed to open text file for read {path / 'labels.txt'}: No such file or directory"
    )
    assert not (path / "started").exists()


def test_labels_must_be_utf8(models, load):
    path = write_model(models, "m", LABELLED)
    (path / "labels.txt").write_bytes(b"\xff")
    with pytest.raises(ServerError, match="failed to read label file"):
        load(path)


# -------------------------------------------------------------------------------------- batching


COUNTING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            size = np.array([[len(requests)]], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", size)]) for _ in requests]
"""


@pytest.mark.parametrize(
    ("text", "together"),
    [
        ("", 1),
        ("dynamic_batching { max_queue_delay_microseconds: 3600000000 }", 3),
        (
            "dynamic_batching { preferred_batch_size: [2] "
            "max_queue_delay_microseconds: 3600000000 }",
            2,
        ),
    ],
    ids=["no batcher", "batcher", "preferred size"],
)
def test_configured_batcher_is_used(models, load, text, together):
    config = f"""
        max_batch_size: 3
        input {{ name: "X" data_type: TYPE_FP32 dims: [1] }}
        output {{ name: "Y" data_type: TYPE_FP32 dims: [1] }}
        {text}
    """
    served = load(write_model(models, "m", config, COUNTING))
    answers = [Answers() for _ in range(together)]
    for sink in answers:
        served.infer(a_request(array_tensor("X", [[1]], "float32"), sink=sink))
    for sink in answers:
        (output,) = sink.wait().outputs
        assert output.array().tolist() == [[together]]
