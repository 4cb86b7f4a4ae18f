"""A configuration of the C++ backend npu_ge, converted, serves.

With a line that says that padding is neutral, sizes that are no gear are answered, too. There is
no card here. On both servers what names one is replaced by the CPU, and all else is as it was
converted; the simulator stands in for a card, and the configuration is all as it was.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest
from contract.test_python_backends import write_backends
from runtime.support.graphs import ENCODER, TABLE, write
from support.servers import ROOT, Server, start_reference_server, start_tritonserver

from ge_runtime.cli.convert import ConvertOptions, convert

SIMULATOR = ROOT / "simulator/ascend_simulator/site"
# The client's own mask marks padding for the graph; npu_ge's configuration does not mention it.
NEUTRAL = 'parameters { key: "padding.tokens" value { string_value: "neutral" } }\n'
CARD = '"device_ids" value { string_value: "0" }'
NPU_GE = """\
backend: "npu_ge"
max_batch_size: 8
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { preferred_batch_size: [ 8 ] }
parameters { key: "device_ids" value { string_value: "0" } }
parameters {
  key: "graph.ge.inputShape" value { string_value: "input_ids:-1,-1;attention_mask:-1,-1" }
}
parameters {
  key: "graph.ge.dynamicDims" value { string_value: "1,4,1,4;8,4,8,4;1,16,1,16;8,16,8,16" }
}
parameters { key: "static_model" value { string_value: "1" } }
"""
# Two rows of five tokens: no gear has that size.
IDS = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]]
MASK = [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return the converted model's repository, and Triton's folder of backends."""
    wishes = ConvertOptions({"input_ids": ["tokens"]}, {}, None, frozenset())
    conversion = convert("encoder", NPU_GE, wishes)
    assert conversion.problems == []
    assert CARD in conversion.text
    models, backends = tmp_path / "models", tmp_path / "backends"
    write(ENCODER, "onnxruntime", models / "encoder/1")
    (models / "encoder/config.pbtxt").write_text(conversion.text + NEUTRAL)
    write_backends(backends)
    return models, backends


def assert_answers(server: Server) -> None:
    """Check that the server returns the mean of each row, although no gear has their size."""
    body = {
        "inputs": [
            {"name": name, "datatype": "INT64", "shape": [2, 5], "data": values}
            for name, values in (("input_ids", IDS), ("attention_mask", MASK))
        ]
    }
    url = f"http://{server.http}/v2/models/encoder/infer"
    with urlopen(Request(url, json.dumps(body).encode())) as reply:
        (output,) = json.load(reply)["outputs"]
    rows = zip(IDS, np.array(MASK) > 0, strict=True)
    expected = [TABLE[row][mask].mean(axis=0) for row, mask in rows]
    np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), expected, rtol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("start", [start_tritonserver, start_reference_server])
def test_sizes_between_its_gears_are_answered(oracle_installed, folders, start):
    models, backends = folders
    file = models / "encoder/config.pbtxt"
    cpu = '"devices" value { string_value: "cpu" }'
    text = re.sub(
        r"parameters \{[^{}]*precision_mode_v2[^{}]*\{[^{}]*\}\s*\}", "", file.read_text()
    )
    assert "precision" not in text  # an option of the card's compiler
    file.write_text(text.replace(CARD, cpu))
    with start(models, backend_directory=str(backends), allow_grpc=False) as server:
        assert_answers(server)


def test_it_is_compiled_for_a_simulated_card_and_answers(folders, monkeypatch):
    models, backends = folders
    sources = [SIMULATOR, ROOT / "simulator", ROOT / "plugin"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, sources)))
    programs = [f"{SIMULATOR / 'bin'}", str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(programs))
    build = [sys.executable, "-m", "ge_runtime.cli", "build", str(models / "encoder")]
    subprocess.run(build, check=True)
    with start_reference_server(
        models, backend_directory=str(backends), allow_grpc=False
    ) as server:
        assert "AscendSimulator" in server.log
        assert_answers(server)
