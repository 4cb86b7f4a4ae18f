"""Loading with a response cache, a warm-up and latency summaries."""

from dataclasses import replace

import numpy as np
import pytest
from server.support.clock import ManualClock
from server.support.model_folders import OPTIONS, VECTOR, write_model
from server.support.requests import Answers, a_request, array_tensor

from reference_server.core.errors import ServerError
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.options import LatencyMetrics, MetricsOptions
from reference_server.repository.loader import ModelLoader
from reference_server.repository.model_folders import ModelFolder, ModelId
from reference_server.scheduling.response_cache import ResponseCache

CACHED = VECTOR + "response_cache { enable: true }"
WARM = """
    model_warmup { name: "w" batch_size: 1 count: 2
      inputs { key: "X" value { data_type: TYPE_FP32 dims: [2] zero_data: true } } }
"""


@pytest.fixture
def load():
    """A function that loads the model in a folder; it is closed after the test."""
    loaded, clock = [], ManualClock()

    def load_one(path, *, cache_bytes=None, summaries=False):
        metrics = MetricsOptions(latencies=LatencyMetrics(summaries=summaries))
        loader = ModelLoader(
            clock,
            MetricRegistry(),
            replace(OPTIONS, auto_complete_config=False, metrics=metrics),
            cache=None if cache_bytes is None else ResponseCache(cache_bytes, clock),
        )
        folder = ModelFolder(ModelId(path.name), path)
        served = loader.load(folder, loader.read_config(folder), 1, None)
        loaded.append(served)
        return served

    yield load_one
    for served in loaded:
        served.scheduler.close()


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
