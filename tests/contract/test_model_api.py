"""Differential tests of the model API: BLS requests, model control, arguments and traces."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from contract import argument_matrix
from contract.casebook import infer, tensor
from contract.model_api_scripts import SCRIPTS, Script
from contract.recordings import MODE
from contract.serving import both_servers
from contract.wire import exchange
from support.servers import COMPLETE, Flag, Server, start_reference_server, start_tritonserver, stop

PROBES = Path(__file__).parent / "probe_models"
PAGE = (Path(__file__).parents[2] / "docs" / "model-api.md").read_text(encoding="utf-8")
CODE = 'input [ { name: "CODE" data_type: TYPE_STRING dims: [ 1 ] } ]'
TEXT = 'output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]'
NUMBERS = 'input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]'
ECHO = """output [
  { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }
]"""
IMPATIENT = """dynamic_batching { default_queue_policy {
  default_timeout_microseconds: 3600000000 allow_timeout_override: true } }"""
#: Models by name: the file, and the configuration.
MODELS = {
    "asks": ("asks", CODE + TEXT),
    "asks_later": ("asks_later", CODE + TEXT),
    "arguments": ("arguments", CODE + TEXT),
    "echoes": ("echoes", NUMBERS + ECHO),
    "comes_and_goes": ("echoes", NUMBERS + ECHO),
    "batches": ("echoes", "max_batch_size: 8\n" + NUMBERS + ECHO),
    "impatient": ("echoes", NUMBERS + ECHO + IMPATIENT),
    "counts_up": (
        "counts_up",
        NUMBERS
        + 'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]'
        + "model_transaction_policy { decoupled: true }",
    ),
}
Starter = Callable[..., AbstractContextManager[Server]]

FLAGS: dict[str, Flag] = {
    **COMPLETE,
    "allow_grpc": False,
    "allow_metrics": False,
    "model_control_mode": "explicit",
    "load_model": "*",
    "model_load_thread_count": 8,
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asking")
    write(folder, *MODELS)
    return folder


def write(folder: Path, *names: str) -> None:
    for name in names:
        file, config = MODELS[name]
        version = folder / name / "1"
        version.mkdir(parents=True)
        if (PROBES / file).is_dir():
            shutil.copytree(PROBES / file, version, dirs_exist_ok=True)
        else:
            shutil.copy(PROBES / f"{file}.py", version / "model.py")
        text = f'backend: "python"\ninstance_group [ {{ kind: KIND_CPU }} ]\n{config}\n'
        (folder / name / "config.pbtxt").write_text(textwrap.dedent(text))


triton, reference = both_servers(**FLAGS)


@pytest.fixture(scope="module")
def in_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("asking_in_processes")
    write(folder, *MODELS)
    for config in folder.glob("*/config.pbtxt"):
        with config.open("a") as file:
            file.write('parameters { key: "EXECUTION_HOST" value { string_value: "process" } }\n')
    with start_reference_server(folder, **FLAGS) as server:
        yield server


def play(server: Server, script: Script) -> str:
    """Run a script's code in the model and return its result."""
    request = infer(script.model, tensor("CODE", "BYTES", [1], [script.code]))
    content = json.loads(exchange(server.http, request).replies[0].body)
    return content["outputs"][0]["data"][0] if "outputs" in content else content["error"]


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_the_reference_server_returns_the_result(script: Script, reference: Server):
    assert play(reference, script) == script.here


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_models_in_processes_return_the_result(script: Script, in_processes: Server):
    assert play(in_processes, script) == script.here


@pytest.mark.oracle
@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.real is not None], ids=str)
def test_the_real_server_returns_the_result(script: Script, triton: Server):
    assert play(triton, script) == script.real


def test_every_difference_has_a_reason():
    for script in SCRIPTS:
        assert bool(script.reason) == (script.ours is not None)


# ----------------------------------------------------------------------------------- arguments


def ask_arguments(server: Server) -> argument_matrix.Matrix:
    """Return the outcome of every call with every kind of value."""
    return json.loads(play(server, Script("", "", model="arguments")))


@pytest.fixture(scope="module")
def arguments_here(reference: Server) -> argument_matrix.Matrix:
    """Return the outcomes with the model in the server's process."""
    return ask_arguments(reference)


def test_arguments_are_accepted_as_on_the_real_server(
    arguments_here: argument_matrix.Matrix,
):
    cells = argument_matrix.differing(arguments_here)
    assert [cell for cell in cells if argument_matrix.reason(cell) is None] == []


def test_models_in_processes_accept_the_same_arguments(
    arguments_here: argument_matrix.Matrix, in_processes: Server
):
    now = argument_matrix.by_cell(ask_arguments(in_processes))
    assert now == argument_matrix.by_cell(arguments_here)


def test_the_page_counts_the_differences_in_arguments(arguments_here: argument_matrix.Matrix):
    counts = argument_matrix.counts(arguments_here)
    for one in argument_matrix.DIFFERENCES:
        count = r"\d+" if one.by_numpy else str(counts[one.reason])
        assert count != "0", one.reason
        row = rf"^\| {re.escape(one.reason)} \| {count} \|$"
        assert re.search(row, PAGE, re.MULTILINE), row


@pytest.mark.oracle
def test_the_real_server_accepts_the_arguments_as_recorded(triton: Server):
    now = ask_arguments(triton)
    if MODE == "write":
        argument_matrix.record(now)
    assert list(argument_matrix.differing(now)) == []


# ------------------------------------------------------------------------------------- tracing

TRACED = ("asks", "echoes", "counts_up")
ON_BEHALF = (
    "R = seen(trace=request.trace())",
    "R = seen()",
    "R = show(to('missing', trace=request.trace()).exec())",
    "R = len(list(to('counts_up', numbers(2, 0), trace=request.trace()).exec(decoupled=True)))",
)


def traced(start: Starter, folder: Path, file: Path) -> list[tuple[object, ...]]:
    """Return the traces of called models: parent, model and events."""
    flags: dict[str, Flag] = {
        "allow_grpc": False,
        "allow_metrics": False,
        "trace_config": [f"triton,file={file}", "rate=1", "level=TIMESTAMPS", "count=-1"],
    }
    with start(folder, **flags) as server:
        for code in ON_BEHALF:
            assert "Error" not in play(server, Script("", code)) or "missing" in code
        stop(server)  # writes all traces
    entries = json.loads(file.read_text())
    asked = [entry for entry in entries if "parent_id" in entry]
    return [
        (
            entry["parent_id"],
            entry["model_name"],
            *(stamp["name"] for other in entries if other["id"] == entry["id"]
              for stamp in other.get("timestamps", ())),
        )
        for entry in asked
    ]  # fmt: skip


@pytest.mark.oracle
def test_a_request_on_behalf_of_another_is_traced_below_it(oracle_installed: None, tmp_path: Path):
    write(tmp_path / "models", *TRACED)
    real = traced(start_tritonserver, tmp_path / "models", tmp_path / "real.json")
    assert [row[:2] for row in real] == [(1, "echoes"), (5, "counts_up")]
    assert traced(start_reference_server, tmp_path / "models", tmp_path / "ours.json") == real
