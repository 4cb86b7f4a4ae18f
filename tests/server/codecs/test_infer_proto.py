"""ModelInferRequest is decoded to a request, and a response encoded as ModelInferResponse."""

import numpy as np
import pytest
from server.support.regions import MadeUpRegions
from server.support.requests import NullSink, array_tensor
from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import infer_proto, infer_proto_response
from reference_server.codecs.infer_proto import InferMessageDecoder
from reference_server.codecs.inference import OutputForm, ResponseForm
from reference_server.codecs.proto_wire import ReceivedRequest
from reference_server.core.errors import Code, ServerError, invalid_arg
from reference_server.core.metadata import Signature, TensorConfig
from reference_server.core.request import InferResponse, SequenceFlag
from reference_server.core.tensor import DataType

MODEL = Signature("m", 0, (TensorConfig("X", DataType.FP32, (-1,)),), ())
BATCHES = Signature("m", 8, MODEL.inputs, ())
TWO = np.array([1, 2], dtype=np.float32)
RAW = [TWO.tobytes()]


def x(datatype="FP32", shape=(2,), contents=None, **parameters):
    return pb.ModelInferRequest.InferInputTensor(
        name="X", datatype=datatype, shape=shape, contents=contents, parameters=held(parameters)
    )


def y(**parameters):
    return pb.ModelInferRequest.InferRequestedOutputTensor(name="Y", parameters=held(parameters))


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


def typed(datatype, shape=(2,), **contents):
    request, _ = decode(x(datatype, shape, pb.InferTensorContents(**contents)), raw=())
    return request.inputs["X"]


def encode(response, form=None, signature=MODEL, labels=None, **more):
    parts = infer_proto_response.encode(
        response, form or ResponseForm(), signature, labels or {}, **more
    )
    return pb.ModelInferResponse.FromString(b"".join(parts))


def answer(*outputs, **fields):
    return InferResponse("m", 3, "i", outputs, **fields)


def test_a_raw_tensor_is_a_view_of_the_message():
    request, _ = decode()
    assert request.inputs["X"].raw() == TWO.tobytes()
    assert request.inputs["X"].raw().readonly
    np.testing.assert_array_equal(request.inputs["X"].array(), TWO)


def test_fields_of_a_request():
    request, form = decode(
        id="i",
        outputs=[y()],
        given={
            "sequence_id": "s",
            "sequence_start": True,
            "sequence_end": False,
            "priority": 2,
            "timeout": 5,
            "triton_enable_empty_final_response": True,
            "mine": 1.5,
        },
    )
    assert (request.model_name, request.id, request.correlation_id) == ("m", "i", "s")
    assert (request.flags, request.priority, request.timeout_us) == (SequenceFlag.START, 2, 5)
    assert request.parameters == {"mine": 1.5}
    assert request.requested_outputs == ("Y",)
    assert form.of("Y") == OutputForm()


@pytest.mark.parametrize(("key", "field"), [("sequence_id", "correlation_id"),
                                            ("timeout", "timeout_us")])  # fmt: skip
def test_negative_numbers_become_large_unsigned_ones(key, field):
    request, _ = decode(given={key: -5})
    assert getattr(request, field) == 2**64 - 5


def test_the_first_form_of_a_repeated_output_wins():
    _, form = decode(outputs=[y(), y(classification=2), y(classification=3), y()])
    assert form.of("Y").classes == 2


@pytest.mark.parametrize(
    ("datatype", "contents", "values"),
    [
        ("BOOL", {"bool_contents": [True, False]}, [True, False]),
        ("INT8", {"int_contents": [-128, 127]}, [-128, 127]),
        ("INT16", {"int_contents": [-32768, 32767]}, [-32768, 32767]),
        ("INT32", {"int_contents": [-(2**31), 1]}, [-(2**31), 1]),
        ("INT64", {"int64_contents": [-(2**63), 1]}, [-(2**63), 1]),
        ("UINT8", {"uint_contents": [0, 255]}, [0, 255]),
        ("UINT16", {"uint_contents": [0, 65535]}, [0, 65535]),
        ("UINT32", {"uint_contents": [0, 2**32 - 1]}, [0, 2**32 - 1]),
        ("UINT64", {"uint64_contents": [0, 2**64 - 1]}, [0, 2**64 - 1]),
        ("FP32", {"fp32_contents": [0.5, -2]}, [0.5, -2]),
        ("FP64", {"fp64_contents": [0.1, 5e-324]}, [0.1, 5e-324]),
        ("BYTES", {"bytes_contents": [b"", b"\xff\0"]}, [b"", b"\xff\0"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_typed_contents(datatype, contents, values):
    tensor = typed(datatype, **contents)
    assert tensor.array().tolist() == values
    assert tensor.array().dtype == DataType(datatype).numpy


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


def test_the_decoder_accepts_a_wrong_number_of_typed_contents():
    assert typed("FP32", (5,), fp32_contents=[1, 2]).byte_size == 8
    assert typed("BYTES", (5,), bytes_contents=[b"a"]).string_count() == 1


def test_a_tensor_in_shared_memory_is_a_view_of_its_region():
    regions = MadeUpRegions(r=bytes(8) + TWO.tobytes())
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 8}
    request, _ = decode(x(**place), raw=(), regions=regions)
    regions.bytes["r"][8:12] = np.float32(7).tobytes()
    assert request.inputs["X"].array().tolist() == [7, 2]
    assert regions.asked == [("read", "r", 8, 8)]


def test_raw_contents_belong_to_inputs_outside_of_shared_memory():
    there = x(shared_memory_region="r", shared_memory_byte_size=8)
    there.name = "S"
    request, _ = decode(there, x(), regions=MadeUpRegions(r=bytes(8)))
    assert request.inputs["X"].array().tolist() == [1, 2]
    assert request.inputs["S"].array().tolist() == [0, 0]


def test_negative_offsets_are_outside_of_every_region():
    regions = MadeUpRegions(r=b"")
    decode(x(shared_memory_region="r", shared_memory_byte_size=-1, shared_memory_offset=-2),
           raw=(), regions=regions)  # fmt: skip
    assert regions.asked == [("read", "r", 2**64 - 2, 2**64 - 1)]


def test_an_output_is_written_to_shared_memory_instead_of_the_message():
    regions = MadeUpRegions(r=bytes(12))
    wanted = y(shared_memory_region="r", shared_memory_byte_size=8, shared_memory_offset=4)
    _, form = decode(outputs=[wanted], regions=regions)
    message = encode(answer(array_tensor("Y", TWO)), form)
    assert regions.bytes["r"] == bytes(4) + TWO.tobytes()
    assert list(message.raw_output_contents) == [b""]
    assert [(o.name, o.datatype, list(o.shape)) for o in message.outputs] == [("Y", "FP32", [2])]


def test_an_output_larger_than_its_buffer_is_not_written():
    regions = MadeUpRegions(r=bytes(4))
    _, form = decode(
        outputs=[y(shared_memory_region="r", shared_memory_byte_size=4)], regions=regions
    )
    with pytest.raises(ServerError, match="should be at least 8 bytes") as caught:
        encode(answer(array_tensor("Y", TWO)), form)
    assert caught.value.code is Code.INTERNAL
    assert regions.bytes["r"] == bytes(4)


def test_a_response():
    message = encode(answer(array_tensor("Y", TWO), array_tensor("Z", [b"a"], object)))
    assert (message.model_name, message.model_version, message.id) == ("m", "3", "i")
    assert [(o.name, o.datatype, list(o.shape)) for o in message.outputs] == [
        ("Y", "FP32", [2]),
        ("Z", "BYTES", [1]),
    ]
    assert list(message.raw_output_contents) == [TWO.tobytes(), b"\1\0\0\0a"]
    assert not message.parameters


def test_parameters_of_a_response():
    given = [("b", True), ("i", 2**64 - 1), ("s", "x"), ("d", 1.5), ("s", "y")]
    parameters = encode(answer(parameters=given)).parameters
    assert parameters["b"].bool_param
    assert parameters["i"].int64_param == -1
    assert parameters["s"].string_param == "y"
    assert parameters["d"].double_param == 1.5


@pytest.mark.parametrize("final", [True, False])
def test_the_last_streamed_response_is_marked(final):
    message = encode(answer(), final=final)
    assert message.parameters["triton_final_response"].bool_param is final


def test_classes():
    form = ResponseForm(outputs={"Y": OutputForm(classes=1)})
    output = array_tensor("Y", [[1, 9]], np.float32)
    message = encode(answer(output), form, BATCHES, {"Y": ("cat", "dog")})
    assert message.outputs[0].datatype == "BYTES"
    assert list(message.raw_output_contents) == [b"\x0e\0\0\0009.000000:1:dog"]


def test_errors_of_a_stream_are_messages():
    refused = infer_proto_response.encode_refusal("i", invalid_arg("no"))
    assert pb.ModelStreamInferResponse.FromString(refused) == pb.ModelStreamInferResponse(
        error_message="no", infer_response=pb.ModelInferResponse(id="i")
    )
    received = ReceivedRequest(pb.ModelInferRequest(model_name="m", model_version="2"), "i", [])
    failed = infer_proto_response.encode_failure(received, invalid_arg("no"), final=True)
    response = pb.ModelStreamInferResponse.FromString(failed)
    assert response.error_message == "no"
    assert (response.infer_response.model_version, response.infer_response.id) == ("2", "i")
    assert response.infer_response.parameters["triton_final_response"].bool_param
