"""RuntimeConfig, and what each parameter means.

Reading never stops at the first fault: all are collected and raised together, each with its
place, what was found and what was expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, TypeAlias

import numpy as np

from ge_runtime.config.declared import (
    read_instances,
    read_max_batch_size,
    read_tensors,
    read_whole,
)
from ge_runtime.config.faults import Faults
from ge_runtime.config.parameters import ENGINES, Parameters, split_names
from ge_runtime.specs import UNKNOWN, DType, TensorSpec

Pad: TypeAlias = bool | int | float

_AXIS_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """What config.pbtxt says of one model, consistent in itself, not yet held against its graph."""

    model: str
    engine: str
    """One of ENGINES."""
    max_batch_size: int
    """0: requests have no batch dimension, and each is executed alone."""
    inputs: tuple[TensorSpec, ...]
    """What requests bring."""
    outputs: tuple[TensorSpec, ...]
    """What the graph gives."""
    derived: tuple[TensorSpec, ...]
    """What the model's own code makes of the graph's outputs."""
    limits: Mapping[str, int]
    """The largest size of each axis."""
    axis_lengths: Mapping[str, str]
    """Axis: the request input that holds each row's true length along it."""
    masks: Mapping[str, tuple[str, ...]]
    """Graph input: the axes of the mask that is generated for it."""
    lengths: Mapping[str, str]
    """Graph input: the axis whose true lengths are generated for it."""
    pads: Mapping[str, Pad]
    """Request input: the value of its padding, where that is not 0."""
    intra_op_threads: int

    @property
    def rows(self) -> int:
        """The most rows that one execution takes."""
        return max(1, self.max_batch_size)

    @classmethod
    def parse(
        cls, model_config: Mapping[str, object], *, cores: int, derived: Collection[str] = ()
    ) -> RuntimeConfig:
        """The configuration in `model_config`, the JSON that Triton hands to a model, parsed.

        cores: those this process may use; the model's instances share them.
        derived: the names of the outputs that the model's own code makes.
        Raises ConfigFault with every fault found.
        """
        faults = Faults(str(model_config.get("name", "")))
        reader = _Reader(model_config, derived, faults)
        config = reader.read(cores)
        faults.raise_any()
        return config


class _Reader:
    """Gives each parameter its meaning. What it returns counts only if there are no faults."""

    def __init__(
        self, model_config: Mapping[str, object], derived: Collection[str], faults: Faults
    ) -> None:
        self._config = model_config
        self._faults = faults
        self._batch = read_max_batch_size(model_config, faults)
        self._parameters = Parameters.read(model_config, faults)
        declared = read_tensors(model_config, "output", faults, passed=derived)
        names = [tensor.name for tensor in declared]
        for name in derived:
            if name not in names:
                faults.add_unknown("derived outputs", "output", name, names)
        self._derived = tuple(tensor for tensor in declared if tensor.name in derived)
        outputs = [tensor for tensor in declared if tensor.name not in derived]
        inputs = read_tensors(model_config, "input", faults, passed=())
        # Padding needs every size of an input. A size of an output that nobody names could
        # depend on who shared the batch, so only requests that run alone may leave one open.
        self._inputs = {tensor.name: self._named(tensor, needed=True) for tensor in inputs}
        self._outputs = [self._named(tensor, needed=self._batch > 0) for tensor in outputs]
        self._axes = self._check_axes({*self._inputs, *(tensor.name for tensor in outputs)})

    def read(self, cores: int) -> RuntimeConfig:
        return RuntimeConfig(
            model=str(self._config.get("name", "")),
            engine=self._engine(),
            max_batch_size=self._batch,
            inputs=tuple(self._inputs.values()),
            outputs=tuple(self._outputs),
            derived=self._derived,
            limits=self._limits(),
            axis_lengths=self._axis_lengths(),
            masks=self._masks(),
            lengths=self._lengths(),
            pads=self._pads(),
            intra_op_threads=self._intra_op_threads(cores),
        )

    def _engine(self) -> str:
        engine = self._parameters.settings.get("engine", "auto")
        if engine not in ENGINES:
            self._faults.add_unknown("parameter 'engine'", "engine", engine, ENGINES)
        return engine

    def _intra_op_threads(self, cores: int) -> int:
        # Each instance that takes all cores is a common cause of slow servers.
        share = max(1, cores // read_instances(self._config, self._faults))
        text = self._parameters.settings.get("intra_op_threads", str(share))
        return read_whole("parameter 'intra_op_threads'", text, self._faults, least=1)

    # -- axes --------------------------------------------------------------------------------

    def _named(self, tensor: TensorSpec, *, needed: bool) -> TensorSpec:
        """The tensor with its dims of -1 replaced by the names that `axes.<tensor>` gives."""
        place = f"parameter 'axes.{tensor.name}'"
        text = self._parameters.families["axes"].get(tensor.name)
        wanted = tensor.dims.count(UNKNOWN)
        expected = f"{wanted} name(s), one per -1 of dims {list(tensor.dims)}"
        if text is None:
            if wanted and needed:
                self._faults.add(place, "nothing", expected)
            return tensor
        names = split_names(text)
        if len(names) != wanted or not all(map(_AXIS_NAME.fullmatch, names)):
            self._faults.add(place, f"'{text}'", expected)
            return tensor
        left = iter(names)
        return replace(
            tensor, dims=tuple(next(left) if dim == UNKNOWN else dim for dim in tensor.dims)
        )

    def _check_axes(self, tensors: Collection[str]) -> tuple[str, ...]:
        """The names of axes whose sizes requests bring.

        Those in a faulty list count too: one slip is one fault, not a fault at every mention.
        """
        given = self._parameters.families["axes"]
        for name in given:
            if name not in tensors:
                self._faults.add_unknown(f"parameter 'axes.{name}'", "tensor", name, tensors)
        lists = [split_names(given[name]) for name in self._inputs if name in given]
        axes = tuple(dict.fromkeys(chain.from_iterable(lists)))
        for output in self._outputs:
            for axis in output.axes:
                self._known_axis(f"parameter 'axes.{output.name}'", axis, axes)
        return axes

    def _known_axis(self, place: str, axis: str, axes: Iterable[str]) -> bool:
        known = axis in axes
        if not known:
            self._faults.add_unknown(place, "axis", axis, axes)
        return known

    def _limits(self) -> dict[str, int]:
        limits = {}
        for axis, text in self._parameters.families["limit"].items():
            place = f"parameter 'limit.{axis}'"
            if self._known_axis(place, axis, self._axes):
                limits[axis] = read_whole(place, text, self._faults, least=1)
        for axis in dict.fromkeys(axis for spec in self._inputs.values() for axis in spec.axes):
            if axis not in limits:
                expected = f"the largest size of axis '{axis}': memory is planned from it"
                self._faults.add(f"parameter 'limit.{axis}'", "nothing", expected)
        return limits

    def _axis_lengths(self) -> dict[str, str]:
        given = self._parameters.families["axis_length"]
        for axis, name in given.items():
            place = f"parameter 'axis_length.{axis}'"
            self._known_axis(place, axis, self._axes)
            if name not in self._inputs:
                self._faults.add_unknown(place, "input", name, self._inputs)
                continue
            spec = self._inputs[name]
            if not spec.dtype.is_integer or spec.dims not in ((), (1,)):
                self._faults.add(place, f"input '{name}' {spec}", "integers, one for each row")
        return dict(given)

    # -- generated graph inputs --------------------------------------------------------------

    def _masks(self) -> dict[str, tuple[str, ...]]:
        masks = {}
        for name, text in self._parameters.families["mask"].items():
            masks[name] = split_names(text)
            self._check_generated(f"parameter 'mask.{name}'", name, masks[name])
        return masks

    def _lengths(self) -> dict[str, str]:
        given = self._parameters.families["lengths"]
        for name, axis in given.items():
            place = f"parameter 'lengths.{name}'"
            self._check_generated(place, name, (axis,))
            if name in self._parameters.families["mask"]:
                self._faults.add(place, f"'mask.{name}' as well", "one of the two")
        return dict(given)

    def _check_generated(self, place: str, name: str, axes: Iterable[str]) -> None:
        for axis in axes:
            self._known_axis(place, axis, self._axes)
        if name in self._inputs:
            self._faults.add(place, f"'{name}' among the inputs", "a graph input requests lack")

    # -- padding -----------------------------------------------------------------------------

    def _pads(self) -> dict[str, Pad]:
        pads: dict[str, Pad] = {}
        for name, text in self._parameters.families["pad"].items():
            place = f"parameter 'pad.{name}'"
            if name not in self._inputs:
                self._faults.add_unknown(place, "input", name, self._inputs)
                continue
            spec = self._inputs[name]
            if all(isinstance(dim, int) and dim != UNKNOWN for dim in spec.dims):
                self._faults.add(place, f"no -1 in dims {list(spec.dims)}", "an input with axes")
            pad = _read_pad(text, spec.dtype)
            if pad is None:
                self._faults.add(place, f"'{text}'", f"a value of type {spec.dtype.value}")
            else:
                pads[name] = pad
        return pads


def _read_pad(text: str, dtype: DType) -> Pad | None:
    """The value that `text` writes for `dtype`, or None if it is none. Floats may be infinite."""
    if dtype is DType.BOOL:
        return _TRUTHS.get(text.lower())
    try:
        if dtype.is_integer:
            whole, range_ = int(text), np.iinfo(dtype.numpy)
            return whole if range_.min <= whole <= range_.max else None
        value, largest = float(text), float(np.finfo(dtype.numpy).max)
    except ValueError:
        return None
    return None if largest < abs(value) < math.inf else value
