"""One compilation: from options and an ONNX file to the bytes of a simulated .om."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import onnx
from onnx import TensorProto

from ascend_simulator.compiler import aipp, inference, shapes
from ascend_simulator.compiler.flags import CompileFault, Options
from ascend_simulator.compiler.inference import Inference, Value, subgraphs, weight_bytes
from ascend_simulator.compiler.tensors import (
    graph_input,
    input_tensors,
    kind_name,
    output_tensors,
    rounded,
    value_bytes,
)
from ascend_simulator.models import om
from ascend_simulator.models.graph import Graph
from ascend_simulator.settings import has_fp16_matrices

ModelProto: TypeAlias = Any
NodeProto: TypeAlias = Any

OLDEST_OPSET: Final = 11
NEWEST_OPSET: Final = 18

_MOST_GRAPH_BYTES: Final = (1 << 31) - 1  # the limit of a Protobuf message
_MATRICES: Final = ("MatMul", "Gemm", "Conv", "ConvTranspose")
_NO_FREE_SHAPES: Final = "Ascend310B"
_UNGEARED: Final = ("static", "dynamic")
_INTEGER: Final = ("QLinear", "ConvInteger", "MatMulInteger")
_OTHER_FLOATS: Final = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_NOWHERE: Final = Value(0, None)


def compile_model(options: Options) -> bytes:
    """Return the content of the file that `options` describe. Raises CompileFault."""
    source, model = _load(options.model)
    return _Compilation(options, source, model).run()


class _Compilation:
    def __init__(self, options: Options, source: str, model: ModelProto) -> None:
        self._options = options
        self._source = source
        self._model = model
        initialized = {tensor.name for tensor in model.graph.initializer}
        self._inputs = [each for each in model.graph.input if each.name not in initialized]
        self._inference = Inference(model)

    def run(self) -> bytes:
        self._check_operators()
        requested = shapes.input_shapes(self._options, list(map(graph_input, self._inputs)))
        if any(map(_is_quantised, self._model.graph.node)) and requested.family not in _UNGEARED:
            raise CompileFault("E10055", "a model quantised to INT8 cannot have gears")
        found = [self._at(gear) for gear in requested.gears]
        unplanned = self._unplanned(found)
        if unplanned:
            if requested.family != "static":
                raise CompileFault("E10055", f"{unplanned}: such a model cannot have gears")
            requested, found = replace(requested, family="dynamic", gears=()), []
        if requested.family == "dynamic" and self._options.soc.startswith(_NO_FREE_SHAPES):
            raise CompileFault(
                "E10055", f"{self._options.soc} does not support models with free shapes"
            )
        model = self._converted()
        if model.ByteSize() > _MOST_GRAPH_BYTES:
            raise CompileFault("E10055", "the model exceeds the simulator's limit of 2 GiB")
        graph = bytes(model.SerializeToString())
        try:  # a model that cannot be executed is refused here, and not at its load
            Graph.open(graph, threads=1)
        except Exception as error:  # onnxruntime raises various exceptions
            raise CompileFault("E10501", f"onnxruntime cannot execute it: {error}") from error
        return om.serialize(self._manifest(requested, found, weight_bytes(model)), graph)

    def _check_operators(self) -> None:
        for node in self._model.graph.node:
            if node.domain not in ("", "ai.onnx"):
                raise CompileFault(
                    "E10501", f"operator {node.domain}.{node.op_type} is not an ONNX operator"
                )
        if self._options.precision == "origin" and has_fp16_matrices(self._options.soc):
            self._check_matrices()
        version = max(
            (each.version for each in self._model.opset_import if each.domain in ("", "ai.onnx")),
            default=0,
        )
        if not OLDEST_OPSET <= version <= NEWEST_OPSET:
            text = f"found opset {version}, expected {OLDEST_OPSET} to {NEWEST_OPSET}"
            raise CompileFault("E10501", text)

    def _check_matrices(self) -> None:
        """Raise CompileFault if the graph has FP32 matrix products. The matrix units support FP16.

        FP32 products would run on the AI CPU, or not at all.
        """
        values = self._at(None)
        for node in self._model.graph.node:
            if node.op_type in _MATRICES and values[node.output[0]].kind == TensorProto.FLOAT:
                soc = self._options.soc
                text = f"{node.op_type} of FP32: the matrix units of {soc} support only FP16"
                raise CompileFault("E10501", f"{text}; expected --precision_mode_v2=fp16")

    def _at(self, gear: shapes.Gear | None) -> dict[str, Value]:
        """Return all values at the input shapes of `gear`; None means the declared shapes."""
        given = None
        if gear is not None:
            names = [each.name for each in self._inputs]
            given = dict(zip(names, gear.inputs, strict=True))
        try:
            return self._inference.at(given)
        except Exception as error:  # onnx's shape inference raises bare RuntimeErrors and more
            text = f"shapes {given or 'as declared'} do not fit the graph: {error}"
            raise CompileFault("E10059", text) from error

    def _unplanned(self, found: Sequence[Mapping[str, Value]]) -> str:
        """Return the reason why the values' sizes cannot be planned; '' if they can be planned."""
        if any(subgraphs(node) for node in self._model.graph.node):
            return "the sizes of a subgraph's values are only known at run time"
        made = [name for node in self._model.graph.node for name in node.output if name]
        for values in found:
            for name in (*made, *(each.name for each in self._model.graph.output)):
                if values.get(name, _NOWHERE).dims is None:
                    return f"the dims of '{name}' depend on data"
        return ""

    def _converted(self) -> ModelProto:
        """Return the graph to execute, which for "origin" is the unchanged graph."""
        options = self._options
        self._check_types()
        if options.precision == "fp16":
            return rounded(
                self._model,
                self._at(None),
                fp16_inputs=options.fp16_inputs,
                fp16_outputs=options.fp16_outputs,
            )
        if options.fp16_inputs or options.fp16_outputs:
            raise CompileFault("E10055", "FP16 inputs and outputs need --precision_mode_v2=fp16")
        return self._model

    def _check_types(self) -> None:
        """Check that the requested FP16 inputs and outputs are FP32 values of the graph."""
        kinds = {each.name: each.type.tensor_type.elem_type for each in self._inputs}
        for name in self._options.fp16_inputs:
            if name not in kinds:
                raise CompileFault("E10016", f"--input_fp16_nodes: '{name}' is not an input")
            if kinds[name] not in (TensorProto.FLOAT, TensorProto.FLOAT16):
                found = f"found '{name}' of type {kind_name(kinds[name])}, expected FLOAT"
                raise CompileFault("E10055", f"--input_fp16_nodes: {found}")
        requested = self._options.output_type
        for value in self._model.graph.output if requested else ():
            kind = value.type.tensor_type.elem_type
            if kind in _OTHER_FLOATS and (kind, requested) != (TensorProto.FLOAT16, "FP16"):
                found = f"found output '{value.name}' of type {kind_name(kind)}, expected FLOAT"
                raise CompileFault("E10055", f"--output_type={requested}: {found}")

    def _manifest(
        self, requested: shapes.InputShapes, found: Sequence[Mapping[str, Value]], weights: int
    ) -> om.Manifest:
        graph = self._model.graph
        inserted = aipp.insert(
            self._options, input_tensors(self._options, self._inputs, requested), requested
        )
        inputs = inserted.inputs
        planned = tuple(
            om.Shapes(
                gear.values,
                inserted.shapes(gear.inputs),
                tuple(values[each.name].dims or () for each in graph.output),
            )
            for gear, values in zip(requested.gears, found, strict=True)
        )
        largest = max(
            range(len(planned)),
            key=lambda index: sum(map(om.OmTensor.nbytes, inputs, planned[index].inputs)),
            default=0,
        )
        dims = planned[largest].outputs if planned else None
        outputs = output_tensors(self._options, graph, dims, self._most(requested))
        lean = [inference.FIXED_BYTES + self._values_bytes(values) for values in found]
        work = [
            each + sum(map(inference.occupied, _io_bytes(inputs, outputs, shape)))
            for each, shape in zip(lean, planned, strict=True)
        ]
        return om.Manifest(
            soc=self._options.soc,
            precision=self._options.precision,
            family=requested.family,
            inputs=inputs,
            outputs=outputs,
            shapes=planned,
            aipp=inserted.aipp,
            order=requested.order,
            largest=largest,
            work_bytes=max(work, default=0),
            lean_work_bytes=max(lean, default=0),
            weight_bytes=weights,
            source_sha256=self._source,
        )

    def _most(self, requested: shapes.InputShapes) -> list[om.Dims | None]:
        """Return the dims of outputs at the upper bounds of free shapes; None if unknown."""
        graph = self._model.graph
        largest = tuple(tuple(high for _, high in dims) for dims in requested.ranges)
        unknown: list[om.Dims | None] = [None] * len(graph.output)
        if requested.family != "dynamic" or any(shapes.NO_END in dims for dims in largest):
            return unknown
        if any(subgraphs(node) for node in graph.node):
            return unknown
        values = self._at(shapes.Gear((), largest))
        return [values.get(each.name, _NOWHERE).dims for each in graph.output]

    def _values_bytes(self, values: Mapping[str, Value]) -> int:
        """Return the bytes of intermediate values at these shapes, see `inference.values_bytes`."""
        fp16 = self._options.precision == "fp16"
        steps = [
            inference.Step(tuple(filter(None, node.input)), tuple(filter(None, node.output)))
            for node in self._model.graph.node
        ]
        if fp16:  # FP32 inputs converted to FP16 are intermediate values
            names = [each.name for each in self._inputs]
            names = [name for name in names if values[name].kind == TensorProto.FLOAT]
            steps.insert(0, inference.Step((), tuple(names)))
        nbytes = {
            name: value_bytes(values[name], fp16=fp16) for step in steps for name in step.writes
        }
        return inference.values_bytes(steps, nbytes, reuse=self._options.reuse_memory)


def _load(path: str) -> tuple[str, ModelProto]:
    """Return the file's SHA-256, and its model with all weights."""
    try:
        source = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise CompileFault("E10410", f"--model={path}: {error}") from error
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as error:  # Protobuf's and the checker's errors, and missing weight files
        raise CompileFault(
            "E10041", f"--model={path} is not a valid ONNX model: {error}"
        ) from error
    return source, model


def _is_quantised(node: NodeProto) -> bool:
    """Return whether the node is an ONNX operator on 8-bit numbers with scales."""
    return "QuantizeLinear" in node.op_type or node.op_type.startswith(_INTEGER)


def _io_bytes(
    inputs: Sequence[om.OmTensor], outputs: Sequence[om.OmTensor], shape: om.Shapes
) -> list[int]:
    return [
        *map(om.OmTensor.nbytes, inputs, shape.inputs),
        *map(om.OmTensor.nbytes, outputs, shape.outputs),
        *([8 * len(shape.gear)] if shape.gear else []),
    ]
