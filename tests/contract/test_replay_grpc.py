"""`triton-replay record` between NVIDIA's gRPC client and both servers."""

import queue

import numpy as np
import pytest
import tritonclient.grpc as client
from support.replaying import recording
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from triton_replay.capture.files import read_capture

pytestmark = pytest.mark.oracle

SECONDS = 60
TWO = np.array([1, 2], np.float32)


@pytest.fixture(params=["probed_triton", "probed_reference"])
def server(request):
    return request.getfixturevalue(request.param)


def x():
    tensor = client.InferInput("X", [2], "FP32")
    tensor.set_data_from_numpy(TWO)
    return tensor


def talk(address):
    """Make a successful call, a refused call, and a stream of three requests."""
    answers = queue.Queue()
    with client.InferenceServerClient(address) as asking:
        result = asking.infer("vector", [x()], client_timeout=SECONDS)
        np.testing.assert_array_equal(result.as_numpy("Y"), TWO)
        with pytest.raises(InferenceServerException, match="nobody"):
            asking.infer("nobody", [x()], client_timeout=SECONDS)
        asking.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(3):
            asking.async_stream_infer("vector", [x()], request_id=str(number))
        ids = {answers.get(timeout=SECONDS)[0].get_response().id for _ in range(3)}
        assert ids == {"0", "1", "2"}
        asking.stop_stream()


def test_calls_and_streams_are_passed_on_and_recorded(server, tmp_path):
    path = tmp_path / "a.trc"
    with recording(server.http, path, grpc=server.grpc) as recorder:
        talk(recorder.grpc)
    assert recorder.returncode == 0, recorder.stderr_text
    assert "not in it" not in recorder.stderr_text
    capture = read_capture(path)
    assert capture.complaint == ""
    infer, refused, stream = capture.exchanges
    assert infer.request.target == "/inference.GRPCInferenceService/ModelInfer"
    asked = service_pb2.ModelInferRequest.FromString(bytes(infer.request.body[5:]))
    assert asked.raw_input_contents[0] == TWO.tobytes()
    said = service_pb2.ModelInferResponse.FromString(bytes(infer.response.body[5:]))
    assert said.raw_output_contents[0] == TWO.tobytes()
    assert [one.status for one in capture.exchanges] == ["grpc 0", "grpc 5", "grpc 0"]
    assert stream.request.whole
    sent = [message for message in stream.messages if message.sent]
    received = [message for message in stream.messages if not message.sent]
    assert (len(sent), len(received)) == (2, 3)
    times = [message.at for message in stream.messages]
    assert times == sorted(times)
    assert refused.response.body_size == 0
