"""Chooses by measured error which layers of a graph are computed in INT8, and in which form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from ge_runtime.engines.onnx import dtype_of
from ge_runtime.engines.onnx_session import Session, open_session
from ge_runtime.errors import ArtifactFault
from ge_runtime.rewriting.graph import ModelProto, import_onnx, replacing, save
from ge_runtime.rewriting.int8 import (
    MIDDLE,
    Form,
    Layer,
    computed,
    find_layers,
    quantize,
    quantized_weight,
    read_model,
)
from ge_runtime.specs import Array, DType, Tensors

LEAST_COSINE: Final = 0.9995
"""Least allowed mean cosine between the outputs of both graphs, for a user's sample."""
LEAST_GENERATED: Final = 0.9993
"""Least allowed mean cosine for random inputs: random token ids have 1.5 times the error of real
texts (MiniLM)."""
_LOW_ZERO: Final = 24
"""Zero point for activations that are mostly positive: GELU is at least -0.17."""
_MIGRATION: Final = 0.65
"""Exponent of a channel's activations in its divisor; 0.5 and 0.8 have 1.1 times the error."""
_BLOCKS: Final = 4
"""Blocks of a row in layers with more inputs than outputs, where adding blocks costs little."""
_WORTH: Final = 0.7
"""A form replaces a cheaper form if its error is below this share of the cheaper form's error."""
_TABLE_SHARE: Final = 0.05
"""Share of the allowed error for all embeddings together: they save memory, but no time."""
_ROWS: Final = 1024
"""At most this many rows of activations are used to choose a form."""
_LADDER: Final = (24, 64, 128, 224, 512, 16000, 8, 4, 1)
"""Sizes of free dims, tried in this order until an execution succeeds."""
_IDS: Final = (10, 2)
"""Exclusive limits of random integers, tried after the size of the largest embedding."""
_ATTEMPTS: Final = 8
_SMALLEST_STEP: Final = 0.97
"""Each attempt allows at most this share of the previous sum of errors: one or two more layers stay
FP32."""


class NoLayers(ArtifactFault):
    """The graph has no linear layer that is large enough for INT8."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A graph in INT8, and its measured error."""

    model: ModelProto
    chosen: tuple[Layer, ...]
    """The layers in INT8."""
    kept: tuple[Layer, ...]
    """The layers that stay FP32."""
    cosine: float
    """The mean cosine between the outputs of both graphs."""

    def __str__(self) -> str:
        linear = [layer for layer in self.chosen if not layer.is_table]
        total = [layer for layer in (*self.chosen, *self.kept) if not layer.is_table]
        tables = len(self.chosen) - len(linear)
        share = sum(own.weight.size for own in linear) / sum(own.weight.size for own in total)
        return (
            f"{len(linear)} of {len(total)} linear layers ({share:.0%} of their weights)"
            + (f" and {tables} embedding(s)" if tables else "")
            + f" in INT8 with a scale per row, mean cosine to FP32 {self.cosine:.5f}"
        )


def quantized(
    path: Path, sample: Tensors | None = None, least_cosine: float | None = None, threads: int = 0
) -> Quantized:
    """Convert the graph in `path` to INT8.

    Args:
        path: A graph in FP32, or an output of `quantize_dynamic`.
        sample: Inputs of the graph by name; default: random inputs.
        least_cosine: Least allowed mean cosine between the outputs of both graphs. Default:
            LEAST_COSINE with a sample, LEAST_GENERATED without.
        threads: Threads of an execution; 0: all cores.

    Raises:
        NoLayers: The graph has no large linear layer.
        ArtifactFault: The graph cannot be read or executed, or no layer can be INT8.
    """
    model = read_model(path)
    layers = find_layers(model)
    if all(layer.is_table for layer in layers):
        raise NoLayers(
            f"{path}: found no linear layer, expected MatMul, Gemm or Conv of width 1 with "
            "constant FP32 weights of at least 64 x 64"
        )
    least = least_cosine or (LEAST_GENERATED if sample is None else LEAST_COSINE)
    with TemporaryDirectory(prefix="ge_runtime_int8_") as scratch:
        trial = _Trial(model, layers, Path(scratch), path, threads, sample)
        forms = trial.forms()
        effects = {layer.result: trial.effect(layer, forms) for layer in layers}
        allowed = 1 - least
        for _ in range(_ATTEMPTS):
            chosen = _within(layers, effects, allowed)
            if all(layer.is_table for layer in chosen):
                break
            found = import_onnx().ModelProto()
            found.CopyFrom(model)
            quantize(found, chosen, forms)
            error = trial.error_of(found)
            if error <= 1 - least:
                kept = tuple(layer for layer in layers if layer not in chosen)
                return Quantized(found, tuple(chosen), kept, 1 - error)
            allowed *= min(_SMALLEST_STEP, (1 - least) / error)
    raise ArtifactFault(
        f"{path}: found no linear layer whose INT8 keeps a mean cosine of {least} to FP32, "
        "expected one; lower it with --least-cosine, or give real inputs with --sample"
    )


def write_int8(
    path: Path,
    target: Path,
    *,
    sample: Tensors | None = None,
    least_cosine: float | None = None,
    threads: int = 0,
) -> Quantized:
    """Write the result of `quantized` to `target`, which is replaced atomically.

    Raises ArtifactFault or OSError.
    """
    found = quantized(path, sample, least_cosine, threads)
    try:
        with replacing(target) as own:
            save(found.model, path, own)
    except ValueError as error:
        raise ArtifactFault(
            f"{path}: found a graph above 2 GiB in INT8, expected a smaller one"
        ) from error
    return found


def _within(layers: Sequence[Layer], effects: Mapping[str, float], allowed: float) -> list[Layer]:
    """Choose layers whose effects sum to at most `allowed`, by their effect per weight."""
    chosen: list[Layer] = []
    total = 0.0
    tables = _TABLE_SHARE * allowed
    for layer in sorted(layers, key=lambda own: effects[own.result] / own.weight.size):
        effect = effects[layer.result]
        if layer.is_table:
            if effect <= tables:
                tables -= effect
                chosen.append(layer)
        elif total + effect <= allowed:
            total += effect
            chosen.append(layer)
    return [layer for layer in layers if layer in chosen]  # in the graph's order


class _Trial:
    """Executes a graph, with and without the INT8 errors of single layers."""

    def __init__(
        self,
        model: ModelProto,
        layers: Sequence[Layer],
        scratch: Path,
        origin: Path,
        threads: int,
        sample: Tensors | None,
    ) -> None:
        self._layers = layers
        self._scratch = scratch
        self._origin = origin
        self._threads = threads
        self._results = [value.name for value in model.graph.output]
        probe = import_onnx().ModelProto()
        probe.CopyFrom(model)
        self._no_errors = {_error_name(layer): np.zeros((), np.float32) for layer in layers}
        _add_errors(probe, layers)
        self._session = self._open(probe, "probe.onnx")
        given = [own for own in self._session.get_inputs() if own.name not in self._no_errors]
        tables = [len(layer.weight) for layer in layers if layer.is_table]
        generated = (
            [
                _random_inputs(given, ids, own, rows)
                for rows, own in ((4, size), (2, max(1, size // 3)))
            ]
            for size in _LADDER
            for ids in (max(tables, default=_IDS[0]), *_IDS)
        )
        failure = ""
        for feeds in [[dict(sample)]] if sample else generated:
            self._feeds = feeds
            try:
                self._expected = [self._run(feed) for feed in feeds]
                return
            except Exception as error:  # onnxruntime raises classes that are not public
                failure = failure or " ".join(str(error).split())[:200]
        raise ArtifactFault(
            f"{origin}: found a graph that fails ({failure}), expected outputs for the inputs; "
            "give valid inputs with --sample"
        )

    def forms(self) -> dict[str, Form]:
        """Choose the form of each source by its measured error."""
        groups: dict[str, list[Layer]] = {}
        for layer in self._layers:
            if not layer.is_table:
                groups.setdefault(layer.source, []).append(layer)
        return {source: self._form(group) for source, group in groups.items()}

    def _form(self, group: Sequence[Layer]) -> Form:
        rows = np.concatenate([group[0].rows(own) for own in self._sources(group[0])])[:_ROWS]
        exact = [rows @ layer.weight for layer in group]

        def error(form: Form) -> float:
            return sum(
                float(((computed(layer, rows, form) - own) ** 2).sum() / ((own**2).sum() + 1e-30))
                for layer, own in zip(group, exact, strict=True)
            )

        best = Form()
        least = error(best)
        forms = [Form(_LOW_ZERO), Form(MIDDLE, _divisors(rows, group))]
        inputs, results = rows.shape[1], sum(layer.weight.shape[1] for layer in group)
        if inputs >= 2 * results and inputs % _BLOCKS == 0:
            forms += [Form(blocks=_BLOCKS), Form(_LOW_ZERO, blocks=_BLOCKS)]
        for form in forms:
            found = error(form)
            if found < _WORTH * least:
                best, least = form, found
        return best

    def effect(self, layer: Layer, forms: Mapping[str, Form]) -> float:
        """Return the error of the outputs if only this layer is INT8."""
        errors = []
        for feed, source, expected in zip(
            self._feeds, self._sources(layer), self._expected, strict=True
        ):
            if layer.is_table:
                q, scale = quantized_weight(layer.weight, axis=1)
                delta = (q * scale - layer.weight)[source]
            else:
                rows = layer.rows(source)
                form = forms[layer.source]
                delta = computed(layer, rows, form) - rows @ layer.weight
                outer = source.swapaxes(1, 2) if layer.is_convolution else source
                delta = delta.reshape(*outer.shape[:-1], -1)
                delta = delta.swapaxes(1, 2) if layer.is_convolution else delta
            found = self._run({**feed, _error_name(layer): delta.astype(np.float32)})
            errors.append(_distance(found, expected))
        return float(np.mean(errors))

    def error_of(self, model: ModelProto) -> float:
        """Return the error of another graph's outputs."""
        session = self._open(model, "int8.onnx")
        errors = [
            _distance(session.run(self._results, feed), expected)
            for feed, expected in zip(self._feeds, self._expected, strict=True)
        ]
        return float(np.mean(errors))

    def _open(self, model: ModelProto, name: str) -> Session:
        save(model, self._origin, self._scratch / name)
        return open_session(self._scratch / name, self._threads, ["CPUExecutionProvider"])

    def _run(self, feed: Tensors, results: Sequence[str] = ()) -> list[Array]:
        """Execute the graph with the given errors; return its outputs, or other results."""
        feeds = {**self._no_errors, **feed}
        found: list[Array] = self._session.run(list(results or self._results), feeds)
        return found

    def _sources(self, layer: Layer) -> list[Array]:
        """Return the layer's input in each execution."""
        found = []
        for feed in self._feeds:
            # Sources that are inputs of the graph need no execution.
            own = feed.get(layer.source)
            found.append(self._run(feed, [layer.source])[0] if own is None else own)
        return found


def _error_name(layer: Layer) -> str:
    return f"int8/error/{layer.result}"


def _add_errors(model: ModelProto, layers: Sequence[Layer]) -> None:
    """Add a new graph input to each layer's result, and make the layers' sources graph outputs."""
    helper, graph = import_onnx().helper, model.graph
    by_result = {layer.result: layer for layer in layers}
    nodes = []
    for node in graph.node:
        nodes.append(node)
        layer = by_result.get(node.output[0]) if node.output else None
        if layer is not None:
            exact, error = f"int8/exact/{layer.result}", _error_name(layer)
            node.output[0] = exact
            nodes.append(helper.make_node("Add", [exact, error], [layer.result]))
            graph.input.append(helper.make_tensor_value_info(error, 1, None))
    copies = [import_onnx().NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    del graph.value_info[:]
    given = {value.name for value in (*graph.input, *graph.output)}
    for source in dict.fromkeys(layer.source for layer in layers):
        if source not in given:
            graph.output.append(import_onnx().ValueInfoProto(name=source))


def _random_inputs(inputs: Sequence[Any], ids: int, size: int, rows: int) -> dict[str, Array]:
    """Return random inputs: a mask of ones, ids below `ids`, and normally distributed floats.

    Free dims have `size`; a free first dim has `rows`.
    """
    rng = np.random.default_rng(0)
    feed: dict[str, Array] = {}
    for own in inputs:
        shape = [
            dim if isinstance(dim, int) else (rows if at == 0 else size)
            for at, dim in enumerate(own.shape)
        ]
        dtype, name = dtype_of(own.type), own.name.lower()
        if dtype is None:
            raise ArtifactFault(f"'{own.name}': found {own.type}, expected numbers; use --sample")
        values: Array
        if dtype.is_integer or dtype is DType.BOOL:
            if "type" in name or "segment" in name:
                values = np.zeros(shape)
            elif "mask" in name or dtype is DType.BOOL:
                values = np.ones(shape)
            elif "position" in name:
                values = np.broadcast_to(np.arange(shape[-1]), shape)
            else:
                values = rng.integers(0, ids, shape)
        else:
            values = rng.standard_normal(shape)
        feed[own.name] = np.asarray(values, dtype.numpy)
    return feed


def _divisors(rows: Array, group: Sequence[Layer]) -> Array:
    """Return divisors, FP32 [K], that are large for channels with large activations."""
    activations = np.maximum(np.abs(rows).max(0), 1e-6)
    weights = np.abs(np.concatenate([layer.weight for layer in group], axis=1)).max(1)
    found = activations**_MIGRATION / np.maximum(weights, 1e-6) ** (1 - _MIGRATION)
    divisors: Array = (found / np.exp(np.log(found).mean())).astype(np.float32)
    return divisors


def _distance(found: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return the largest of the outputs' mean distances, 1 - cosine over the last dim.

    For outputs of other types than float, e.g. labels, the distance is the share of different
    elements.
    """
    distances = [0.0]
    for own, other in zip(found, expected, strict=True):
        if own.dtype.kind != "f" or not own.ndim:
            distances.append(float(np.mean(own != other)))
            continue
        a, b = own.astype(np.float64), other.astype(np.float64)
        norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        cosine = (a * b).sum(-1) / np.where(norms > 0, norms, 1)
        cosine = np.where(norms > 0, cosine, (a == b).all(-1))
        distances.append(float(1 - np.nan_to_num(cosine).mean()))
    return max(distances)
