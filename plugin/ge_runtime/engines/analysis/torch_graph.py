"""What an exported torch program holds between its inputs and outputs, at given sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from ge_runtime.engines.analysis import Operation, intermediates
from ge_runtime.memory.lifetimes import Intermediates

# torch's own objects, which cannot be named without importing it. Those in a program's graph are
# FakeTensors, which have types and sizes and no elements; a size that varies is a SymInt.
ExportedProgram: TypeAlias = Any
Node: TypeAlias = Any
FakeTensor: TypeAlias = Any
Size: TypeAlias = Any
Symbol: TypeAlias = Any

_CAST: Final = "aten::to"
_DENSE: Final = frozenset(
    f"aten::{name}" for name in ("contiguous", "flatten", "ravel", "reshape", "reshape_as")
)
"""Operators that show a dense input's bytes, and copy any other."""


class TorchGraph:
    """A program's graph, asked for any number of input shapes.

    Counted is what its nodes give each other and the caller, since results are copied from where
    torch put them. Not counted is what an operator needs inside.
    """

    def __init__(self, program: ExportedProgram) -> None:
        names = frozenset(map(str, program.graph_signature.user_inputs))
        nodes = list(program.graph.nodes)
        self._inputs = {node.name: node.meta["val"] for node in nodes if node.name in names}
        self._nodes = [node for node in nodes if node.op not in ("placeholder", "output")]
        self._results = tuple(map(str, program.graph_signature.user_outputs))
        # Bodies of branches and loops are graph modules inside the program's: what runs, and how
        # often, only an execution tells.
        self._inside = sum(
            node.op == "call_function"
            for name, module in program.graph_module.named_modules()
            if name and hasattr(module, "graph")
            for node in module.graph.nodes
        )

    def intermediates(self, shapes: Mapping[str, tuple[int, ...]]) -> Intermediates:
        """What is held while the program runs on inputs of these shapes, by name."""
        sizes = _Sizes(self._inputs, shapes)
        nbytes: dict[str, int] = {}
        operations = []
        for node in self._nodes:
            tensors = _tensors(node)
            taken = [total for total in map(sizes.nbytes, tensors) if total is not None]
            if len(taken) == len(tensors):
                nbytes[node.name] = sum(taken)
            shown = _shown(node) if tensors else None
            operations.append(
                Operation(
                    reads=tuple(other.name for other in node.all_input_nodes),
                    writes=(node.name,) if tensors else (),
                    shows=shown.name if shown and sizes.shows(node, shown) else None,
                )
            )
        found = intermediates(operations, nbytes, elsewhere=(), delivered=self._results)
        return Intermediates(found.lifetimes, found.unsized + self._inside)


def weights_bytes(program: ExportedProgram) -> int:
    """Bytes of a program's parameters, buffers and constants; those that are one count once."""
    values = (*program.state_dict.values(), *program.constants.values())
    # By storage: tied parameters, and views of one tensor, have the same bytes.
    storages = [value.untyped_storage() for value in values if hasattr(value, "untyped_storage")]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class _Sizes:
    """Sizes that vary, at the values that certain input shapes give them."""

    def __init__(
        self, inputs: Mapping[str, FakeTensor], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._symbols: dict[Symbol, int] = {}
        for name, tensor in inputs.items():
            for size, value in zip(tensor.shape, shapes[name], strict=True):
                if type(size) is not int:
                    self._symbols[size.node.expr] = value

    def nbytes(self, tensor: FakeTensor) -> int | None:
        """Bytes of a tensor's elements; None if only an execution tells."""
        shape = self._values(tensor.shape)
        return None if shape is None else math.prod(shape) * int(tensor.dtype.itemsize)

    def shows(self, node: Node, shown: Node) -> bool:
        """Whether `node`, by its declaration a view of `shown`, needs no copy."""
        (result, *_), (source, *_) = _tensors(node), _tensors(shown)
        operator = _operator(node)
        if operator == _CAST:
            return bool(result.dtype == source.dtype)
        return operator not in _DENSE or self._is_dense(source)

    def _is_dense(self, tensor: FakeTensor) -> bool:
        shape, strides = self._values(tensor.shape), self._values(tensor.stride())
        if shape is None or strides is None:
            return False
        step = 1
        for size, stride in zip(reversed(shape), reversed(strides), strict=True):
            if size != 1 and stride != step:  # the stride of a single element means nothing
                return False
            step *= size
        return True

    def _values(self, sizes: Sequence[Size]) -> list[int] | None:
        """The sizes as numbers; None if one of them is none."""
        try:
            return [
                size if type(size) is int else int(size.node.expr.xreplace(self._symbols))
                for size in sizes
            ]
        except TypeError:  # a symbol is left: it stands for what is in a tensor
            return None


def _tensors(node: Node) -> list[FakeTensor]:
    """What the node gives: a tensor, several of them, or only numbers or nothing."""
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [each for each in values if hasattr(each, "dtype")]


def _operator(node: Node) -> str:
    """The operator's name, such as aten::add; Python's own for what is none of torch's."""
    schema = getattr(node.target, "_schema", None)
    return str(schema.name if schema else getattr(node.target, "__name__", node.target))


def _shown(node: Node) -> Node | None:
    """The input whose bytes the node's result may be, by its operator's declaration."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return node.args[0] if _operator(node) == "getitem" else None  # one of several results
    if any(result.alias_info for result in schema.returns):
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info and hasattr(value, "meta"):
                return value
    return None
