"""Execute graphs on the CPU and on a card, and measure the layers of a graph.

Layers are measured by compiling parts of the graph, or with the card's dump of one execution. The
compiler renames, fuses and inserts operators. An operator's output is matched to a tensor of the
graph in one of three ways: the dump names the original operator (`original_op`), the operator has
the name of a node, or the operator's name is a sequence of node names, as for fused operators. In
the last case, the operator's output is the output of the last node.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import numpy as np

from ge_runtime.cli.compare.cut_graphs import CutGraph, first_exceeding
from ge_runtime.cli.compare.report import UNKNOWN, Difference, First, Layer, difference
from ge_runtime.cli.dump_files import DumpedOperator, DumpedTensor, read_dump
from ge_runtime.config import ATC_FILES, ATC_FLAGS, RuntimeConfig, Window
from ge_runtime.engines.artifact import Artifact, for_chip
from ge_runtime.engines.backend import DeviceBackend, DeviceSettings, open_backend
from ge_runtime.engines.base import Shapes
from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.npu.driver.atc import Atc, own_precision, record_path
from ge_runtime.specs import Array

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


_PRECISION: Final = "ge.exec.precision_mode_v2"
_SHAPE_FLAGS: Final = (
    "input_shape",
    "input_format",
    "dynamic_batch_size",
    "dynamic_image_size",
    "dynamic_dims",
)


def run_on_cpu(model: Path | ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Execute a file, or a graph of less than 2 GiB, and return all outputs.

    `inputs` may contain arrays that the graph does not use. Raises EngineFault.
    """
    import onnxruntime

    try:
        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        fed = {each.name: inputs[each.name] for each in session.get_inputs() if each.name in inputs}
        return dict(zip(names, session.run(names, fed), strict=True))
    except Exception as error:  # the library and protobuf raise many classes
        raise EngineFault(f"ONNX Runtime: {error}") from error


class CardGraphs:
    """Compiles graphs with the flags of an existing .om file and executes them. Use in a `with`."""

    def __init__(self, device: str, folder: Path, om: Path, config: RuntimeConfig) -> None:
        """Open the device.

        Args:
            device: e.g. npu:0.
            folder: the model's folder; paths in flags are relative to it.
            om: the file; a variant for the device's chip takes precedence.
            config: the model's configuration.

        Raises:
            ArtifactFault, NoDevice, EngineLost: the file or the device cannot be used.
        """
        self.compiled = 0
        """Number of compiled graphs."""
        self._device = device
        self._opened = ExitStack()
        self._backend: DeviceBackend = open_backend(device, DeviceSettings(), engine="om")
        self._opened.callback(self._backend.close)
        with ExitStack() as undo:
            undo.push(self._opened)
            chip = self._backend.hardware
            self.om = for_chip([Artifact(om, "om", "")], chip)[0].path
            """The file for the device's chip."""
            self._flags = _flags(folder, self.om, config, chip)
            self._scratch = Path(self._opened.enter_context(TemporaryDirectory()))
            undo.pop_all()

    def __enter__(self) -> CardGraphs:
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    @property
    def hardware(self) -> str:
        """Name of the chip."""
        return self._backend.hardware

    def shapes(self) -> Sequence[Shapes]:
        """Return the input shapes that the file is compiled for. Raises RuntimeFault."""
        engine = self._backend.open([Artifact(self.om, "om", "")], threads=1, outputs=())
        try:
            return engine.shapes or ()
        finally:
            engine.close()

    def run(self, model: ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compile a graph for the shapes of its inputs, and execute it. Raises RuntimeFault."""
        import onnx

        fed = {each.name: inputs[each.name] for each in model.graph.input}
        source, om = self._scratch / "cut.onnx", self._scratch / "cut.om"
        onnx.save(model, source)
        shapes = ";".join(f"{n}:{','.join(map(str, a.shape))}" for n, a in fed.items())
        ranks = {array.ndim for array in fed.values()}
        layout = {4: "NCHW", 5: "NCDHW"}.get(min(ranks), "ND") if len(ranks) == 1 else "ND"
        flags = (f"--input_shape={shapes}", f"--input_format={layout}", *self._flags)
        Atc.find().compile(source, om, flags)
        self.compiled += 1
        return self.run_file(om, fed, [own.name for own in model.graph.output])

    def run_file(
        self, om: Path, inputs: Mapping[str, Array], names: Sequence[str]
    ) -> dict[str, Array]:
        """Execute a file and return the outputs of these names. Raises RuntimeFault."""
        return _execute(self._backend, om, inputs, names)

    def dump(self, inputs: Mapping[str, Array], names: Sequence[str]) -> list[DumpedOperator]:
        """Execute `om` and return CANN's dump of all operators; empty if CANN writes no dump.

        Raises RuntimeFault or OSError.
        """
        with TemporaryDirectory(dir=self._scratch) as folder:
            window = Window("dump", folder, first=1, count=1, mode="all")
            settings = DeviceSettings(window=window)
            backend = open_backend(self._device, settings, engine="om")
            try:
                _execute(backend, self.om, inputs, names, serving=True)
            finally:
                backend.close()
            return read_dump(Path(folder))


def _execute(
    backend: DeviceBackend,
    om: Path,
    inputs: Mapping[str, Array],
    names: Sequence[str],
    *,
    serving: bool = False,
) -> dict[str, Array]:
    """Execute a file. With `serving`, the load ends first: CANN dumps no executions of the load."""
    engine = backend.open([Artifact(om, "om", "")], threads=1, outputs=names)
    try:
        engine.bind([], backend.memory)
        if serving:
            backend.freeze()
        known = {tensor.name for tensor in engine.signature.inputs}
        fed = {name: array for name, array in inputs.items() if name in known}
        if missing := known - fed.keys():
            raise ArtifactFault(
                f"{om}: found no array for {', '.join(sorted(missing))}, expected one for each "
                "input of the graph"
            )
        return engine.run(fed, dict.fromkeys(names))
    finally:
        engine.close()


def _flags(folder: Path, om: Path, config: RuntimeConfig, chip: str) -> list[str]:
    """Return the flags in the file's record, or else in config.pbtxt, except flags for shapes."""
    try:
        recorded = json.loads(record_path(om).read_text(encoding="utf-8"))["flags"]
        pairs = [flag.removeprefix("--").partition("=")[::2] for flag in recorded]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        options = {_PRECISION: own_precision(chip), **config.ge_options}
        pairs = [("soc_version", chip), *config.atc_flags.items()]
        pairs += [(ATC_FLAGS[option].removeprefix("--"), text) for option, text in options.items()]
    return [
        f"--{flag}={(folder / value).resolve() if flag in ATC_FILES else value}"
        for flag, value in pairs
        if flag not in _SHAPE_FLAGS
    ]


class CutLayers:
    """Measures the tensors of a graph, each at most once, by compiling parts of the graph."""

    def __init__(
        self, graph: CutGraph, card: CardGraphs, inputs: Mapping[str, Array], limit: float
    ) -> None:
        self._graph = graph
        self._card = card
        self._inputs = inputs
        self._limit = limit
        self._found: dict[str, Difference] = {}

    @property
    def measured(self) -> list[Layer]:
        """The measured layers in computation order."""
        return sorted(map(self._layer, self._found), key=lambda layer: layer.place)

    def search(self, outputs: Mapping[str, Difference], *, every: bool, cuts: int) -> First | None:
        """Return the first layer that exceeds the limit; None if no output exceeds the limit.

        Args:
            outputs: the differences of the graph's outputs.
            every: measure all layers first.
            cuts: the most tensors that one compiled part returns.
        """
        if every:
            tensors = self._graph.tensors
            for start in range(0, len(tensors), cuts):
                self.measure(tensors[start : start + cuts])
        for name, own in outputs.items():
            exceeds = own.exceeds(self._limit) and self._graph.has(name)
            if exceeds and self.measure([name])[name]:
                found = first_exceeding(self._graph, name, self.measure, cuts)
                return First(self._layer(found), self._alone(found))
        return None

    def measure(self, names: Sequence[str]) -> dict[str, bool]:
        """Return whether each of these tensors exceeds the limit."""
        new = [name for name in names if name not in self._found]
        if new:
            expected = run_on_cpu(self._graph.computing(new, None), self._inputs)
            # A sequence of tensors cannot be an output on a card. It counts as equal, and its
            # tensors are measured.
            self._found |= dict.fromkeys(new, Difference(math.nan, 0.0, math.nan))
            arrays = {n: array for n, array in expected.items() if isinstance(array, np.ndarray)}
            if arrays:
                part = self._graph.computing([*arrays], arrays)
                found = self._card.run(part, self._inputs)
                self._found |= {n: difference(found[n], array) for n, array in arrays.items()}
        return {name: self._found[name].exceeds(self._limit) for name in names}

    def _alone(self, name: str) -> Difference | None:
        """Execute one layer alone on the card with inputs from the CPU, and return its error.

        Returns None if the layer cannot be executed alone.
        """
        graph = self._graph
        needed = [*graph.inputs_of(name), *graph.fixed(name), name]
        values = {**self._inputs, **run_on_cpu(graph.computing(needed, None), self._inputs)}
        cut = graph.alone(name, values)
        if cut is None:
            return None
        model, feeds = cut
        return difference(self._card.run(model, feeds)[name], values[name])

    def _layer(self, name: str) -> Layer:
        return self._graph.layer(name, self._found[name])


class DumpedLayers:
    """The tensors of a graph, measured with a dump of one execution on the same inputs."""

    def __init__(
        self,
        graph: CutGraph,
        operators: Sequence[DumpedOperator],
        inputs: Mapping[str, Array],
        limit: float,
    ) -> None:
        """Compute the expected tensors on the CPU. Raises EngineFault."""
        self._graph = graph
        self._inputs = inputs
        self._limit = limit
        matches = Matches(graph.named(), operators)
        self.unmatched_operators: Sequence[str] = matches.unmatched
        """Operators of the card that are not in the graph."""
        names = [name for name in graph.tensors if name in matches.outputs | matches.inputs]
        self._expected = run_on_cpu(graph.computing(names, None), inputs) if names else {}
        self._card: dict[str, Array] = {}
        self._found: dict[str, Difference] = {}
        for name, expected in self._expected.items():
            if not isinstance(expected, np.ndarray):  # a card has no sequences
                continue
            for tensors in (matches.outputs, matches.inputs):
                array = tensors[name].shaped(expected.shape) if name in tensors else None
                if array is not None:
                    self._card[name] = _as_type(array, expected)
                    self._found[name] = difference(self._card[name], expected)
                    break

    @property
    def measured(self) -> list[Layer]:
        """The measured layers in computation order."""
        return [self._layer(name) for name in self._graph.tensors if name in self._found]

    @property
    def unmatched(self) -> list[Layer]:
        """Layers without an operator on the card: fused, or computed in another way."""
        return [self._layer(name) for name in self._graph.tensors if name not in self._found]

    def search(self, outputs: Mapping[str, Difference]) -> First | None:
        """Return the first layer beyond the limit that an output beyond the limit depends on."""
        graph = self._graph
        wrong = [n for n, own in outputs.items() if own.exceeds(self._limit) and graph.has(n)]
        for name in wrong:
            self._found.setdefault(name, outputs[name])
        causes = {each for name in wrong for each in (*graph.before(name), name)}
        for name in graph.tensors:
            if name in causes and name in self._found and self._found[name].exceeds(self._limit):
                unmeasured = [self._layer(each) for each in self._unmeasured_before(name)]
                return First(self._layer(name), self._alone(name), "card", unmeasured)
        return None

    def _unmeasured_before(self, name: str) -> list[str]:
        """Return the tensors between a tensor and the last measured tensors before it."""
        found: set[str] = set()
        rest = self._graph.inputs_of(name)
        while rest:
            each = rest.pop()
            if each not in self._found and each not in found:
                found.add(each)
                rest += self._graph.inputs_of(each)
        return [each for each in self._graph.tensors if each in found]

    def _alone(self, name: str) -> Difference | None:
        """Return the error of one layer on the card's inputs, if the dump contains all of them."""
        graph = self._graph
        if any(each not in self._card for each in (name, *graph.inputs_of(name))):
            return None
        values = {**self._inputs, **self._card, name: self._expected[name]}
        if fixed := graph.fixed(name):
            values |= run_on_cpu(graph.computing(fixed, None), self._inputs)
        cut = graph.alone(name, values)
        if cut is None:
            return None
        model, feeds = cut
        return difference(self._card[name], run_on_cpu(model, feeds)[name])

    def _layer(self, name: str) -> Layer:
        return self._graph.layer(name, self._found.get(name, UNKNOWN))


class Matches:
    """The dumped tensors by their names in the graph."""

    def __init__(self, nodes: Mapping[str, NodeProto], operators: Iterable[DumpedOperator]) -> None:
        """Match the operators to nodes, which are in the graph's order."""
        self.outputs: dict[str, DumpedTensor] = {}
        """Tensors that an operator returned."""
        self.inputs: dict[str, DumpedTensor] = {}
        """Tensors that an operator received."""
        self.unmatched: list[str] = []
        """Names of the operators that match no node."""
        places = {name: place for place, name in enumerate(nodes)}
        renamed = []
        for operator in operators:
            node = nodes.get(operator.name)
            if node is None:
                renamed.append(operator)
                continue
            self._add_outputs(node, operator)
            inputs = [name for name in node.input if name]
            if len(inputs) == len(operator.inputs):
                for name, tensor in zip(inputs, operator.inputs, strict=True):
                    self.inputs.setdefault(name, tensor)
        for operator in renamed:  # after operators with a node's own name, which take precedence
            if self._add_originals(nodes, operator):
                continue
            if parts := split_into_names(operator.name, nodes):
                self._add_outputs(nodes[max(parts, key=places.__getitem__)], operator)
            else:
                self.unmatched.append(operator.name)

    def _add_originals(self, nodes: Mapping[str, NodeProto], operator: DumpedOperator) -> bool:
        """Add the outputs whose original operator is in the graph; return whether there are any."""
        known = False
        for tensor in operator.outputs:
            node = nodes.get(tensor.original)
            if node is not None and tensor.original_index < len(node.output):
                self.outputs.setdefault(node.output[tensor.original_index], tensor)
                known = True
        return known

    def _add_outputs(self, node: NodeProto, operator: DumpedOperator) -> None:
        for name, tensor in zip(node.output, operator.outputs, strict=False):
            if name:
                self.outputs.setdefault(name, tensor)


def split_into_names(text: str, names: Iterable[str]) -> list[str]:
    """Return names whose concatenation is the text; empty if there are none."""
    known = {name for name in names if name}
    lengths = sorted({len(name) for name in known}, reverse=True)
    ends: dict[int, str] = {0: ""}
    """A name that can end at a position in the text, by position."""
    for start in range(len(text)):
        if start in ends:
            for length in lengths:
                if text[start : start + length] in known and start + length <= len(text):
                    ends.setdefault(start + length, text[start : start + length])
    found: list[str] = []
    end = len(text)
    while name := ends.get(end):
        found.insert(0, name)
        end -= len(name)
    return found if end == 0 else []


def _as_type(array: Array, expected: Array) -> Array:
    """Convert to the CPU's type: a card uses FP16 for FP32, and often INT32 for INT64."""
    kinds = array.dtype.kind + expected.dtype.kind
    convertible = kinds == "ff" or set(kinds) <= {*"iub"}
    return array.astype(expected.dtype) if convertible else array
