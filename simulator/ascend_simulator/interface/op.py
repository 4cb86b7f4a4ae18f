"""acl.op: single operators. A call selects a compiled operator by type, tensors and attributes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from ascend_simulator import process
from ascend_simulator.calls import I32, LIST, STR, U64, Converter, bare, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.interface.descs import host_bytes
from ascend_simulator.models.datasets import data, lookup, remove
from ascend_simulator.models.operators import Operator, Tensor, parse, read_folder
from ascend_simulator.resources import Handles, HandleTables
from ascend_simulator.streams.tasks import Task

Range = tuple[int, int]


class Operators(HandleTables):
    """Loaded operators, attributes and handles: a `Part` of the process."""

    def __init__(self) -> None:
        self.loaded: list[Operator] = []
        self.has_folder = False
        self.attributes: Final[Handles[dict[str, object]]] = Handles("operator attributes")
        self.handles: Final[Handles[Operator]] = Handles("operator handle")

    def find(self, wanted: Operator, what: str) -> Operator:
        """Return the loaded operator that equals `wanted`. Raises Refused OP_NOT_FOUND."""
        for operator in self.loaded:
            # The attributes of Cast only repeat the tensors' types.
            if operator == wanted or (wanted.kind == "Cast" and operator[:3] == wanted[:3]):
                return operator
        text = f"{what}: {wanted.kind}: no loaded operator has these tensors and attributes"
        raise Refused(Code.OP_NOT_FOUND, text)


def operators() -> Operators:
    """Return the operators of the process."""
    return process.current().part(Operators)


@status("op.set_model_dir", STR)
def set_model_dir(path: str) -> None:
    """Load the operators in a folder.

    Refused: INVALID_PARAM for a second call, and if `path` is not a folder.
    """
    own = operators()
    if own.has_folder or not Path(path).is_dir():
        found = "called twice" if own.has_folder else f"{path!r} is not a folder"
        raise Refused(Code.INVALID_PARAM, f"set_model_dir: {found}")
    own.loaded += read_folder(Path(path))
    own.has_folder = True


@status("op.load", U64, U64)
def load(ptr: int, size: int) -> None:
    """Load an operator from host memory. Refused: PARSE_MODEL if it is not an operator's file."""
    found = parse(bytes(host_bytes(ptr, size, "op.load")))
    if found is None:
        raise Refused(Code.PARSE_MODEL, "op.load: found another file, expected an operator")
    operators().loaded.append(found)


# -- attributes ----------------------------------------------------------------------------------


@bare("op.create_attr")
def create_attr() -> int:
    """Create empty attributes."""
    return operators().attributes.add({})


@bare("op.destroy_attr", U64, failed=None)
def destroy_attr(attributes: int) -> None:
    """Destroy the attributes."""
    remove(operators().attributes, attributes, "destroy_attr")


def _export_setter(kind: str, convert: Converter, stored: Callable[..., object]) -> None:
    def set_attribute(attributes: int, name: str, given: object) -> None:
        """Set an attribute."""
        lookup(operators().attributes, attributes, "set_attr")[name] = stored(given)

    status(f"op.set_attr_{kind}", U64, STR, convert)(set_attribute)


_export_setter("bool", I32, bool)
_export_setter("int", I32, int)
_export_setter("float", float, float)
_export_setter("string", STR, str)


# -- executions ----------------------------------------------------------------------------------


def _compiled(
    kind: str, inputs: list[int], outputs: list[int], attributes: int, what: str
) -> Operator:
    """Return the compiled operator of a call. Refused: OP_NOT_FOUND."""
    wanted = _wanted(kind, inputs, outputs, _given(attributes, what), what)
    return operators().find(wanted, what)


def _export_execution(name: str) -> None:
    def execute(
        kind: str,
        inputs: list[int],
        input_buffers: list[int],
        outputs: list[int],
        output_buffers: list[int],
        attributes: int,
        stream: int,
    ) -> None:
        """Queue an operator on the stream. Refused: OP_NOT_FOUND if it was not compiled."""
        what = f"op.{name}: {kind}"
        found = _compiled(kind, inputs, outputs, attributes, what)
        _submit(found, input_buffers, output_buffers, stream, what)

    status(f"op.{name}", STR, LIST, LIST, LIST, LIST, U64, U64)(execute)


_export_execution("execute")
_export_execution("execute_v2")


@status("op.cast", U64, U64, U64, U64, I32, U64)
def cast(
    source: int, source_buffer: int, target: int, target_buffer: int, truncate: int, stream: int
) -> None:
    """Queue the operator Cast. `truncate` is reserved."""
    wanted = _wanted("Cast", [source], [target], {}, "op.cast")
    found = operators().find(wanted, "op.cast")
    _submit(found, [source_buffer], [target_buffer], stream, "op.cast")


@value("op.create_handle", STR, LIST, LIST, U64)
def create_handle(kind: str, inputs: list[int], outputs: list[int], attributes: int) -> int:
    """Return a handle of an operator. Refused: OP_NOT_FOUND."""
    what = f"op.create_handle: {kind}"
    return operators().handles.add(_compiled(kind, inputs, outputs, attributes, what))


@value("op.create_handle_for_cast", U64, U64, I32)
def create_handle_for_cast(source: int, target: int, truncate: int) -> int:
    """Return a handle of the operator Cast. Refused: OP_NOT_FOUND."""
    what = "op.create_handle_for_cast"
    wanted = _wanted("Cast", [source], [target], {}, what)
    return operators().handles.add(operators().find(wanted, what))


@bare("op.destroy_handle", U64, failed=None)
def destroy_handle(handle: int) -> None:
    """Destroy the handle."""
    remove(operators().handles, handle, "destroy_handle")


@status("op.execute_with_handle", U64, LIST, LIST, U64)
def execute_with_handle(handle: int, inputs: list[int], outputs: list[int], stream: int) -> None:
    """Queue the operator of a handle on the stream."""
    what = "op.execute_with_handle"
    _submit(lookup(operators().handles, handle, what), inputs, outputs, stream, what)


# -- helpers -------------------------------------------------------------------------------------


def _given(attributes: int, what: str) -> dict[str, object]:
    return lookup(operators().attributes, attributes, what) if attributes else {}


def _tensors(descs: list[int], what: str) -> tuple[Tensor, ...]:
    found = (lookup(data().descs, each, what) for each in descs)
    return tuple(
        Tensor(each.dtype, tuple(each.dims), each.format, each.const.hex()) for each in found
    )


def _wanted(
    kind: str, inputs: list[int], outputs: list[int], attributes: dict[str, object], what: str
) -> Operator:
    tensors = _tensors(inputs, what), _tensors(outputs, what)
    return Operator(kind, *tensors, tuple(sorted(attributes.items())))


def _submit(
    operator: Operator, inputs: list[int], outputs: list[int], stream: int, what: str
) -> None:
    """Queue the operator. Refused: INVALID_PARAM for buffers that are missing or too small."""
    now = process.current()
    home = now.stream(stream, what)
    ranges: list[list[Range]] = []
    for tensors, handles in ((operator.inputs, inputs), (operator.outputs, outputs)):
        buffers = [lookup(data().buffers, each, what) for each in handles]
        fit = len(buffers) == len(tensors) and all(
            buffer.size >= tensor.nbytes or tensor.const
            for buffer, tensor in zip(buffers, tensors, strict=False)
        )
        if not fit:
            sizes, needed = [each.size for each in buffers], [each.nbytes for each in tensors]
            raise Refused(Code.INVALID_PARAM, f"{what}: found buffers of {sizes}, needs {needed}")
        pairs = zip(buffers, tensors, strict=True)
        ranges.append([(one.ptr, tensor.nbytes) for one, tensor in pairs if not tensor.const])
        for ptr, nbytes in ranges[-1]:
            now.memory.locate(ptr, nbytes, want="device", what=what)
    reads, writes = ranges

    def run() -> None:
        now.faults.strike("execute")
        addresses = iter(reads)
        arrays = [
            np.frombuffer(
                bytes.fromhex(tensor.const)
                or now.memory.resolve(*next(addresses), want="device", write=False),
                tensor.numpy,
            ).reshape(tensor.dims)
            for tensor in operator.inputs
        ]
        for each, array in zip(writes, operator.run(arrays), strict=True):
            target = now.memory.resolve(*each, want="device", write=True)
            target[:] = array.reshape(-1).view(np.uint8)

    home.submit(Task(run, reads, writes, what, "execute"))
