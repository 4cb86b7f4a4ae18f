"""What a model's description tells of its tensors: how many, and of each size, type and name."""

from __future__ import annotations

from ascend_simulator.calls import STR, U64, bare, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.descs import Tensor, at, described


@bare("mdl.get_num_inputs", U64)
def get_num_inputs(handle: int) -> int:
    """How many inputs, the gear input included."""
    return len(described(handle, "get_num_inputs").inputs)


@bare("mdl.get_num_outputs", U64)
def get_num_outputs(handle: int) -> int:
    """How many outputs."""
    return len(described(handle, "get_num_outputs").outputs)


@bare("mdl.get_input_size_by_index", U64, U64)
def get_input_size_by_index(handle: int, index: int) -> int:
    """Bytes at the largest gear; 0 where shapes are free."""
    return at(described(handle, "get_input_size_by_index").inputs, index).nbytes


@bare("mdl.get_output_size_by_index", U64, U64)
def get_output_size_by_index(handle: int, index: int) -> int:
    """Bytes at the largest gear; 0 where shapes are free."""
    return at(described(handle, "get_output_size_by_index").outputs, index).nbytes


@bare("mdl.get_input_data_type", U64, U64)
def get_input_data_type(handle: int, index: int) -> int:
    """An aclDataType."""
    return at(described(handle, "get_input_data_type").inputs, index).dtype


@bare("mdl.get_output_data_type", U64, U64)
def get_output_data_type(handle: int, index: int) -> int:
    """An aclDataType."""
    return at(described(handle, "get_output_data_type").outputs, index).dtype


@bare("mdl.get_input_format", U64, U64)
def get_input_format(handle: int, index: int) -> int:
    """An aclFormat."""
    return at(described(handle, "get_input_format").inputs, index).format


@bare("mdl.get_output_format", U64, U64)
def get_output_format(handle: int, index: int) -> int:
    """An aclFormat."""
    return at(described(handle, "get_output_format").outputs, index).format


@bare("mdl.get_input_name_by_index", U64, U64, failed="")
def get_input_name_by_index(handle: int, index: int) -> str:
    """Its name."""
    return at(described(handle, "get_input_name_by_index").inputs, index).name


@bare("mdl.get_output_name_by_index", U64, U64, failed="")
def get_output_name_by_index(handle: int, index: int) -> str:
    """Its name, node:port:name."""
    return at(described(handle, "get_output_name_by_index").outputs, index).name


@value("mdl.get_input_index_by_name", U64, STR)
def get_input_index_by_name(handle: int, name: str) -> int:
    """Where the input of this name is."""
    return _index(described(handle, "get_input_index_by_name").inputs, name)


@value("mdl.get_output_index_by_name", U64, STR)
def get_output_index_by_name(handle: int, name: str) -> int:
    """Where the output of this name is."""
    return _index(described(handle, "get_output_index_by_name").outputs, name)


@bare("mdl.get_tensor_real_name", U64, STR, failed="")
def get_tensor_real_name(handle: int, name: str) -> str:
    """The name that `name` stands in for, or itself; '' for an unknown one."""
    desc = described(handle, "get_tensor_real_name")
    tensors = (*desc.inputs, *desc.outputs)
    return tensors[_index(tensors, name)].real_name


@bare("mdl.get_op_attr", U64, STR, STR, failed="")
def get_op_attr(handle: int, operator: str, attribute: str) -> str:
    """Nothing: a simulated model has no operators with attributes."""
    described(handle, "get_op_attr")
    return ""


def _index(tensors: tuple[Tensor, ...], name: str) -> int:
    for index, tensor in enumerate(tensors):
        if tensor.name == name:
            return index
    known = ", ".join(tensor.name for tensor in tensors)
    raise Refused(Code.INVALID_PARAM, f"found no tensor '{name}', expected one of {known}")
