"""The intermediate results of an exported torch program, at given sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from ge_runtime.engines.analysis import Operation, intermediates
from ge_runtime.memory.lifetimes import Intermediates

# torch's objects, which cannot be named without importing it. The tensors in a program's graph are
# FakeTensors, which have types and sizes but no elements; a size that varies is a SymInt.
ExportedProgram: TypeAlias = Any
Node: TypeAlias = Any
FakeTensor: TypeAlias = Any
Size: TypeAlias = Any
Symbol: TypeAlias = Any

_CAST: Final = "aten::to"
_DENSE: Final = frozenset(
    f"aten::{name}" for name in ("contiguous", "flatten", "ravel", "reshape", "reshape_as")
)
"""Operators that return a view of a dense input, and a copy of any other input."""


class TorchGraph:
    """A program's graph, analysed for any number of input shapes.

    Counts the results of nodes, including the program's results, which are copied from torch's
    memory. Does not count scratch memory of operators.
    """

    def __init__(self, program: ExportedProgram) -> None:
        names = frozenset(map(str, program.graph_signature.user_inputs))
        nodes = list(program.graph.nodes)
        self._inputs = {node.name: node.meta["val"] for node in nodes if node.name in names}
        self._nodes = [node for node in nodes if node.op not in ("placeholder", "output")]
        self._results = tuple(map(str, program.graph_signature.user_outputs))
        # Bodies of branches and loops are inner graph modules: which of them run, and how often, is
        # known only after an execution.
        self._inside = sum(
            node.op == "call_function"
            for name, module in program.graph_module.named_modules()
            if name and hasattr(module, "graph")
            for node in module.graph.nodes
        )

    def intermediates(self, shapes: Mapping[str, tuple[int, ...]]) -> Intermediates:
        """Return the intermediate results for inputs of these shapes, by name."""
        sizes = _Sizes(self._inputs, shapes)
        nbytes: dict[str, int] = {}
        operations = []
        for node in self._nodes:
            tensors = _tensors(node)
            known = [total for total in map(sizes.nbytes, tensors) if total is not None]
            if len(known) == len(tensors):
                nbytes[node.name] = sum(known)
            source = _view_source(node) if tensors else None
            operations.append(
                Operation(
                    reads=tuple(other.name for other in node.all_input_nodes),
                    writes=(node.name,) if tensors else (),
                    view_of=source.name if source and sizes.is_view(node, source) else None,
                )
            )
        found = intermediates(operations, nbytes, elsewhere=(), delivered=self._results)
        return Intermediates(found.lifetimes, found.unsized + self._inside)


def weights_bytes(program: ExportedProgram) -> int:
    """Return the bytes of a program's parameters, buffers and constants, each byte once."""
    values = (*program.state_dict.values(), *program.constants.values())
    # By storage: tied parameters, and views of one tensor, share their memory.
    storages = [value.untyped_storage() for value in values if hasattr(value, "untyped_storage")]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class _Sizes:
    """The values of sizes that vary, for certain input shapes."""

    def __init__(
        self, inputs: Mapping[str, FakeTensor], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._symbols: dict[Symbol, int] = {}
        for name, tensor in inputs.items():
            for size, value in zip(tensor.shape, shapes[name], strict=True):
                if type(size) is not int:
                    self._symbols[size.node.expr] = value

    def nbytes(self, tensor: FakeTensor) -> int | None:
        """Return the bytes of a tensor; None if they are known only after an execution."""
        shape = self._values(tensor.shape)
        return None if shape is None else math.prod(shape) * int(tensor.dtype.itemsize)

    def is_view(self, node: Node, source: Node) -> bool:
        """Return whether `node`, declared as a view of `source`, is computed without a copy."""
        (result, *_), (tensor, *_) = _tensors(node), _tensors(source)
        operator = _operator(node)
        if operator == _CAST:
            return bool(result.dtype == tensor.dtype)
        return operator not in _DENSE or self._is_dense(tensor)

    def _is_dense(self, tensor: FakeTensor) -> bool:
        shape, strides = self._values(tensor.shape), self._values(tensor.stride())
        if shape is None or strides is None:
            return False
        step = 1
        for size, stride in zip(reversed(shape), reversed(strides), strict=True):
            if size != 1 and stride != step:  # the stride of a single element is irrelevant
                return False
            step *= size
        return True

    def _values(self, sizes: Sequence[Size]) -> list[int] | None:
        try:
            return [
                size if type(size) is int else int(size.node.expr.xreplace(self._symbols))
                for size in sizes
            ]
        except TypeError:  # a symbol remains, whose value depends on a tensor's elements
            return None


def _tensors(node: Node) -> list[FakeTensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [each for each in values if hasattr(each, "dtype")]


def _operator(node: Node) -> str:
    """Return the operator's name, such as aten::add, or the name of a Python function."""
    schema = getattr(node.target, "_schema", None)
    return str(schema.name if schema else getattr(node.target, "__name__", node.target))


def _view_source(node: Node) -> Node | None:
    """Return the input whose view the result may be, according to the operator's declaration."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return node.args[0] if _operator(node) == "getitem" else None  # one of several results
    if any(result.alias_info for result in schema.returns):
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info and hasattr(value, "meta"):
                return value
    return None
