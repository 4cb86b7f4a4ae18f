"""Models in separate processes: answers equal the real server's, and a crash is survived."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.casebook import Ask, Case
from contract.cases import CASES
from contract.conftest import HTTP_ALONE, LIVE, PROBING, asking
from contract.differences import check_alike
from contract.recordings import Recording
from contract.wire import Exchange
from server.backends.kit import write
from server.backends.process.watching import await_end
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver

HOSTED: dict[str, str] = {"backend_config": "python,host=process"}
#: Probes that are played in processes: all kinds of tensors, failures, batches and ensembles.
PLAYED = (
    *("vector", "matrix", "batched", "pair", "text", "words", "types", "reshaped", "half"),
    *("faults", "chain", "fork", "faulty_chain"),
)
_INFER = re.compile(rb"POST /v2/models/(\w+)/(versions/\d+/)?infer ")
SECONDS = 30


def reaches_a_process(case: Case) -> bool:
    """Return whether a model's process takes part; the rows of frontends are in tests/recorded."""
    request = case.request if isinstance(case.request, bytes) else b"".join(case.request)
    asked = {name.decode() for name, _ in _INFER.findall(request)}
    reached = case.status == 200 or any("fault" in name for name in asked)
    return reached and bool(asked) and asked.issubset(PLAYED)


@pytest.fixture(scope="module")
def ask_hosted(probe_repository: Path) -> Iterator[Ask]:
    """Return a function that sends a case to these probes in processes of the reference server."""
    flags = PROBING | HOSTED | {"model_control_mode": "explicit", "load_model": list(PLAYED)}
    with start_reference_server(probe_repository, ready_path=LIVE, **flags) as server:
        yield asking(server)


@pytest.mark.oracle
@pytest.mark.parametrize("case", [*filter(reaches_a_process, CASES)][::6], ids=str)
def test_a_model_in_a_process_answers_as_in_the_real_server(
    case: Case, recorded: Recording[Exchange], ask_hosted: Ask
):
    check_alike(case, recorded.said(case), ask_hosted(case))


# --------------------------------------------------------------------------------- life and death

CONFIG = """
    backend: "python"
    input [ { name: "HOW" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "PID" data_type: TYPE_INT32 dims: [ 1 ] } ]
    instance_group [ { kind: KIND_CPU } ]
"""
MODEL = """
    import os, signal
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            how = pb_utils.get_input_tensor_by_name(requests[0], "HOW").as_numpy().item()
            if how == b"exit":
                os._exit(1)
            pid = pb_utils.Tensor("PID", np.array([os.getpid()], np.int32))
            return [pb_utils.InferenceResponse([pid]) for _ in requests]
"""


INLINE = 'parameters { key: "EXECUTION_HOST" value: { string_value: "inline" } }'


@pytest.fixture
def mortal(tmp_path: Path) -> Path:
    """A repository of two models that end their processes on request."""
    for name, parameters in (("mortal", ""), ("inline", INLINE)):
        write(tmp_path / "models" / name / "config.pbtxt", CONFIG + parameters)
        write(tmp_path / "models" / name / "1" / "model.py", MODEL)
    return tmp_path / "models"


def ask(server: Server, path: str, body: object = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://{server.http}/v2/{path}", data, SECONDS) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def infer(server: Server, how: str, model: str = "mortal") -> tuple[int, str]:
    tensor = {"name": "HOW", "datatype": "BYTES", "shape": [1], "data": [how]}
    return ask(server, f"models/{model}/infer", {"inputs": [tensor]})


def pid(server: Server, model: str = "mortal") -> int:
    status, body = infer(server, "live", model)
    assert status == 200, body
    return json.loads(body)["outputs"][0]["data"][0]


UNHEALTHY = (500, '{"error":"Stub process \'mortal_0_0\' is not healthy."}')


def test_a_model_is_not_ready_while_its_process_is_down(mortal: Path):
    """The file with the model's code is removed, so the process cannot restart."""
    with start_reference_server(mortal, **HTTP_ALONE, **HOSTED) as server:
        assert ask(server, "models/mortal/ready")[0] == 200
        process = pid(server)
        (mortal / "mortal" / "1" / "model.py").unlink()
        os.kill(process, signal.SIGKILL)
        await_end(process)
        assert infer(server, "live") == UNHEALTHY
        assert ask(server, "models/mortal/ready")[0] == 400
        assert ask(server, "health/ready")[0] == 400
        assert ask(server, "health/live")[0] == 200
        assert ask(server, "models/inline/ready")[0] == 200
        rows = {row["name"]: row for row in json.loads(ask(server, "repository/index", {})[1])}
        assert rows["inline"]["state"] == "READY"
        assert rows["mortal"]["state"] == "UNAVAILABLE"
        assert rows["mortal"]["reason"].startswith(
            "the process of instance 'mortal_0_0' was ended by SIGKILL"
        )


def killed_and_asked(server: Server) -> list[tuple[int, str]]:
    """Return the response about a model whose process has died."""
    pid(server)
    return [
        infer(server, "exit"),
        infer(server, "live"),
        ask(server, "models/mortal/ready"),
        ask(server, "health/ready"),
    ]


@pytest.mark.oracle
def test_without_restarts_a_death_looks_as_in_the_real_server(mortal: Path, oracle_installed: None):
    flags = {"backend_config": ["python,host=process", "python,stub-restart=false"]}
    with start_reference_server(mortal, **HTTP_ALONE, **flags) as server:
        ours = killed_and_asked(server)
    with start_tritonserver(mortal, **HTTP_ALONE, **COMPLETE) as server:
        assert killed_and_asked(server) == ours == [UNHEALTHY, UNHEALTHY, (200, ""), (200, "")]


def test_a_server_that_is_killed_leaves_neither_processes_nor_shared_memory(mortal: Path):
    with start_reference_server(mortal, **HTTP_ALONE, **HOSTED) as server:
        process = pid(server)
        mapped = Path(f"/proc/{process}/maps").read_text()
        assert "/memfd:tensors (deleted)" in mapped
        assert "/dev/shm" not in mapped
        server.process.kill()
        server.process.wait()
        await_end(process)
