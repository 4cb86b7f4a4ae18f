"""A small repository: a model that batches, one that streams, a sequence, an ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from server.support.configs import ensemble, step
from server.support.model_folders import VECTOR, write_ensemble, write_model

from reference_server.testing import ModelRepository, open_repository

BATCHED = """
    max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: [1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [1] }
    dynamic_batching { max_queue_delay_microseconds: 10000000 preferred_batch_size: [1, 3] }
"""
DOUBLING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                x *= 2
                if (x < 0).any():
                    error = pb_utils.TritonError("negative", pb_utils.TritonError.UNSUPPORTED)
                    responses.append(pb_utils.InferenceResponse(error=error))
                    continue
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
            return responses
"""
REPORT = """
    input { name: "X" data_type: TYPE_STRING dims: [-1] }
    output { name: "Y" data_type: TYPE_STRING dims: [-1] }
    output { name: "REPORT" data_type: TYPE_STRING dims: [1] }
    sequence_batching { }
"""
REPORTING = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            report = [request.request_id(), request.correlation_id(), request.flags()]
            report += [json.loads(request.parameters())]
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            text = np.array([json.dumps(report)], object)
            return pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", x), pb_utils.Tensor("REPORT", text)]
            )
"""
STREAM = """
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [1] }
    model_transaction_policy { decoupled: true }
"""
STREAMING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in pb_utils.get_input_tensor_by_name(request, "X").as_numpy():
                    if number < 0:
                        error = pb_utils.TritonError("negative")
                        sender.send(pb_utils.InferenceResponse(error=error))
                    else:
                        y = pb_utils.Tensor("Y", number.reshape(1))
                        sender.send(pb_utils.InferenceResponse([y]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ENDLESS = """
    import threading
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            (request,) = requests
            sender = request.get_response_sender()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
            pause = threading.Event()
            while not request.is_cancelled():
                pause.wait(0.001)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
BITS = VECTOR.replace("FP32", "BF16")
PAIR = ensemble(
    step("identity", {"X": "I"}, {"Y": "mid"}), step("identity", {"X": "mid"}, {"Y": "O"})
)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, "identity")
    write_model(folder, "doubling", BATCHED, DOUBLING)
    write_model(folder, "meeting", BATCHED.replace("[1, 3]", "[4]"), DOUBLING)
    write_model(folder, "report", REPORT, REPORTING)
    write_model(folder, "streaming", STREAM, STREAMING)
    write_model(folder, "endless", STREAM, ENDLESS)
    write_model(folder, "bits", BITS)
    write_ensemble(folder, "pair", PAIR)
    return folder


@pytest.fixture(scope="package")
def repository(folder: Path) -> Iterator[ModelRepository]:
    with open_repository(folder) as opened:
        yield opened
