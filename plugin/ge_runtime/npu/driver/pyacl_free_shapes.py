"""Executions of models of free shapes by pyACL: dims are told before, and asked for after."""

from __future__ import annotations

from collections.abc import Sequence

from ge_runtime.npu.driver.description import ModelTensor
from ge_runtime.npu.driver.driver import Address, Dataset, ModelId, Produced
from ge_runtime.npu.driver.pyacl_description import Acl, PyAclDescriptions
from ge_runtime.npu.driver.return_codes import ReturnCodeChecker


class PyAclFreeShapes:
    """FreeShapes by the functions of one `acl` module, each answer checked."""

    def __init__(
        self, acl: Acl, checker: ReturnCodeChecker, descriptions: PyAclDescriptions
    ) -> None:
        """acl: the module, or one that keeps its contract."""
        self._acl = acl
        self._mdl = acl.mdl
        self._status = checker.status
        self._value = checker.value
        self._handle = checker.handle
        self._descriptions = descriptions

    def load(self, path: str) -> ModelId:
        return ModelId(self._value("acl.mdl.load_from_file", self._mdl.load_from_file(path)))

    def ranges(self, model: ModelId, count: int) -> list[tuple[tuple[int, int], ...]]:
        return self._descriptions.ranges(model, count)

    def tell_dims(
        self, inputs: Dataset, index: int, tensor: ModelTensor, dims: Sequence[int]
    ) -> None:
        # Of the description only the dims count, and the dataset keeps a copy of it.
        desc = self._acl.create_tensor_desc(tensor.dtype, list(dims), tensor.format)
        desc = self._handle("acl.create_tensor_desc", desc)
        try:
            answer = self._mdl.set_dataset_tensor_desc(inputs.handle, desc, index)
            self._value("acl.mdl.set_dataset_tensor_desc", answer)
        finally:
            self._acl.destroy_tensor_desc(desc)  # it answers nothing

    def execute(self, model: ModelId, inputs: Dataset, outputs: Dataset) -> None:
        code = self._mdl.execute(model, inputs.handle, outputs.handle)
        self._status("acl.mdl.execute", code)

    def output(self, outputs: Dataset, index: int) -> Produced:
        acl = self._acl
        desc = self._mdl.get_dataset_tensor_desc(outputs.handle, index)
        desc = self._handle("acl.mdl.get_dataset_tensor_desc", desc)
        dims = (
            acl.get_tensor_desc_dim_v2(desc, place)
            for place in range(acl.get_tensor_desc_num_dims(desc))
        )
        name = "acl.get_tensor_desc_dim_v2"
        found = tuple(int(self._value(name, answer)) for answer in dims)
        return Produced(found, self.address(outputs, index))

    def address(self, outputs: Dataset, index: int) -> Address:
        return Address(self._acl.get_data_buffer_addr(outputs.buffers[index]))

    def clear(self, outputs: Dataset, index: int) -> None:
        code = self._acl.update_data_buffer(outputs.buffers[index], 0, 0)
        self._status("acl.update_data_buffer", code)
