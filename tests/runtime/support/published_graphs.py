"""Published graphs, each with the config.pbtxt that it needs, and requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime

from ge_runtime.cli.config_pbtxt import read_runtime_config
from model_factory.published import (
    MAGIKA,
    NUDENET,
    RAPIDOCR,
    SILERO_VAD,
    WHEEL_CACHE,
    PublishedWheel,
    read_member,
)

Request = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class PublishedGraph:
    """A graph in a wheel."""

    wheel: PublishedWheel
    member: str
    config: str
    draw: Callable[[np.random.Generator], list[Request]]
    """The requests of one batch; for a recurrent graph of as many sequences, one step."""
    constants: Request = field(default_factory=dict)
    """Further inputs for ONNX Runtime."""
    states: Request = field(default_factory=dict)
    """State input to its initial value, with the graph's rows."""
    shares: bool = True
    """True if executions hold several requests."""

    def write(self, repository: Path, name: str = "published") -> Path:
        """Return the model's folder. Raises FileNotFoundError if the wheel is missing."""
        content = read_member(WHEEL_CACHE / self.wheel.file, self.member)
        version_dir = repository / name / "1"
        version_dir.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text('backend: "python"\n' + self.config)
        (version_dir / "model.onnx").write_bytes(content)
        return repository / name


def session_of(folder: Path) -> onnxruntime.InferenceSession:
    """The graph of a model's version 1 in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    path = str(folder / "1" / "model.onnx")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Solo:
    """Requests one by one in ONNX Runtime, with the states of their sequences."""

    def __init__(self, graph: PublishedGraph, folder: Path) -> None:
        self._graph, self._session = graph, session_of(folder)
        self._next = read_runtime_config(folder).states.outputs
        self._states: dict[int, Request] = {}

    def answer(self, sequence: int, request: Request) -> dict[str, np.ndarray]:
        """The outputs of the sequence's next request."""
        states = self._states.get(sequence, self._graph.states)
        names = [output.name for output in self._session.get_outputs()]
        given = {**request, **self._graph.constants, **states}
        results = dict(zip(names, self._session.run(names, given), strict=True))
        self._states[sequence] = {name: results[output] for name, output in self._next.items()}
        return results


def _parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "{key.replace("__", ".")}" value {{ string_value: "{text}" }} }}\n'
        for key, text in values.items()
    )


def _images(name: str, *shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[Request]]:
    return lambda rng: [{name: rng.standard_normal(shape, np.float32)} for shape in shapes]


def _chunks(*shape: int) -> Callable[[np.random.Generator], list[Request]]:
    return lambda rng: [{"input": 0.1 * rng.standard_normal(shape, np.float32)} for _ in range(3)]


def _files(rng: np.random.Generator) -> list[Request]:
    return [{"bytes": rng.integers(0, 257, (rows, 2048), np.int32)} for rows in (1, 3, 1, 2)]


_VOICE = """
    max_batch_size: 8
    input { name: "input" data_type: TYPE_FP32 dims: [ 576 ] }
    output { name: "output" data_type: TYPE_FP32 dims: [ 1 ] }
    sequence_batching { oldest { max_candidate_sequences: 8 } }
""" + _parameters(state__state="stateN", batch_axis__state="1", batch_axis__stateN="1")

_RAPIDOCR = "rapidocr_onnxruntime/models/"
_SILERO = "silero_vad/data/"

PUBLISHED = {
    "recognition of lines": PublishedGraph(
        RAPIDOCR,
        _RAPIDOCR + "ch_PP-OCRv4_rec_infer.onnx",
        """
            max_batch_size: 8
            input { name: "x" data_type: TYPE_FP32 dims: [ 3, 48, -1 ] }
            output { name: "softmax_11.tmp_0" data_type: TYPE_FP32 dims: [ -1, 6625 ] }
            dynamic_batching { }
        """
        + _parameters(
            **{
                "axes__x": "width",
                "axes.softmax_11.tmp_0": "max((width + 3) // 8, 1)",
                "limit__width": "320",
            }
        ),
        _images("x", *((1, 3, 48, width) for width in (160, 48, 160, 1, 320, 13, 48, 160))),
    ),
    "detection of lines": PublishedGraph(
        RAPIDOCR,
        _RAPIDOCR + "ch_PP-OCRv4_det_infer.onnx",
        """
            max_batch_size: 4
            input { name: "x" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }
            output { name: "sigmoid_0.tmp_0" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] }
            dynamic_batching { }
        """
        + _parameters(
            **{
                "axes__x": "height, width",
                "axes.sigmoid_0.tmp_0": "height, width",
                "limit__height": "224",
                "limit__width": "224",
                "align__height": "32",
                "align__width": "32",
            }
        ),
        _images("x", (1, 3, 64, 96), (1, 3, 224, 32), (1, 3, 64, 96), (2, 3, 64, 96)),
    ),
    "angle of lines": PublishedGraph(
        RAPIDOCR,
        _RAPIDOCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        """
            max_batch_size: 8
            input { name: "x" data_type: TYPE_FP32 dims: [ 3, 48, 192 ] }
            output { name: "save_infer_model/scale_0.tmp_1" data_type: TYPE_FP32 dims: [ 2 ] }
            dynamic_batching { }
        """,
        _images("x", *[(1, 3, 48, 192)] * 3, (2, 3, 48, 192)),
    ),
    "voice, state of two layers": PublishedGraph(
        SILERO_VAD,
        _SILERO + "silero_vad.onnx",
        _VOICE + _parameters(constant__sr="16000"),
        _chunks(1, 576),
        constants={"sr": np.array(16000)},
        states={"state": np.zeros((2, 1, 128), np.float32)},
    ),
    "voice, one row at a time": PublishedGraph(
        SILERO_VAD,
        _SILERO + "silero_vad_openvino_16k.onnx",
        _VOICE,
        _chunks(1, 576),
        shares=False,
        states={"state": np.zeros((2, 1, 128), np.float32)},
    ),
    "voice, many chunks without a batch": PublishedGraph(
        SILERO_VAD,
        _SILERO + "silero_vad_16k_sequence.onnx",
        """
            max_batch_size: 0
            input { name: "input" data_type: TYPE_FP32 dims: [ -1, 576 ] }
            output { name: "speech_probs" data_type: TYPE_FP32 dims: [ -1 ] }
            sequence_batching { oldest { max_candidate_sequences: 8 } }
        """
        + _parameters(
            axes__input="chunks",
            axes__speech_probs="chunks",
            limit__chunks="20",
            state__h="hn",
            state__c="cn",
        ),
        _chunks(7, 576),
        shares=False,
        states={name: np.zeros((1, 1, 128), np.float32) for name in ("h", "c")},
    ),
    "kinds of files": PublishedGraph(
        MAGIKA,
        "magika/models/standard_v3_3/model.onnx",
        """
            max_batch_size: 8
            input { name: "bytes" data_type: TYPE_INT32 dims: [ 2048 ] }
            output { name: "target_label" data_type: TYPE_FP32 dims: [ 214 ] }
            dynamic_batching { }
        """
        + _parameters(range__bytes="0..256"),
        _files,
    ),
    "detection in images": PublishedGraph(
        NUDENET,
        "nudenet/320n.onnx",
        """
            max_batch_size: 4
            input { name: "images" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }
            output { name: "output0" data_type: TYPE_FP32 dims: [ 22, -1 ] }
            dynamic_batching { }
        """
        + _parameters(
            axes__images="height, width",
            axes__output0="(height // 8) * (width // 8) + (height // 16) * (width // 16) + "
            "(height // 32) * (width // 32)",
            limit__height="320",
            limit__width="320",
            align__height="32",
            align__width="32",
        ),
        _images("images", (1, 3, 64, 96), (1, 3, 320, 320), (1, 3, 64, 96), (2, 3, 64, 96)),
    ),
}
