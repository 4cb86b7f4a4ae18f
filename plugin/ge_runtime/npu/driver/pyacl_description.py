"""What pyACL tells of a loaded model: its tensors, its gears and the dims of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from ge_runtime.npu.driver.description import ModelDescription, ModelTensor
from ge_runtime.npu.driver.driver import ModelId
from ge_runtime.npu.driver.return_codes import DriverFault, ReturnCodeChecker

# The module, which comes without types.
Acl: TypeAlias = Any

_RESERVED_INDEX: Final = -1
"""What the functions of gears want for their argument `index`."""
_STAND_IN: Final = "acl_modelId_"
"""How a name begins that stands for one that is too long."""
_INPUT, _OUTPUT = "acl.mdl.get_input", "acl.mdl.get_output"
_Size: TypeAlias = Callable[[str, int], int]
"""What to make of the bytes that a function answers, by its name."""


class PyAclDescriptions:
    """Descriptions by the functions of `acl.mdl`, each answer checked."""

    def __init__(self, acl: Acl, checker: ReturnCodeChecker) -> None:
        """acl: the module, or one that keeps its contract."""
        self._mdl = acl.mdl
        self._status = checker.status
        self._value = checker.value
        self._handle = checker.handle
        self._getter = checker.getter

    def describe(self, model: ModelId, *, free_shapes: bool) -> ModelDescription:
        """See `Driver.describe`."""
        with self._described(model) as desc:
            return self._description(desc, self._size if free_shapes else self._getter)

    def output_dims(self, model: ModelId, count: int) -> list[tuple[int, ...]]:
        """See `Driver.output_dims`."""
        with self._described(model) as desc:
            answers = [self._mdl.get_cur_output_dims(desc, index) for index in range(count)]
        return [self._dims("acl.mdl.get_cur_output_dims", answer) for answer in answers]

    def ranges(self, model: ModelId, count: int) -> list[tuple[tuple[int, int], ...]]:
        """See `FreeShapes.ranges`."""
        with self._described(model) as desc:
            answers = [self._mdl.get_input_dims_range(desc, index) for index in range(count)]
        found = [self._value("acl.mdl.get_input_dims_range", answer) for answer in answers]
        return [
            tuple((low, high) for low, high in own["range"][: own["rangeCount"]]) for own in found
        ]

    @contextmanager
    def _described(self, model: ModelId) -> Iterator[int]:
        desc = self._handle("acl.mdl.create_desc", self._mdl.create_desc())
        try:
            self._status("acl.mdl.get_desc", self._mdl.get_desc(desc, model))
        except DriverFault:
            self._mdl.destroy_desc(desc)
            raise
        try:
            yield desc
        finally:
            self._status("acl.mdl.destroy_desc", self._mdl.destroy_desc(desc))

    def _description(self, desc: int, size: _Size) -> ModelDescription:
        """size: what to make of a getter's bytes."""
        mdl, get = self._mdl, self._getter
        # Types and formats are not checked here: theirs fail with -1, "undefined", and a tensor of
        # such a type is refused by the engine.
        inputs = tuple(
            ModelTensor(
                name=self._real_name(
                    desc,
                    get(f"{_INPUT}_name_by_index", mdl.get_input_name_by_index(desc, index)),
                ),
                dtype=int(mdl.get_input_data_type(desc, index)),
                format=int(mdl.get_input_format(desc, index)),
                dims=self._dims("acl.mdl.get_input_dims", mdl.get_input_dims(desc, index)),
                nbytes=size(f"{_INPUT}_size_by_index", mdl.get_input_size_by_index(desc, index)),
            )
            for index in range(get("acl.mdl.get_num_inputs", mdl.get_num_inputs(desc)))
        )
        outputs = tuple(
            ModelTensor(
                name=self._real_name(
                    desc,
                    get(f"{_OUTPUT}_name_by_index", mdl.get_output_name_by_index(desc, index)),
                ),
                dtype=int(mdl.get_output_data_type(desc, index)),
                format=int(mdl.get_output_format(desc, index)),
                dims=self._dims("acl.mdl.get_output_dims", mdl.get_output_dims(desc, index)),
                nbytes=size(f"{_OUTPUT}_size_by_index", mdl.get_output_size_by_index(desc, index)),
            )
            for index in range(get("acl.mdl.get_num_outputs", mdl.get_num_outputs(desc)))
        )
        batch = self._value("acl.mdl.get_dynamic_batch", mdl.get_dynamic_batch(desc))
        image = self._value("acl.mdl.get_dynamic_hw", mdl.get_dynamic_hw(desc, _RESERVED_INDEX))
        return ModelDescription(
            inputs,
            outputs,
            batches=tuple(batch["batch"][: batch["batchCount"]]),
            images=tuple((h, w) for h, w in image["hw"][: image["hwCount"]]),
            dims=self._dims_gears(desc),
        )

    def _size(self, function: str, nbytes: int) -> int:
        """Bytes, 0 where only an execution tells them: there that is no failure."""
        return nbytes

    def _real_name(self, desc: int, name: str) -> str:
        """The name, or the one that it stands for: long ones are told as acl_modelId_..."""
        if name.startswith(_STAND_IN):
            return str(self._mdl.get_tensor_real_name(desc, name) or name)
        return name

    def _dims(self, function: str, answer: tuple[Any, int]) -> tuple[int, ...]:
        return tuple(self._value(function, answer)["dims"])

    def _dims_gears(self, desc: int) -> tuple[tuple[int, ...], ...]:
        answer = self._mdl.get_input_dynamic_gear_count(desc, _RESERVED_INDEX)
        count = self._value("acl.mdl.get_input_dynamic_gear_count", answer)
        if not count:
            return ()
        answer = self._mdl.get_input_dynamic_dims(desc, _RESERVED_INDEX, count)
        return tuple(
            tuple(gear["dims"][: gear["dimCount"]])
            for gear in self._value("acl.mdl.get_input_dynamic_dims", answer)
        )
