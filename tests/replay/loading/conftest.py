"""A server with a model of each type, for tests of `load`."""

import contextlib
import json
from pathlib import Path

import pytest
from support.servers import start_reference_server

from triton_replay.__main__ import main

IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
REFUSES = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("not today")
"""
MANY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(3):
                given = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", given)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Writes down what it was asked, so that a test can read it.
TURNS = """
import json
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.file = Path(args["model_repository"]) / "asked"

    def execute(self, requests):
        answers = []
        with self.file.open("a") as file:
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                reported = [request.correlation_id(), request.flags(), x.ravel().tolist()]
                file.write(json.dumps(reported) + "\\n")
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return answers
"""
ONE = """input { name: "X" data_type: TYPE_%s dims: [%s] }
output { name: "Y" data_type: TYPE_%s dims: [%s] }
"""
MODELS = {
    "rows": (IDENTITY, "max_batch_size: 8 " + ONE % ("FP32", "4", "FP32", "4")),
    "any": (IDENTITY, ONE % ("INT32", "-1", "INT32", "-1")),
    "texts": (IDENTITY, "max_batch_size: 4 " + ONE % ("STRING", "1", "STRING", "1")),
    "refuses": (REFUSES, ONE % ("FP32", "1", "FP32", "1")),
    "many": (
        MANY,
        "model_transaction_policy { decoupled: true } " + ONE % ("FP32", "1", "FP32", "1"),
    ),
    "turns": (
        TURNS,
        "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 4 }"
        " control_input { name: 'START' control {"
        " kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } } } "
        + ONE
        % ("INT32", "1", "INT32", "1"),
    ),
}


@pytest.fixture(scope="session")
def load_repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaded")
    for name, (source, config) in MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(source)
        (folder / name / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture(scope="session")
def server(load_repository):
    with start_reference_server(load_repository, allow_client_shm=True) as started:
        yield started


#: Windows that end with their requests, not by time: on a busy machine nothing may be answered in
#: many short ones, and that ends a load.
SHORT = (
    *("--measurement-mode", "count_windows", "--measurement-request-count", "10"),
    *("-s", "100000", "-r", "100"),
)


@pytest.fixture
def short():
    """Return options of a short load."""
    return SHORT


@pytest.fixture
def load(server, capsys, short):
    """Return a function that runs a short load; it returns the exit code and the output."""

    def run(model, *words, protocol="http"):
        address = server.grpc if protocol == "grpc" else server.http
        code = main(["load", "-m", model, "-u", address, "-i", protocol, *short, *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def asked(load_repository):
    """Return a function that reads the requests of the model `turns`: ids, flags, and inputs."""
    file = load_repository / "turns" / "asked"
    with contextlib.suppress(FileNotFoundError):
        file.unlink()
    Path(file).touch()
    return lambda: [json.loads(line) for line in file.read_text().splitlines()]
