"""The names of dimensions.

- `axes.<input or output>`: a name for each -1 in the tensor's dims, in order, e.g. `height, width`;
  for outputs also a relation between axes, e.g. `(height + 1) // 2, width * 2`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ge_runtime.config.faults import Faults
from ge_runtime.config.parameters import Parameters, split_names
from ge_runtime.relations import Relation
from ge_runtime.specs import UNKNOWN, TensorSpec

_AXIS_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def is_axis_name(text: str) -> bool:
    """Whether an axis can have this name."""
    return _AXIS_NAME.fullmatch(text) is not None


class Names:
    """What `axes.<tensor>` says, tensor by tensor. For one thread."""

    def __init__(self, parameters: Parameters, faults: Faults) -> None:
        self._lists = {name: split_names(t) for name, t in parameters.families["axes"].items()}
        self._faults = faults

    @property
    def tensors(self) -> Sequence[str]:
        """The tensors whose dims are given names."""
        return tuple(self._lists)

    def mentioned(self, name: str) -> tuple[str, ...]:
        """What stands in the tensor's list, be it right or wrong."""
        return self._lists.get(name, ())

    def of_input(self, spec: TensorSpec, *, needed: bool) -> TensorSpec:
        """The tensor with each -1 of its dims replaced by the name of an axis.

        needed: a tensor with a -1 must have names.
        """
        names = self._counted(spec, needed=needed)
        if all(map(is_axis_name, names)):
            return _named(spec, names)
        expected = f"{_wanted(spec)}; relations are for outputs"
        self._faults.add(_place(spec), f"'{', '.join(names)}'", expected)
        return spec

    def of_output(self, spec: TensorSpec, *, needed: bool) -> TensorSpec:
        """The tensor with each -1 of its dims replaced by the name of an axis or a relation."""
        dims: list[str | Relation] = []
        for text in self._counted(spec, needed=needed):
            try:
                dims.append(_dim(text))
            except ValueError as error:
                self._faults.add(_place(spec), f"'{text}'", str(error))
                return spec
        return _named(spec, dims)

    def _counted(self, spec: TensorSpec, *, needed: bool) -> tuple[str, ...]:
        """The names in the tensor's list; none, and a fault, if they are too few or too many."""
        names, wanted = self._lists.get(spec.name), spec.dims.count(UNKNOWN)
        if names is None and wanted and needed:
            self._faults.add(_place(spec), "nothing", _wanted(spec))
        elif names is not None and len(names) != wanted:
            self._faults.add(_place(spec), f"'{', '.join(names)}'", _wanted(spec))
        elif names is not None:
            return names
        return ()


def _place(spec: TensorSpec) -> str:
    return f"parameter 'axes.{spec.name}'"


def _wanted(spec: TensorSpec) -> str:
    return f"{spec.dims.count(UNKNOWN)} name(s), one per -1 of dims {list(spec.dims)}"


def _dim(text: str) -> str | Relation:
    """An axis or a relation. Raises ValueError with what was expected."""
    if is_axis_name(text):
        return text
    relation = Relation.parse(text)
    return relation.term if isinstance(relation.term, str) else relation


def _named(spec: TensorSpec, names: Sequence[str | Relation]) -> TensorSpec:
    """The tensor with its dims of -1 replaced by names, one each; as it is without names."""
    if not names:
        return spec
    left = iter(names)
    return replace(spec, dims=tuple(next(left) if dim == UNKNOWN else dim for dim in spec.dims))
