"""Tests of portability: warnings, the live page, and `--strict-portable`."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.backends.kit import executing, write

from reference_server.backends.hosts import PythonHosts
from reference_server.checking import command
from reference_server.core.errors import ServerError
from reference_server.core.portability import ROWS, Found, Portability, page_table
from reference_server.core.ports import SystemClock
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.testing import ModelRepository, open_repository

ROOT = Path(__file__).parents[3]
TEXT = "return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', {})])]"
CREATES = (
    "x = pb_utils.get_input_tensor_by_name(requests[0], 'X')",
    "ask = pb_utils.InferenceRequest(model_name={}, requested_output_names=['Y'], inputs=[x])",
)
NOTHING = "return None"
#: The lines of `execute`, by the key of the row that they lead to.
FOUND = {
    "np-bytes": (TEXT.format("np.array(['a', np.bytes_(b'b'), np.bytes_(b'c')], object)"),),
    "dlpack-numpy": (
        "y = pb_utils.Tensor.from_dlpack('Y', np.arange(2))",
        TEXT.format("y.as_numpy().astype(object)"),
    ),
    "triton-dtype": (
        "t = requests[0].inputs()[0].triton_dtype()",
        TEXT.format("np.array([str(t)], object)"),
    ),
    "no-response": (NOTHING,),
    "final-flag-first": ("requests[0].get_response_sender().send(flags=1)", NOTHING),
    "send-and-return": (
        f"answer = ({TEXT.removeprefix('return ')})".format("np.array(['a'], object)"),
        "requests[0].get_response_sender().send(answer[0])",
        "return answer",
    ),
    "surrogate-text": ("raise ValueError('\\ud800')",),
    "failed-call": ("pb_utils.is_model_ready('m', 'letters')",),
    "bls-deadlock": (
        *(line.format("'bls-deadlock'") for line in CREATES),
        "error = ask.exec().error()",
        "raise ValueError(error.message())",
    ),
    "classify-strings": (TEXT.format("np.array(['a'], object)"),),
}
CONFIG = """
    backend: "python"
    input { name: "X" data_type: TYPE_FP32 dims: 1 }
    output { name: "Y" data_type: TYPE_STRING dims: -1 }
"""
STATE = 'sequence_batching { state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 1'
CORRID = "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING"
#: Configurations by their rows.
CONFIGS = {
    "string-correlation": f'sequence_batching {{ control_input {{ name: "C" control {{ {CORRID} '
    "} } }",
    "uninitialized-state": f"{STATE} }} }}",
}
#: Rows with a test of their own.
OTHERS = {"process-restart", "coroutine-exception", "load-deadlock"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for key, lines in FOUND.items():
        write(folder / key / "1" / "model.py", executing(*lines))
        write(folder / key / "config.pbtxt", CONFIG)
    return folder


@pytest.fixture(scope="module")
def lenient(models: Path) -> Iterator[ModelRepository]:
    with open_repository(models) as repository:
        yield repository


@pytest.fixture(scope="module")
def strict(models: Path) -> Iterator[ModelRepository]:
    with open_repository(models, options=["--strict-portable"]) as repository:
        yield repository


def infer(repository: ModelRepository, model: str) -> tuple[int, str]:
    outputs = [{"name": "Y", "parameters": {"classification": 1}}]
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}
    if model == "classify-strings":
        body["outputs"] = outputs
    reply = repository.http("POST", f"/v2/models/{model}/infer", json.dumps(body).encode())
    return reply.status, reply.body.decode()


@pytest.fixture(autouse=True)
def no_surrogates(caplog: pytest.LogCaptureFixture) -> None:
    """Keep errors of models out of the captured log: xdist cannot send half of a surrogate pair."""
    caplog.set_level(logging.CRITICAL, "reference_server.backends")


@pytest.mark.parametrize("key", FOUND)
def test_a_row_is_logged_once_and_shown_on_the_live_page(lenient, caplog, key):
    caplog.set_level(logging.WARNING, "reference_server.core.portability")
    status, text = infer(lenient, key)
    infer(lenient, key)
    assert (status == 200) is ROWS[key].works, text
    logged = [r.getMessage() for r in caplog.records if "portability" in r.name]
    assert logged == [f"model '{key}' {ROWS[key].text}"]
    (shown,) = [
        model["not_portable"] for model in status_page(lenient)["models"] if model["name"] == key
    ]
    assert shown == [ROWS[key].text]


def status_page(repository: ModelRepository) -> dict:
    return repository._metrics.request("GET", "/status.json", b"", {}).json()


@pytest.mark.parametrize("key", FOUND)
def test_strict_portable_refuses_the_row(strict, key):
    status, text = infer(strict, key)
    assert status >= 400
    if ROWS[key].works:
        assert ROWS[key].text in json.loads(text)["error"]


@pytest.mark.brute_force
def test_a_process_reports_rows_to_its_server(models, caplog):
    caplog.set_level(logging.WARNING, "reference_server.core.portability")
    dies = executing("import os", "os._exit(1)")
    write(models / "process-restart" / "1" / "model.py", dies)
    write(models / "process-restart" / "config.pbtxt", CONFIG)
    options = ["--backend-config=python,host=process"]
    keys = ["np-bytes", "process-restart"]
    with open_repository(models, models=keys, options=options) as repository:
        assert infer(repository, "np-bytes")[0] == 200
        for _ in range(2):  # the second request waits for the new process
            assert infer(repository, "process-restart")[0] == 500
        logged = [r.getMessage() for r in caplog.records if "portability" in r.name]
    assert logged == [f"model '{key}' {ROWS[key].text}" for key in keys]


def test_the_exception_of_a_decoupled_models_coroutine_is_reported(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "reference_server.core.portability")
    source = executing("raise ValueError('late')").replace("def execute", "async def execute")
    write(tmp_path / "m" / "1" / "model.py", source)
    write(
        tmp_path / "m" / "config.pbtxt", f"{CONFIG}model_transaction_policy {{ decoupled: true }}"
    )
    with open_repository(tmp_path) as repository:
        with pytest.raises(ServerError, match="late"):
            list(repository.model("m").stream({"X": [1]}))
        logged = [r.getMessage() for r in caplog.records if "portability" in r.name]
    assert logged == [f"model 'm' {ROWS['coroutine-exception'].text}"]


def test_a_coroutine_that_exits_is_reported(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "reference_server.core.portability")
    source = executing("raise SystemExit").replace("def execute", "async def execute")
    write(tmp_path / "m" / "1" / "model.py", source)
    write(tmp_path / "m" / "config.pbtxt", CONFIG)
    with open_repository(tmp_path) as repository:
        with pytest.raises(ServerError, match="SystemExit"):
            repository.model("m").infer({"X": [1]})
        logged = [r.getMessage() for r in caplog.records if "portability" in r.name]
    assert logged == [f"model 'm' {ROWS['coroutine-exception'].text}"]


def test_strict_portable_starts_no_process_again():
    hosts = PythonHosts({}, SystemClock(), MetricRegistry(), portability=Portability(strict=True))
    assert hosts._settings == {"stub-restart": "false"}


def test_pytests_setting_adds_options_to_the_fixtures(request, pytestconfig, models, monkeypatch):
    assert pytestconfig.getini("triton_options") == []
    getini, given = pytestconfig.getini, {"triton_options": ["--strict-portable"]}
    monkeypatch.setattr(pytestconfig, "getini", lambda name: given.get(name) or getini(name))
    triton_model = request.getfixturevalue("triton_model")
    with pytest.raises(ServerError, match="--strict-portable: works here, not on"):
        triton_model(models / "np-bytes").infer({"X": [1]})


@pytest.mark.parametrize("key", CONFIGS)
def test_a_configuration_is_reported_at_load_and_by_check(tmp_path, caplog, capsys, key):
    write(tmp_path / "m" / "1" / "model.py", executing(NOTHING))
    write(tmp_path / "m" / "config.pbtxt", f"{CONFIG}max_batch_size: 1 {CONFIGS[key]}")
    caplog.set_level(logging.WARNING, "reference_server.core.portability")
    with open_repository(tmp_path, options=["--triton-version=2.51"]):
        pass
    (logged,) = [r.getMessage() for r in caplog.records if "portability" in r.name]
    assert logged.startswith(f"model 'm' {ROWS[key].text}: ")
    with (
        pytest.raises(Exception, match=re.escape(ROWS[key].text)),
        open_repository(tmp_path, options=["--strict-portable"]),
    ):
        pass
    assert command.main([str(tmp_path)]) == 0
    assert command.main([str(tmp_path), "--strict-portable"]) == 1
    assert capsys.readouterr().out.count(ROWS[key].text) == 2


def test_a_name_that_the_shell_reads_is_reported(tmp_path, capsys):
    write(tmp_path / "a b" / "1" / "model.py", executing(NOTHING))
    write(tmp_path / "a b" / "config.pbtxt", CONFIG)
    command.main([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert all(ROWS["shell-name"].text in line for line in lines[:-1])
    assert len(lines) > 1


def test_each_row_that_is_found_at_run_time_has_a_test():
    rows = {key for key, row in ROWS.items() if row.found in (Found.RUN, Found.BOTH)}
    assert rows == FOUND.keys() | OTHERS


def test_the_page_has_the_table():
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert page_table() in page
