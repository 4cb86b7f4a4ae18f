"""Data types: the table of the protocol."""

import numpy as np
import pytest

from reference_server.core.tensor import CONFIG_DATATYPES, DATATYPES, DataType, datatype_of

NAMES_BY_SIZE = {
    1: ["BOOL", "UINT8", "INT8"],
    2: ["UINT16", "INT16", "FP16", "BF16"],
    4: ["UINT32", "INT32", "FP32"],
    8: ["UINT64", "INT64", "FP64"],
}
SIZES = {name: size for size, names in NAMES_BY_SIZE.items() for name in names}


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_numbers_have_a_size_and_a_config_name(name, size):
    datatype = DATATYPES[name]
    assert (datatype.byte_size, datatype.config_name) == (size, f"TYPE_{name}")
    assert CONFIG_DATATYPES[f"TYPE_{name}"] is datatype


def test_bytes_have_the_config_name_string():
    assert CONFIG_DATATYPES["TYPE_STRING"] is DataType.BYTES
    assert DataType.BYTES.is_bytes


def test_there_are_no_other_types():
    assert DATATYPES.keys() == {*SIZES, "BYTES"}


@pytest.mark.parametrize("name", ["STRING", "fp32", "TYPE_FP32", "FLOAT", ""])
def test_other_names_are_unknown(name):
    assert name not in DATATYPES


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *(
            (name.lower().replace("fp", "float"), name)
            for name in SIZES
            if name not in ("BOOL", "BF16")
        ),
        ("bool", "BOOL"),
        ("object", "BYTES"),
        ("S3", "BYTES"),
    ],
)
def test_an_array_has_the_data_type_of_its_dtype(dtype, name):
    assert datatype_of(np.empty(2, dtype)) is DATATYPES[name]


@pytest.mark.parametrize("dtype", ["complex64", "U3", ">f4", "datetime64[s]"])
def test_other_dtypes_have_no_data_type(dtype):
    assert datatype_of(np.empty(2, dtype)) is None
