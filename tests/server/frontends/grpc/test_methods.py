"""The answers of all methods, without a transport."""

import logging
import os

import numpy as np
import pytest
from server.support.frontend import answering, served
from server.support.grpc import GrpcFrontend, WaitingScheduler
from server.support.regions import object_file, shared_object
from server.support.requests import array_tensor
from tritonclient.grpc import service_pb2 as pb

from reference_server.core import gil
from reference_server.core.errors import Code, ServerError
from reference_server.core.metadata import SystemRegion
from reference_server.frontends import event_loop
from reference_server.frontends.event_loop import Background
from reference_server.frontends.grpc import methods
from reference_server.frontends.http import routes

MODEL = 'input { name: "X" data_type: TYPE_FP32 dims: [-1] } '
ANSWERED = MODEL + 'output { name: "Y" data_type: TYPE_FP32 dims: [-1] } '
#: The methods of Triton's service.
RPCS = {method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}


@pytest.fixture
def frontend():
    return GrpcFrontend(served(MODEL, version=2, answer=answering(Y=[1.0])))


def request(**fields):
    x = pb.ModelInferRequest.InferInputTensor(name="X", datatype="FP32", shape=[1])
    return pb.ModelInferRequest(
        **({"model_name": "m", "inputs": [x], "raw_input_contents": [bytes(4)]} | fields)
    )


def test_every_rpc_can_be_restricted():
    assert set(methods.CATEGORY) == RPCS | {"Check"}
    assert set(methods.CATEGORY.values()) == {operation.category for operation in routes.Operation}


def test_a_defect_is_an_internal_error_and_logged(frontend, monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(frontend.gateway, "live", broken)
    monkeypatch.setattr(frontend.gateway, "find", broken)
    with caplog.at_level(logging.ERROR):
        for method, message in (("ServerLive", b""), ("ModelInfer", request())):
            with pytest.raises(ServerError, match="ZeroDivisionError: a defect") as caught:
                frontend.ask(method, message)
            assert caught.value.code is Code.INTERNAL
    assert len(caplog.records) == 2


def test_regions_are_released_with_the_answer_and_with_a_rejection(frontend, monkeypatch):
    released = []

    class Lease:
        def __init__(self):
            self.read = lambda *span: memoryview(bytes(4))

        def release(self):
            released.append(self)

    monkeypatch.setattr(frontend.shared_memory, "lease", Lease)
    message = request(raw_input_contents=[])
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    message.inputs[0].parameters["shared_memory_byte_size"].int64_param = 4
    frontend.ask("ModelInfer", message)
    message.inputs[0].shape[:] = [2]
    with pytest.raises(ServerError):
        frontend.ask("ModelInfer", message)
    assert len(released) == 2


def test_restricted_methods_need_the_right_metadata(frontend):
    restriction = methods.Restriction("Key", "secret")
    frontend.table = methods.restricted(frontend.table, {"health": restriction})
    for metadata in ({}, {"triton-grpc-protocol-key": "other"}):
        call, running = frontend.start("ServerLive", **metadata)
        running.receive(b"")
        assert call.error.code is Code.UNAVAILABLE
        assert call.error.message == (
            "This protocol is restricted, expecting header 'triton-grpc-protocol-Key'"
        )
        assert call.sent == []
    call, running = frontend.start("ServerLive", **{"triton-grpc-protocol-key": "secret"})
    running.receive(b"")
    assert (call.has_ended, call.error) == (True, None)
    assert frontend.ask("ServerMetadata", b"")


def test_cancelling_a_call_cancels_its_request():
    model = served(MODEL)
    object.__setattr__(model, "scheduler", WaitingScheduler())
    frontend = GrpcFrontend(model)
    call, running = frontend.start("ModelInfer")
    running.receive(request().SerializeToString())
    (waiting,) = model.scheduler.requests
    assert not waiting.cancellation.is_cancelled
    running.cancel()
    assert waiting.cancellation.is_cancelled
    model.scheduler.answer(0)
    frontend.turn()
    assert call.has_ended


def long_request(count, **fields):
    x = pb.ModelInferRequest.InferInputTensor(name="X", datatype="FP32", shape=[count])
    x.contents.fp32_contents.extend(range(count))
    return pb.ModelInferRequest(**({"model_name": "m", "inputs": [x]} | fields))


def ended(frontend, message, method="ModelInfer"):
    """Wait until other threads have done their work for the call, and return the call."""
    call, running = frontend.start(method)
    with pytest.MonkeyPatch.context() as patch:
        # The work is done by now; the result is posted to the loop's thread.
        patch.setattr(event_loop, "start_new_thread", lambda work, arguments: work())
        running.receive(message if isinstance(message, bytes) else message.SerializeToString())
        running.half_close()
        for _ in ("read", "decoded"):
            frontend.turn()
    assert call.has_ended
    return call


def test_long_typed_contents_are_read_on_another_thread():
    model = served(MODEL, version=2, answer=answering(Y=[1.0]))
    call = ended(GrpcFrontend(model), long_request(50_000))
    assert call.error is None
    (asked,) = model.scheduler.requests
    assert asked.inputs["X"].array().tolist() == list(range(50_000))


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_many_strings_are_counted_on_another_thread(method):
    config = ANSWERED.replace("FP32", "STRING", 1)
    model = served(config, version=2, answer=answering(Y=np.array([3], np.float32)))
    frontend = GrpcFrontend(model)
    for count, refused in ((50_000, None), (49_999, "string elements 50000")):
        message = request(raw_input_contents=[bytes(200_000)])
        message.inputs[0].datatype = "BYTES"
        message.inputs[0].shape[:] = [count]
        call = ended(frontend, message, method)
        assert (refused or "") in str(call.error or call.sent)
    assert len(model.scheduler.requests) == 1


def test_long_messages_of_other_methods_are_read_on_another_thread(monkeypatch):
    apart = []
    run = Background.run
    monkeypatch.setattr(Background, "run", lambda self, *how: (apart.append(1), run(self, *how)))
    frontend = GrpcFrontend(served(MODEL, version=2))
    for length in (4_000, 5_000):
        call = ended(frontend, pb.ModelConfigRequest(name="m" * length), "ModelConfig")
        assert "unknown model" in call.error.message
        assert len(apart) == (length > 4_096)
    assert ended(frontend, b"\xff" * 5_000, "ModelConfig").error.code is Code.INTERNAL


def in_region():
    message = pb.ModelInferRequest(model_name="m")
    tensors = (
        message.inputs.add(name="X", datatype="FP32", shape=[2]),
        message.outputs.add(name="Y"),
    )
    for tensor, offset in zip(tensors, (0, 8), strict=True):
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = 8
        tensor.parameters["shared_memory_offset"].int64_param = offset
    return message


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_long_tensors_in_regions_are_copied_on_another_thread(monkeypatch, method):
    monkeypatch.setattr(gil, "SHARED_BYTES", 7)
    model = served(ANSWERED, version=2, answer=answering(Y=np.array([3, 4], np.float32)))
    frontend = GrpcFrontend(model)
    with shared_object(np.array([1, 2, 0, 0], np.float32).tobytes()) as key:
        frontend.shared_memory.register_system("r", key, 16)
        assert ended(frontend, in_region(), method).error is None
        assert object_file(key).read_bytes() == np.array([1, 2, 3, 4], np.float32).tobytes()
        frontend.shared_memory.unregister(SystemRegion, "r")
    (asked,) = model.scheduler.requests
    assert asked.inputs["X"].array().tolist() == [1, 2]


def test_an_input_in_a_region_is_copied_for_the_request():
    model = served(ANSWERED, version=2)
    object.__setattr__(model, "scheduler", WaitingScheduler())
    frontend = GrpcFrontend(model)
    with shared_object(np.array([1, 2, 0, 0], np.float32).tobytes()) as key:
        frontend.shared_memory.register_system("r", key, 16)
        call, running = frontend.start("ModelInfer")
        running.receive(in_region().SerializeToString())
        os.truncate(object_file(key), 0)
        (waiting,) = model.scheduler.requests
        assert waiting.inputs["X"].array().tolist() == [1, 2]
        model.scheduler.answer(0, outputs=[array_tensor("Y", np.zeros(2, np.float32))])
        frontend.turn()
        assert "has 0 bytes, expected at least 16" in call.error.message
        frontend.shared_memory.unregister(SystemRegion, "r")


@pytest.mark.parametrize("stays", [0, 8], ids=["the input", "the output alone"])
def test_tensors_in_truncated_objects_are_errors(stays):
    model = served(ANSWERED, version=2, answer=answering(Y=np.array([3, 4], np.float32)))
    frontend = GrpcFrontend(model)
    with shared_object(bytes(16)) as key:
        frontend.shared_memory.register_system("r", key, 16)
        os.truncate(object_file(key), stays)
        with pytest.raises(ServerError) as caught:
            frontend.ask("ModelInfer", in_region())
        assert caught.value.code is Code.INVALID_ARG
        assert f"has {stays} bytes, expected at least {stays + 8}" in caught.value.message
        frontend.shared_memory.unregister(SystemRegion, "r")
    assert len(model.scheduler.requests) == (1 if stays else 0)
