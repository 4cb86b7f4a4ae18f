"""Gather and scatter of images by ge_runtime, held against memcpy of the same bytes.

Imported by `benchmarks.ragged`, whose part `images` this is.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

from benchmarks import traces
from benchmarks.instruments import ONE_EXECUTION, measure, open_runtime, print_table, watch
from ge_runtime.runtime import Runtime
from model_factory.onnx_graph import GraphWriter

MIB = 2**20
BATCH = 8
BATCHES = 10


def compare_with_memcpy(seed: int) -> list[dict]:
    """Print a row for images of one size, and two for images of log-normal sizes."""
    print(f"\n=== images: 3 channels of FP32, batches of {BATCH}, the graph not executed")
    ragged = traces.images(BATCH * BATCHES, 3, seed)
    side = traces.SIDES.median
    equal = [np.ones((1, 3, side, side), np.float32) for _ in range(BATCH * BATCHES)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        write_copying_graph(path / "model.onnx")
        results = []
        for name, items, parameters in (
            ("of one size", equal, {}),
            ("log-normal, in one execution", ragged, ONE_EXECUTION),
            ("log-normal, as planned", ragged, {}),
        ):
            runtime = open_runtime(path, copying_config(), parameters)
            results.append(copy_rate(name, runtime, traces.batches(items, BATCH)))
            runtime.close()
    print_table(
        [
            "images",
            "MiB",
            "executions",
            "padding",
            "ms",
            "GB/s",
            "memcpy GB/s",
            "of memcpy",
            "faults",
        ],
        [
            [
                row["images"],
                f"{row['bytes'] / MIB:.1f}",
                f"{row['executions_per_batch']:.1f}",
                f"{row['padding_share']:.3f}",
                f"{row['seconds'] * 1e3:.2f}",
                f"{row['bytes'] / row['seconds'] / 1e9:.2f}",
                f"{row['bytes'] / row['memcpy_seconds'] / 1e9:.2f}",
                f"{row['memcpy_seconds'] / row['seconds']:.2f}",
                f"{row['page_faults']:.0f}",
            ]
            for row in results
        ],
    )
    print("MiB: of a batch's images, once into the batch and once out of it; so GB/s, too")
    return results


def write_copying_graph(path: Path) -> None:
    """A graph that gives back its images."""
    graph = GraphWriter()
    dims = ["batch", 3, "height", "width"]
    image = graph.input("image", np.float32, dims)
    graph.node("Identity", image, name=graph.output("copy", np.float32, dims))
    path.write_bytes(graph.model("copying", "images as they are").SerializeToString())


def copying_config() -> ModelConfig:
    image = {"data_type": "TYPE_FP32", "dims": [3, -1, -1]}
    config = ModelConfig(
        name="copying",
        backend="python",
        max_batch_size=BATCH,
        input=[ModelInput(name="image", allow_ragged_batch=True, **image)],
        output=[ModelOutput(name="copy", **image)],
    )
    largest = str(traces.SIDES.largest)
    parameters = {"axes.image": "height,width", "axes.copy": "height,width"}
    parameters |= {"padding.height": "neutral", "padding.width": "neutral"}  # nothing looks at it
    parameters |= {"limit.height": largest, "limit.width": largest}
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config


def copy_rate(name: str, runtime: Runtime, batches: list) -> dict:
    """Medians over three rounds of the batches; memcpy takes turns with the runtime."""
    nbytes = [2 * sum(image.nbytes for image in batch) for batch in batches]
    joined, answers = np.ones((2, max(nbytes) // 2), np.uint8)
    calls, memcpy = [], []
    with watch("image", execute=False) as seen:
        for _ in range(3):
            for batch in batches:
                memcpy.append(copy_plainly(batch, joined, answers))
                requests = [{"image": image} for image in batch]
                calls.append(measure(seen, lambda r=requests: runtime.infer(r)))
    mean = statistics.mean(nbytes)
    useful = 3 * sum(image.size for batch in batches for image in batch)
    return {
        "images": name,
        "bytes": mean,
        "executions_per_batch": seen.executions / len(calls),
        "padding_share": 1 - useful / seen.elements,
        "seconds": mean * per_byte([call.seconds for call in calls], nbytes),
        "memcpy_seconds": mean * per_byte(memcpy, nbytes),
        "page_faults": statistics.median(call.page_faults for call in calls),
    }


def copy_plainly(batch: list, joined: np.ndarray, answers: np.ndarray) -> float:
    """Seconds for the images one after another into memory that is there, and out of it again."""
    started = time.perf_counter()
    end = 0
    for image in batch:
        start, end = end, end + image.nbytes
        np.copyto(joined[start:end], image.reshape(-1).view(np.uint8))
    np.copyto(answers[:end], joined[:end])
    return time.perf_counter() - started


def per_byte(seconds: list[float], nbytes: list[int]) -> float:
    """The median over rounds of batches of these sizes."""
    return statistics.median(
        taken / size for taken, size in zip(seconds, itertools.cycle(nbytes), strict=False)
    )
