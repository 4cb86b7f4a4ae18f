"""Loading one version: scheduler, instances, labels, cache, warm-up, and backends in Python."""

import textwrap
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from server.support.clock import ManualClock
from server.support.configs import model_config
from server.support.model_folders import OPTIONS, VECTOR, write_model
from server.support.requests import Answers, a_request, array_tensor

from reference_server.core.errors import Code, ServerError
from reference_server.core.health import Health
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.options import LatencyMetrics, MetricsOptions
from reference_server.repository.loader import ModelLoader
from reference_server.repository.model_folders import ModelFolder, ModelId
from reference_server.scheduling.response_cache import ResponseCache

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
    loaded, clock = [], ManualClock()

    def load_one(path, version=1, *, cache_bytes=None, summaries=False):
        metrics = MetricsOptions(latencies=LatencyMetrics(summaries=summaries))
        cache = None if cache_bytes is None else ResponseCache(cache_bytes, clock)
        options = replace(OPTIONS, metrics=metrics)
        loader = ModelLoader(clock, MetricRegistry(), options, cache=cache)
        folder = ModelFolder(ModelId(path.name), path)
        served = loader.load(folder, loader.read_config(folder), version, unlabelled)
        loaded.append(served)
        return served

    yield load_one
    for served in loaded:
        served.scheduler.close()


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


CACHED = VECTOR + "response_cache { enable: true }"
WARM = """
    model_warmup { name: "w" batch_size: 1 count: 2
      inputs { key: "X" value { data_type: TYPE_FP32 dims: [2] zero_data: true } } }
"""


def hits_of_two(served):
    """Return the number of cache hits of two equal requests."""
    for _ in range(2):
        answers = Answers()
        served.infer(a_request(array_tensor("X", [1, 2], np.float32), sink=answers))
        assert answers.wait().error is None
    return served.statistics.snapshot().cache_hit.count


@pytest.mark.parametrize(
    ("text", "cache_bytes", "hits"),
    [(CACHED, 10_000, 1), (CACHED, None, 0), (VECTOR, 10_000, 0)],
)
def test_cache_is_used_if_present_and_enabled_by_the_model(models, load, text, cache_bytes, hits):
    served = load(write_model(models, "m", text), cache_bytes=cache_bytes)
    assert hits_of_two(served) == hits


def test_loaded_model_is_warmed_up(models, load):
    served = load(write_model(models, "m", CACHED + WARM), cache_bytes=10_000)
    snapshot = served.statistics.snapshot()
    assert (snapshot.inference_count, snapshot.cache_miss.count) == (2, 0)


def test_failed_warm_up_fails_the_load(models, load):
    text = VECTOR + WARM.replace("batch_size: 1", "batch_size: 2")
    with pytest.raises(ServerError, match="failed to run warmup sample 'w': batch size 2 for"):
        load(write_model(models, "m", text))


def test_quantiles_enable_latency_summaries(models, load):
    path = write_model(models, "m", VECTOR)
    assert load(path).statistics.summaries() == {}
    assert load(path, summaries=True).statistics.summaries().keys() == {
        "nv_inference_request_summary_us",
        "nv_inference_queue_summary_us",
        "nv_inference_compute_input_summary_us",
        "nv_inference_compute_infer_summary_us",
        "nv_inference_compute_output_summary_us",
    }


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
    served = loader.load(folder, loader.read_config(folder), 1, unlabelled)
    answers = Answers()
    served.infer(a_request(array_tensor("X", [b"x"], object), sink=answers))
    response = answers.wait()
    served.scheduler.close()
    assert response.error is None
    facts = [element.decode() for element in response.outputs[0].array()]
    assert facts == ["model", "the backend", str(path / "1"), str(path)]
    assert '"runtime":"model.py"' in served.config.json
