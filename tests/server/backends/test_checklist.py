"""The checklist of the Python backend, on both hosts and on the real server."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from server.backends import kit
from server.backends.checklist import ROWS, Row
from support.servers import Server, start_tritonserver

from tools import oracle

CONFIG = """
    backend: "python"
    input [
      { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] },
      { name: "STRINGS" data_type: TYPE_STRING dims: [ -1 ] }
    ]
    output [
      { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] },
      { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }
    ]
    instance_group [ { kind: KIND_CPU } ]
"""
ID = "é7"
PARAMETERS = {"i": 5, "s": "é\n", "b": True, "d": 1.5}
NUMBERS = [1.0, 2.0]
STRINGS = ["a", "é"]


@pytest.mark.brute_force
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_inline_host_does_as_the_checklist_says(tmp_path: Path, open_file, row: Row) -> None:
    file = kit.write(tmp_path / "m" / "1" / "model.py", row.source)
    opened = open_file(file)
    asked = kit.request(
        id=ID,
        IN=np.array(NUMBERS, np.float32),
        STRINGS=np.array([text.encode() for text in STRINGS], object),
    )
    asked.parameters = PARAMETERS
    if row.reply is not None:
        (text,) = kit.answer(opened, asked).outputs
        assert text.array().ravel()[0].decode() == row.reply
    else:
        assert kit.failure(opened, asked) == kit.FAILED + row.failure(str(file))


# --------------------------------------------------------------------------------- the real server

PLAYED = {f"row_{number}": row for number, row in enumerate(ROWS) if not row.ours_alone}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model for each row that the real server runs."""
    folder = tmp_path_factory.mktemp("checklist")
    for name, row in PLAYED.items():
        kit.write(folder / name / "config.pbtxt", CONFIG)
        kit.write(folder / name / "1" / "model.py", row.source)
    return folder


@pytest.fixture(scope="module")
def triton(repository: Path) -> Iterator[Server]:
    """The real server on these models."""
    if not oracle.is_installed():
        reason = "the real tritonserver is not installed; run `make oracle`"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with start_tritonserver(
        repository,
        allow_grpc=False,
        allow_metrics=False,
        disable_auto_complete_config=None,
        model_load_thread_count=8,
    ) as server:
        yield server


def infer(server: Server, model: str) -> dict[str, object]:
    """Return the real server's reply, an answer or an error."""
    tensors = [("IN", "FP32", NUMBERS), ("STRINGS", "BYTES", STRINGS)]
    body = {
        "id": ID,
        "parameters": PARAMETERS,
        "inputs": [
            {"name": name, "datatype": datatype, "shape": [2], "data": data}
            for name, datatype, data in tensors
        ],
    }
    url = f"http://{server.http}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=30) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        return json.load(error)


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED, ids=lambda name: str(PLAYED[name]))
def test_the_real_server_does_so_too(repository: Path, triton: Server, name: str) -> None:
    row = PLAYED[name]
    reply = infer(triton, name)
    if row.reply is not None:
        (text,) = reply["outputs"]
        assert text["data"] == [row.reply]
    else:
        assert reply["error"] == (
            f"Failed to process the request(s) for model '{name}_0_0', message: "
            + row.failure(str(repository / name / "1" / "model.py"))
        )
