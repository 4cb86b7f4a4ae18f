"""Proves the models of an exported folder: compares their answers with a plain computation."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ge_runtime.discovery.export import TOKENIZER, Kind
from ge_runtime.discovery.graph import Graph
from ge_runtime.discovery.pipeline import Pipeline, Step
from ge_runtime.discovery.proof import Proof, plain_inputs, relative_distance
from ge_runtime.errors import RuntimeFault
from ge_runtime.runtime import Runtime
from ge_runtime.specs import Array, DType, Tensors, TensorSpec
from ge_runtime.steps.answers import LENGTHS, VALUES, AnswerStep
from ge_runtime.steps.pictures import PictureStep
from ge_runtime.steps.samples import SampleStep
from ge_runtime.steps.texts import TextStep

_LONG: Final = "word "
"""Repeated until it has more tokens than the model allows."""
_TEXTS: Final = (
    "Where is my parcel?",
    "a",
    "It was charged twice, and the second payment has not been returned since last Tuesday. " * 3,
    "退款已经十天了还没有到账。 Où est mon colis ?",
    _LONG,
    "Thank you!",
)
_SIDES: Final = ((60, 80), (300, 200), (33, 31))
"""Height and width of images."""
_SAMPLES_MOST: Final = 8000
_STEPS: Final[Mapping[str, Any]] = {
    "TextStep": TextStep,
    "PictureStep": PictureStep,
    "SampleStep": SampleStep,
    "AnswerStep": AnswerStep,
}


def prove_pipeline(
    pipeline: Pipeline, graph: Graph, repository: Path, configs: Mapping[str, Mapping[str, Any]]
) -> Proof:
    """Open all models, answer requests alone and together, and compare with a plain computation.

    Raises:
        RuntimeFault: A model does not load, or an answer differs.
    """
    runtime = Runtime.open(
        repository / pipeline.steps[1].name / "1",
        configs[pipeline.steps[1].name],
        instance_name="init",
    )
    try:
        models = [_open_step(step, repository, configs) or runtime.infer for step in pipeline.steps]
        requests = _requests(pipeline, runtime)
        before = runtime.counts()
        together = _answers(pipeline, models, requests)
        launches = runtime.counts().since(before).launches
        alone = [_answers(pipeline, models, [request])[0] for request in requests]
        plain = _Plain(pipeline, graph, runtime, models)
        distance = max(
            plain.distance(request, answer)
            for answers in (together, alone)
            for request, answer in zip(requests, answers, strict=True)
        )
    finally:
        runtime.close()
    return Proof(len(requests), launches, distance, graph.engine)


Model = Callable[[Sequence[Tensors]], Sequence[Any]]


def _open_step(
    step: Step, repository: Path, configs: Mapping[str, Mapping[str, Any]]
) -> Model | None:
    """Return a function from a batch of requests to answers; None for the model with the graph."""
    if step.model is None:
        return None
    args = {
        "model_config": json.dumps(configs[step.name]),
        "model_repository": str(repository / step.name),
        "model_version": "1",
    }
    opened = _STEPS[step.model[3]].open(args)
    if step.model[1] == "answer_batch":
        batch: Model = opened
        return batch
    return lambda requests: [opened(one) for one in requests]


def _requests(pipeline: Pipeline, runtime: Runtime) -> list[dict[str, Array]]:
    """Return requests of one row and, if the model allows it, of two rows."""
    rng = np.random.default_rng(5)
    kind, count = pipeline.export.kind, min(2, pipeline.rows)
    if kind is Kind.AUDIO:
        config = runtime.config
        (axis,) = config.limits or ("",)
        if not axis:
            shapes = [(1, *config.inputs[0].shape({}))] * 3
        else:
            least = config.axis_sizes.minimums[axis]
            most = min(config.limits[axis], max(_SAMPLES_MOST, 2 * least))
            shapes = [(rows, int(rng.integers(least, most + 1))) for rows in (1, count, 1)]
        return [{"audio": rng.uniform(-1, 1, shape).astype(np.float32)} for shape in shapes]
    items: list[bytes] = (
        [text.encode() for text in _texts(pipeline)]
        if kind is Kind.TEXT
        else [_png(rng.integers(0, 256, (*sides, 3)).astype(np.uint8)) for sides in _SIDES]
    )
    names = [own.name for own in pipeline.inputs]
    column = np.array(items, object)[:, None]
    return [
        {name: np.roll(column, -at, 0)[start : start + rows] for at, name in enumerate(names)}
        for start in range(len(items))
        for rows in {1, count}
        if start + rows <= len(items)
    ]


def _texts(pipeline: Pipeline) -> list[str]:
    parameters = pipeline.steps[0].configuration.parameters
    (tokens,) = (int(own.value) for own in parameters if own.key == "max_tokens")
    return [text * 2 * tokens if text is _LONG else text for text in _TEXTS]


def _png(pixels: Array) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _answers(
    pipeline: Pipeline, models: Sequence[Model], requests: Sequence[Tensors]
) -> list[dict[str, Array]]:
    """Execute the written ensemble; return all tensors of each request. Raises RuntimeFault."""
    tensors = [dict(request) for request in requests]
    for step, model in zip(pipeline.steps, models, strict=True):
        given = [{name: own[source] for name, source in step.inputs.items()} for own in tensors]
        for own, found in zip(tensors, model(given), strict=True):
            if isinstance(found, Exception):
                raise found
            own.update({target: found[name] for name, target in step.outputs.items()})
    return tensors


class _Plain:
    """Computes the answer to one row with the package `tokenizers`, ONNX Runtime and NumPy."""

    def __init__(
        self, pipeline: Pipeline, graph: Graph, runtime: Runtime, models: Sequence[Model]
    ) -> None:
        self._pipeline, self._graph, self._config = pipeline, graph, runtime.config
        self._models, self._tokenizer = models, None
        if pipeline.export.kind is Kind.TEXT:
            from tokenizers import Tokenizer

            parameters = {own.key: own.value for own in pipeline.steps[0].configuration.parameters}
            self._clean = parameters.get("clean", "")
            self._prompt = parameters.get("prompt", "")
            self._tokenizer = Tokenizer.from_file(str(pipeline.export.folder / TOKENIZER))
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(
                int(parameters["max_tokens"]), direction=parameters.get("truncation", "right")
            )

    def distance(self, request: Tensors, answer: Tensors) -> float:
        """Return the largest relative difference of an answer. Raises RuntimeFault."""
        largest = 0.0
        for row in range(len(next(iter(request.values())))):
            given = self._given({name: own[row : row + 1] for name, own in request.items()})
            values = self._values(given)
            count = next(iter(given.values())).shape[1]
            for output in self._pipeline.steps[1].outputs:
                found = answer[output][row]
                if self._pipeline.export.kind is Kind.TEXT and values[output].shape[:1] == (count,):
                    found = found[:count]
                largest = max(largest, _distance(output, found, values[output]))
                values[output] = found
            for name, expected in self._results(values, count).items():
                found = answer[name][row][: len(expected)]
                largest = max(largest, _distance(name, found, expected))
        return largest

    def _given(self, row: Tensors) -> Tensors:
        """Return the graph's inputs for one row."""
        if self._tokenizer is None:
            (found,) = self._models[0]([row])
            own: Tensors = found
            return own
        texts = [column[0, 0].decode() for column in row.values()]
        texts[0] = self._prompt + texts[0]
        texts = [text.strip() if "strip" in self._clean else text for text in texts]
        texts = [text.lower() if "lower" in self._clean else text for text in texts]
        encoding = self._tokenizer.encode(*texts)
        fields = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        return {
            spec.name: np.array([fields[spec.name]], spec.dtype.numpy)
            for spec in self._config.inputs
            if spec.name != LENGTHS
        }

    def _values(self, given: Tensors) -> dict[str, Array]:
        """Execute the graph for one row; return its outputs without the dim of rows."""
        sizes = {
            axis: size
            for spec in self._config.inputs
            if spec.name in given
            for axis, size in zip(spec.dims, given[spec.name].shape[1:], strict=True)
            if isinstance(axis, str)
        }
        found = self._graph.run(plain_inputs(self._graph.inputs, self._config, given, sizes))
        if found is None:
            raise RuntimeFault(f"ONNX Runtime fails at {sizes}: {self._graph.last_error}")
        places = {name: self._config.batch_axes.of(name) for name in found}
        # A graph with a fixed number of rows gets copies of the row: the first result is enough.
        return {
            name: own if places[name] is None else np.take(own, 0, places[name])
            for name, own in found.items()
        }

    def _results(self, values: Tensors, count: int) -> Tensors:
        """Return the outputs of the last step for the values of one row with `count` tokens."""
        if len(self._models) < 3:  # the graph's outputs are the answer
            return {}
        after = self._pipeline.steps[2]
        own = values[after.inputs[VALUES]]
        rules = {one.key: one.value for one in after.configuration.parameters}
        if not any(one.name == "embedding" for one in after.configuration.outputs):
            given = {VALUES: own[None], LENGTHS: np.array([[count]], np.int32)}
            (found,) = self._models[2]([{name: given[name] for name in after.inputs}])
            return {name: one[0] for name, one in found.items()}
        own = own.astype(np.float64)
        if "pooling" in rules:
            pooled = {"mean": own.mean(0), "max": own.max(0), "cls": own[0], "lasttoken": own[-1]}
            own = pooled[rules["pooling"]]
        length = float(np.sqrt((own**2).sum())) if "normalize" in rules else 1.0
        return {"embedding": own / length}


def _distance(name: str, found: Array, expected: Array) -> float:
    dtype = next(own for own in DType if own.numpy == found.dtype)
    expected = expected.astype(found.dtype)
    return relative_distance(TensorSpec(name, dtype, ()), found, expected, "the plain computation")
