"""Decoding of ModelInferRequest, beyond the rows of tests/recorded/test_grpc.py."""

import numpy as np
import pytest
from server.support.regions import MadeUpRegions
from server.support.requests import NullSink
from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import infer_proto, infer_proto_response
from reference_server.codecs.infer_proto import InferMessageDecoder
from reference_server.codecs.inference import ResponseForm
from reference_server.core.errors import ServerError
from reference_server.core.metadata import Signature, TensorConfig
from reference_server.core.tensor import DataType

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


def encode(response, form=None, signature=MODEL, labels=None, **more):
    parts = infer_proto_response.encode(
        response, form or ResponseForm(), signature, labels or {}, **more
    )
    return pb.ModelInferResponse.FromString(b"".join(parts))


def test_a_raw_tensor_is_a_view_of_the_message():
    request, _ = decode()
    assert request.inputs["X"].raw() == TWO.tobytes()
    assert request.inputs["X"].raw().readonly
    np.testing.assert_array_equal(request.inputs["X"].array(), TWO)


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
