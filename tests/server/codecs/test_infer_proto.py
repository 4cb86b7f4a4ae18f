"""ModelInferRequest and its cached heads, beyond the rows of tests/recorded/test_grpc.py."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.regions import MadeUpRegions
from server.support.requests import NullSink
from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import infer_proto, infer_proto_response
from reference_server.codecs.infer_proto import InferMessageDecoder
from reference_server.codecs.inference import ResponseForm
from reference_server.core.errors import ServerError
from reference_server.core.metadata import Signature, TensorConfig
from reference_server.core.request import InferResponse
from reference_server.core.tensor import DataType, Tensor

MODEL = Signature("m", 0, (TensorConfig("X", DataType.FP32, (-1,)),), ())
TWO = np.array([1, 2], dtype=np.float32)
RAW = [TWO.tobytes()]


def x(datatype="FP32", shape=(2,), contents=None, **parameters):
    return pb.ModelInferRequest.InferInputTensor(
        name="X", datatype=datatype, shape=shape, contents=contents, parameters=held(parameters)
    )


def held(values):
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return {key: pb.InferParameter(**{kinds[type(v)]: v}) for key, v in values.items()}


def decode(*inputs, raw=RAW, regions=None, given=None, **fields):
    message = pb.ModelInferRequest(
        inputs=inputs or [x()], raw_input_contents=raw, parameters=held(given or {}), **fields
    )
    received = InferMessageDecoder().read(message.SerializeToString())
    return infer_proto.decode(MODEL, received, NullSink(), regions or MadeUpRegions())


def refusal(*inputs, **fields):
    with pytest.raises(ServerError) as caught:
        decode(*inputs, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("datatype", "contents", "value"),
    [
        ("INT8", {"int_contents": [0, 128]}, 128),
        ("INT16", {"int_contents": [-32769]}, -32769),
        ("UINT8", {"uint_contents": [256]}, 256),
        ("UINT16", {"uint_contents": [65536]}, 65536),
    ],
    ids=["INT8", "INT16", "UINT8", "UINT16"],
)
def test_an_integer_that_does_not_fit_is_refused(datatype, contents, value):
    error = refusal(x(datatype, (1,), pb.InferTensorContents(**contents)), raw=())
    assert error.message.endswith(f", value {value} is out of range for '{datatype}'")


def test_a_tensor_in_shared_memory_is_a_view_of_its_region():
    regions = MadeUpRegions(r=bytes(8) + TWO.tobytes())
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 8}
    request, _ = decode(x(**place), raw=(), regions=regions)
    regions.bytes["r"][8:12] = np.float32(7).tobytes()
    assert request.inputs["X"].array().tolist() == [7, 2]
    assert regions.asked == [("read", "r", 8, 8)]


class Signature:
    """A signature with only the name of the model, which is all that is used."""

    def __init__(self, name="m"):
        self.name = name
        self.batches = False


class Regions:
    """Shared memory with the same bytes everywhere."""

    def __init__(self):
        self.asked = []

    def read(self, *span):
        self.asked.append(span)
        return memoryview(b"abcd")

    def output_buffer(self, *span):
        self.asked.append(span)
        return memoryview(repr(span).encode())


def message(*, raw=(bytes(4),), names=("X",), **fields):
    inputs = [
        pb.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=[1])
        for name in names
    ]
    usual = {"model_name": "m", "inputs": inputs, "raw_input_contents": raw}
    return pb.ModelInferRequest(**usual | fields)


def placed(tensor, region):
    """Return the tensor with its data in shared memory."""
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = 4
    return tensor


def in_regions(*, inputs, outputs=(), **fields):
    """A message with these inputs and outputs, those in capitals in shared memory."""
    input_kind, output_kind = (
        pb.ModelInferRequest.InferInputTensor,
        pb.ModelInferRequest.InferRequestedOutputTensor,
    )
    tensors = [input_kind(name=name, datatype="FP32", shape=[1]) for name in inputs]
    wanted = [output_kind(name=name) for name in outputs]
    for tensor in (*tensors, *wanted):
        if tensor.name.isupper():
            placed(tensor, f"r{tensor.name}")
    return message(inputs=tensors, outputs=wanted, **fields)


def comparable(decoded):
    """Return the request in a form that can be compared."""
    request, form = decoded
    inputs = [
        (each.name, each.datatype, each.shape, bytes(each.raw()))
        for each in request.inputs.values()
    ]
    others = (
        request.model_name,
        request.id,
        request.requested_outputs,
        dict(request.parameters),
        request.correlation_id,
        request.flags,
        request.priority,
        request.timeout_us,
    )
    return inputs, others, form


def both(decoder, data, signature=None):
    """Return the request as it is decoded with the cache and without it."""
    signature = signature or Signature()
    plain = infer_proto.decode(signature, InferMessageDecoder().read(data), None, Regions())
    return comparable(decoder.decode(signature, decoder.read(data), None, Regions())), comparable(
        plain
    )


Parameter = pb.InferParameter
KINDS = [
    message(),
    message(id="i", raw=[b"wxyz"]),
    message(names=("A", "B"), raw=[b"abcd", b""]),
    message(parameters={"k": Parameter(int64_param=1)}),
    message(parameters={"k": Parameter(bool_param=True)}),
    message(parameters={"sequence_id": Parameter(int64_param=5)}),
    message(parameters={"priority": Parameter(int64_param=2), "timeout": Parameter(int64_param=3)}),
    message(outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="Y")]),
    message(raw=[bytes(4), b"one too many"]),
    message(raw=(), names=()),
    in_regions(inputs="AB", outputs="X", raw=()),
    in_regions(inputs="aBc", outputs="xYz", raw=[b"abcd", b"wxyz"]),
    in_regions(inputs="aBc", outputs="xYz", raw=[b"1234", b"5678"]),
    in_regions(inputs="a", outputs="YxY"),
]  # fmt: skip


@given(st.lists(st.sampled_from(KINDS), max_size=12))
def test_the_cache_changes_no_request(sent):
    decoder = InferMessageDecoder()
    for one in sent:
        found, plain = both(decoder, one.SerializeToString())
        assert found == plain


def test_a_repeated_head_is_parsed_once():
    decoder = InferMessageDecoder()
    first, second = (
        decoder.read(message(raw=[raw]).SerializeToString()) for raw in (b"abcd", b"wxyz")
    )
    assert first.message is second.message
    for received, raw in ((first, b"abcd"), (second, b"wxyz"), (first, b"abcd")):
        request, _ = decoder.decode(Signature(), received, None, Regions())
        assert bytes(request.inputs["X"].raw()) == raw


def test_the_id_is_not_part_of_the_head():
    decoder = InferMessageDecoder()
    first, second, none = (
        decoder.read(message(id=name).SerializeToString()) for name in ("é", "2", "")
    )
    assert first.message is second.message is none.message
    assert [each.request_id for each in (first, second, none)] == ["é", "2", ""]


def test_missing_data_is_refused_each_time():
    decoder = InferMessageDecoder()
    both(decoder, message().SerializeToString())
    with pytest.raises(ServerError, match="unable to find data for input tensor 'X'"):
        decoder.decode(
            Signature(), decoder.read(message(raw=()).SerializeToString()), None, Regions()
        )


def test_the_cache_is_bounded():
    decoder = InferMessageDecoder()
    for number in range(1_100):
        both(
            decoder, message(parameters={str(number): Parameter(int64_param=1)}).SerializeToString()
        )
    assert len(decoder._cache._values) == 1024


def test_the_template_of_another_model_is_not_used():
    decoder = InferMessageDecoder()
    both(decoder, message().SerializeToString())
    found, plain = both(decoder, message().SerializeToString(), Signature("renamed"))
    assert found == plain


def response(**fields):
    output = Tensor("Y", DataType.FP32, (1,), raw=memoryview(b"abcd"))
    return InferResponse("m", 1, **{"id": "", "outputs": (output,)} | fields)


def encoded(one, final=None):
    parts = infer_proto_response.encode(one, ResponseForm(), Signature(), {}, final=final)
    return pb.ModelInferResponse.FromString(b"".join(parts))


@pytest.mark.parametrize("final", [None, False, True])
def test_cached_heads_change_no_response(final):
    for request_id in ("", "a", "b", "a" * 100):
        found = encoded(response(id=request_id), final)
        assert (found.id, found.raw_output_contents[0]) == (request_id, b"abcd")
        assert ("triton_final_response" in found.parameters) is (final is not None)


@pytest.mark.parametrize(
    ("value", "kind"), [(1, "int64_param"), (True, "bool_param"), (1.0, "double_param")]
)
def test_equal_parameters_keep_their_types(value, kind):
    found = encoded(response(parameters=[("k", value)]))
    assert found.parameters["k"].WhichOneof("parameter_choice") == kind
