import numpy as np
import pytest

from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import DType, TensorSpec


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BF16])
def test_numpy_types_lead_back_to_their_dtype(dtype):
    assert DType.of_numpy(dtype.numpy) is dtype


@pytest.mark.parametrize("dtype", DType)
def test_config_names_lead_back_to_their_dtype(dtype):
    assert DType.of_config(dtype.config_name) is dtype


def test_bytes_are_spelled_string_in_a_config_and_are_objects_in_numpy():
    assert DType.BYTES.config_name == "TYPE_STRING"
    assert DType.BYTES.numpy == np.dtype(object)


def test_bf16_says_that_numpy_has_no_such_type():
    with pytest.raises(RuntimeFault, match="BF16 has no NumPy type"):
        _ = DType.BF16.numpy


def test_unknown_types_are_key_errors():
    with pytest.raises(KeyError):
        DType.of_config("TYPE_FP8")
    with pytest.raises(KeyError):
        DType.of_numpy(np.dtype(np.complex64))


@pytest.mark.parametrize("dtype", [d for d in DType if d not in (DType.BYTES, DType.BF16)])
def test_integers_are_those_that_numpy_calls_integers(dtype):
    assert dtype.is_integer == np.issubdtype(dtype.numpy, np.integer)


def test_spec_names_its_axes_and_takes_their_sizes():
    spec = TensorSpec("image", DType.FP32, (1, "height", "width"))
    assert spec.axes == ("height", "width")
    assert spec.shape({"height": 7, "width": 5, "other": 1}) == (1, 7, 5)
    assert str(spec) == "FP32[1,height,width]"
