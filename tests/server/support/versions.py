"""Models and questions for the rows of docs/versions.md."""

from __future__ import annotations

import json
import threading

from server.support.model_folders import VECTOR, write_model
from tritonclient.grpc import service_pb2 as pb

INFER = "/v2/models/vector/infer"

TEXT = """
    input { name: "T" data_type: TYPE_STRING dims: [-1] }
    output { name: "T" data_type: TYPE_STRING dims: [-1] }
"""
TEXTS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
TWO = """
    input { name: "A" data_type: TYPE_FP32 dims: [-1] }
    input { name: "B" data_type: TYPE_FP32 dims: [-1] }
    output { name: "A" data_type: TYPE_FP32 dims: [-1] }
"""
ROWS = """
    max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
SEQUENCES = """
    max_batch_size: 1
    input { name: "X" data_type: TYPE_FP32 dims: [1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [1] }
    sequence_batching { control_input { name: "ID"
        control { kind: CONTROL_SEQUENCE_CORRID data_type: %s } } }
"""
SILENT = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([]) for request in requests]
"""
FAILS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            error = pb_utils.TritonError("no such thing", pb_utils.TritonError.NOT_FOUND)
            return [pb_utils.InferenceResponse(error=error) for request in requests]
"""
#: Tells what comes of its string: a model to ask, or one whose readiness it asks for.
ASKS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def told(text):
        kind, _, name = text.partition(" ")
        try:
            if kind == "ready":
                return str(pb_utils.is_model_ready(name))
            given = [pb_utils.Tensor("X", np.ones(1, np.float32))]
            error = pb_utils.InferenceRequest(
                model_name=name, inputs=given, requested_output_names=["Y"]
            ).exec().error()
            return f"{error.code()}: {error.message()}"
        except pb_utils.TritonModelException as error:
            return f"raised {error}"

    class TritonPythonModel:
        def execute(self, requests):
            texts = [request.inputs()[0].as_numpy()[0].decode() for request in requests]
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("T", np.array([told(text)], object))])
                for text in texts
            ]
"""
MOODY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = args["model_repository"]

        def is_ready(self):
            import os
            return not os.path.exists(self.folder + "/moody")

        def execute(self, requests):
            return [pb_utils.InferenceResponse([]) for request in requests]
"""


def write_models(folder):
    """Write them all."""
    write_model(folder, "vector")
    write_model(folder, "text", TEXT, TEXTS)
    write_model(folder, "two", TWO, TEXTS)
    write_model(folder, "rows", ROWS)
    write_model(folder, "numbered", SEQUENCES % "TYPE_UINT64", SILENT)
    write_model(folder, "named", SEQUENCES % "TYPE_STRING", SILENT)
    write_model(folder, "fails", VECTOR, FAILS)
    write_model(folder, "asks", TEXT, ASKS)
    write_model(folder, "moody", VECTOR, MOODY)


def post(repository, path, body=b"{}", **headers):
    """Status and body of the reply."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = repository.http("POST", path, body, named)
    return reply.status, reply.body.decode()


def vector(count, data=None, **more):
    entry = {"name": "X", "datatype": "FP32", "shape": [count]}
    if data is not None:
        entry["data"] = data
    return {"inputs": [entry | more]}


def named(headers):
    return {name.replace("_", "-"): value for name, value in headers.items()}


def asked(repository, path, document, **headers):
    reply = repository.http("POST", path, json.dumps(document).encode(), named(headers))
    return reply.status, reply.json().get("error")


def tensor_message(model, name, datatype, *shape):
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name=name, datatype=datatype, shape=shape)
    message.raw_input_contents.append(bytes(4))
    return message


#: What no limit of nesting lets through.
MUCH_DEEPER = "[" * 200_000 + "]" * 200_000


def bystander_answers_during(repository, attack):
    """Return the attack's outcome, and the number of responses to another client before it.

    One it gets in any case, afterwards.
    """
    outcomes, answers = [], 0
    attacker = threading.Thread(target=lambda: outcomes.append(attack(repository)))
    attacker.start()
    question = json.dumps(vector(2, [1, 2])).encode()
    while True:
        is_over = not attacker.is_alive()
        answer = repository.http("POST", INFER, question)
        assert (answer.status, answer.json()["outputs"][0]["data"]) == (200, [1.0, 2.0])
        if is_over:
            break
        answers += 1
    return outcomes[0], answers
