"""Tests of DLPack in both directions, with NumPy and, where installed, torch."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from triton_python_backend_utils import Tensor, TritonModelException

from reference_server.core import tensor as core
from reference_server.core.tensor import DataType

NUMBERS = [np.dtype(f"{kind}{size}") for kind in "ui" for size in (1, 2, 4, 8)]
NUMBERS += [np.dtype(f"f{size}") for size in (2, 4, 8)]
DTYPES = [np.dtype(bool), *NUMBERS]
TORCH_TYPES = ["bool", "uint8", "int8", "int16", "int32", "int64"]
TORCH_TYPES += ["float16", "bfloat16", "float32", "float64"]


class Exporter:
    """A producer that returns one capsule."""

    def __init__(self, capsule, device=(1, 0)):
        self._capsule = capsule
        self._device = device

    def __dlpack__(self):
        return self._capsule

    def __dlpack_device__(self):
        return self._device


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_and_we_share_memory_in_both_directions(dtype):
    array = np.ones((2, 3), dtype)
    tensor = Tensor.from_dlpack("Y", Tensor("X", array))
    assert (tensor.name(), tensor.shape()) == ("Y", [2, 3])
    back = tensor.as_numpy()
    assert back.dtype == dtype
    assert back.flags.writeable
    array[1, 2] = 0
    assert back.tolist() == array.tolist()


def test_capsules_are_accepted():
    array = np.arange(3.0)
    assert np.shares_memory(
        Tensor.from_dlpack("Y", Tensor("X", array).to_dlpack()).as_numpy(), array
    )
    assert np.shares_memory(Tensor.from_dlpack("Y", array.__dlpack__()).as_numpy(), array)


def test_a_read_only_array_is_exported():
    array = np.arange(3.0)
    array.flags.writeable = False
    assert Tensor.from_dlpack("Y", Tensor("X", array)).as_numpy().tolist() == [0, 1, 2]


def test_bf16_is_passed_unchanged():
    bits = np.array([0x3F80, 0xC000], np.uint16)
    given_ = Tensor._received(core.Tensor("X", DataType.BF16, (2,), raw=memoryview(bits.tobytes())))
    tensor = Tensor.from_dlpack("Y", given_)
    assert tensor._core.datatype is DataType.BF16
    assert tensor._core.array().tolist() == bits.tolist()
    with pytest.raises(TritonModelException, match=r"BF16"):
        tensor.as_numpy()
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(given_)


def test_memory_is_freed_with_its_last_reference():
    array = np.arange(3.0)
    owner = weakref.ref(array)
    tensor = Tensor.from_dlpack("Y", Tensor.from_dlpack("Z", Tensor("X", array)))
    del array
    gc.collect()
    assert owner() is not None
    del tensor
    gc.collect()
    assert owner() is None


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            5,
            "Provided tensor is not supported. Tensor must be a DLPack capsule         "
            "or have `__dlpack__` and `__dlpack_device__` attributes",
        ),
        (
            np.arange(6.0).reshape(2, 3).T,
            "DLPack tensor is not contiguous. "
            "Only contiguous DLPack tensors that are stored in C-Order are supported.",
        ),
        (np.zeros(2, np.complex64), "Dtype is invalid."),
        (Exporter(None, (2, 0)), "DLDevice type 2 is not support by Python backend."),
    ],
    ids=["no producer", "order", "complex", "another device"],
)
def test_unsupported_producers_are_refused(source, text):
    with pytest.raises(TritonModelException) as caught:
        Tensor.from_dlpack("Y", source)
    assert str(caught.value) == text


def test_a_used_capsule_is_refused():
    capsule = np.arange(3.0).__dlpack__()
    Tensor.from_dlpack("Y", capsule)
    with pytest.raises(TritonModelException, match=r"^Provided tensor is not supported"):
        Tensor.from_dlpack("Y", capsule)


def test_the_empty_name_is_refused_first():
    with pytest.raises(TritonModelException, match=r"empty string"):
        Tensor.from_dlpack("", 5)
    with pytest.raises(TypeError, match=r"^argument 'name': found 5"):
        Tensor.from_dlpack(5, 5)


def test_newer_keywords_are_refused_so_that_consumers_fall_back():
    with pytest.raises(TypeError):
        Tensor("X", np.zeros(1)).__dlpack__(max_version=(1, 0))
    assert Tensor("X", np.zeros(1)).__dlpack__(stream=None) is not None


@settings(max_examples=20)
@given(arrays.arrays(st.sampled_from(DTYPES), arrays.array_shapes(min_dims=0, min_side=0)))
def test_elements_keep_their_bits(array):
    back = Tensor.from_dlpack("Y", Tensor("X", array)).as_numpy()
    assert back.shape == array.shape
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


# --------------------------------------------------------------------------------------- GPU memory


class OnDevice:
    """A producer like a torch tensor on a GPU; its capsule is in host memory."""

    def __init__(self, array):
        self.array = array
        self.streams = []

    def cpu(self):
        return self.array.copy()

    def __dlpack__(self, *, stream):
        self.streams.append(stream)
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return (2, 1)


def test_the_model_keeps_its_gpu_tensor():
    source = OnDevice(np.arange(3, dtype=np.float32))
    tensor = Tensor.from_dlpack("Y", source)
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype()) == ("Y", [3], 11)
    assert not tensor.is_cpu()
    assert tensor.__dlpack_device__() == (2, 1)
    assert isinstance(tensor, Tensor)
    assert repr(tensor).startswith("<c_python_backend_utils.Tensor object at ")
    with pytest.raises(
        TritonModelException,
        match=r"^Tensor is stored in GPU and cannot be converted to NumPy.$",
    ):
        tensor.as_numpy()
    back = Tensor.from_dlpack("Z", tensor.to_dlpack())
    assert np.shares_memory(back.as_numpy(), source.array)
    tensor.__dlpack__(7)
    assert source.streams == [None, 7]


def test_the_server_receives_a_host_copy():
    source = OnDevice(np.arange(3, dtype=np.float32))
    passed_on = Tensor.from_dlpack("Y", source)._core
    assert passed_on.array().tolist() == [0, 1, 2]
    assert not np.shares_memory(passed_on.array(), source.array)


# -------------------------------------------------------------------------------------------- torch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_torch_and_we_share_memory_in_both_directions(torch, dtype):
    given_ = torch.ones((2, 3), dtype=getattr(torch, dtype))
    tensor = Tensor.from_dlpack("Y", given_)
    for back in (
        torch.from_dlpack(tensor),
        torch.utils.dlpack.from_dlpack(tensor.to_dlpack()),
        torch.from_dlpack(Tensor.from_dlpack("Z", tensor.to_dlpack())),
        torch.from_dlpack(Tensor.from_dlpack("Z", torch.utils.dlpack.to_dlpack(given_))),
    ):
        assert back.dtype == given_.dtype
        assert back.data_ptr() == given_.data_ptr()
        assert torch.equal(back, given_)


def test_a_received_tensor_is_a_torch_tensor_without_a_copy(torch):
    wire = bytearray(np.arange(3, dtype=np.float32).tobytes())
    tensor = Tensor._received(core.Tensor("X", DataType.FP32, (3,), raw=memoryview(wire)))
    torch.from_dlpack(tensor).mul_(2)
    assert tensor.as_numpy().tolist() == [0, 2, 4]


def test_exceptions_of_torch_pass_through(torch):
    with pytest.raises(BufferError, match=r"require gradient"):
        Tensor.from_dlpack("Y", torch.ones(2, requires_grad=True))


def test_a_torch_tensor_on_a_gpu(torch):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    given_ = torch.arange(6, dtype=torch.float16, device="cuda").reshape(2, 3)
    tensor = Tensor.from_dlpack("Y", given_)
    assert not tensor.is_cpu()
    assert tensor.shape() == [2, 3]
    assert tensor.__dlpack_device__() == (2, given_.device.index)
    for back in (torch.from_dlpack(tensor), torch.utils.dlpack.from_dlpack(tensor.to_dlpack())):
        assert back.data_ptr() == given_.data_ptr()
        assert torch.equal(back, given_)
    assert tensor._core.array().tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(TritonModelException, match=r"^DLPack tensor is not contiguous"):
        Tensor.from_dlpack("Y", given_.T)
