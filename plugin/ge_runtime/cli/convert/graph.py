"""The ONNX graph of an npu_ge model: completes tensors that config.pbtxt does not declare.

npu_ge completes tensors since 2.2.0. It derives open sizes of outputs from the names of the graph's
dims. Such a name may be an expression of the names of input dims.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ge_runtime.cli.convert.npu_ge_parameters import DeclaredDims, open_places
from ge_runtime.config.model_tensors import is_axis_name
from ge_runtime.discovery.configuration import Tensor, tensor_section
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import ROWS, UNKNOWN

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_EXPRESSION: Final = re.compile(r"[\w\s()+*/-]+")
_ARTIFACTS: Final = ("model.onnx", "model.om")


def graph_file(folder: Path) -> Path | None:
    """Return the graph that npu_ge uses: an *.onnx below the highest version folder, or None."""
    versions = [each for each in folder.glob("*/") if each.name.isdecimal()]
    for version in sorted(versions, key=lambda each: int(each.name), reverse=True):
        return next(iter(sorted(version.rglob("*.onnx"))), None)
    return None


def graph_changes(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each graph that must be renamed or compiled, and the required step.

    npu_ge uses any ONNX file below a version folder, or else a TensorFlow file.
    """
    for version in sorted(folder.glob("*/")):
        if not version.name.isdecimal() or any((version / name).is_file() for name in _ARTIFACTS):
            continue
        own = f"{version.name}/model"
        if found := _found(folder, version, "*.onnx"):
            yield found, f"rename it to {own}.onnx, then run `ge-runtime build`"
        elif found := _found(folder, version, "*.pb"):
            yield found, f"no engine reads it; compile it to {own}.om with `atc --framework=3`"


def _found(folder: Path, version: Path, pattern: str) -> str:
    return " or ".join(str(file.relative_to(folder)) for file in sorted(version.rglob(pattern)))


def missing_sections(
    config: Mapping[str, object], graph: Signature, *, batched: bool
) -> dict[str, str]:
    """Return the text of the fields `input` and `output` that the configuration lacks.

    Raises:
        ArtifactFault: The graph does not declare the sizes.
    """
    sections = {"input": graph.inputs, "output": graph.outputs}
    return {
        name: "\n".join(tensor_section(name, [_declared(each, batched) for each in tensors])) + "\n"
        for name, tensors in sections.items()
        if not config.get(name)
    }


def _declared(tensor: GraphTensor, batched: bool) -> Tensor:
    if tensor.dims is None or len(tensor.dims) < batched:
        raise ArtifactFault(f"'{tensor.name}' has no dims in the graph")
    dims = tuple(UNKNOWN if dim is None else dim for dim in tensor.dims[batched:])
    return Tensor(tensor.name, tensor.dtype, dims)


def with_symbols(
    names: Mapping[str, Sequence[str]],
    inputs: Sequence[DeclaredDims],
    outputs: Sequence[DeclaredDims],
    graph: Signature,
    *,
    batched: bool,
) -> dict[str, Sequence[str]]:
    """Return the names of -1 dims by tensor: the given names, and otherwise the graph's symbols.

    Dims with the same symbol have equal sizes, so the name of one dim applies to all of these dims.
    """
    symbols = {each.name: each.symbols[batched:] for each in (*graph.inputs, *graph.outputs)}

    def of(tensor: DeclaredDims) -> list[str]:
        own = symbols.get(tensor.name, ())
        if len(own) != len(tensor.dims):
            return ["" for _ in open_places(tensor)]
        return [own[place] or "" for place in open_places(tensor)]

    axes: dict[str, str] = {}
    for tensor in inputs:
        axes.update(zip(of(tensor), names.get(tensor.name, ()), strict=False))
    for symbol in (symbol for tensor in inputs for symbol in of(tensor)):
        if is_axis_name(symbol) and symbol != ROWS:
            axes.setdefault(symbol, symbol)
    found = dict(names)
    for tensor in (*inputs, *outputs):
        own = [_relation(symbol, axes) for symbol in of(tensor)]
        if own and all(own):
            found.setdefault(tensor.name, own)
    return found


def _relation(symbol: str, axes: Mapping[str, str]) -> str:
    """Return an axis or a relation of axes for a dim's name; "" if it is neither."""
    if not _EXPRESSION.fullmatch(symbol) or not axes.keys() >= {*_NAME.findall(symbol)}:
        return axes.get(symbol, "")
    return _NAME.sub(lambda match: axes[match[0]], re.sub("/+", "//", symbol))
