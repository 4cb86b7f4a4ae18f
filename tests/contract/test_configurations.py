"""Small configurations on both servers: how they are completed, or why they are not loaded.

The real server's results are recorded (recordings.py); one row in ten is played on it again.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract.config_probes import CONFIGS, SWITCHES, write_configs
from contract.recordings import Recording, asked_live, check_each, recorded_rows
from support.servers import Flag, start_reference_server, start_tritonserver

from reference_server.checking.faults import check_repositories
from reference_server.checking.model_check import Level, Rules
from reference_server.core.profiles import V2_51

pytestmark = pytest.mark.oracle

FLAGS: dict[str, Flag] = {
    "allow_grpc": False,
    "allow_metrics": False,
    "exit_on_error": False,
    "model_load_thread_count": 8,
}
LIVE = "/v2/health/live"

#: Accepted differences between the servers, with reasons.
DIFFERENCES = {
    **dict.fromkeys(
        ("ensemble_inflight", "newer_field"),
        "the real server cannot read the field; here the refusal says why",
    ),
    **dict.fromkeys(
        (
            "platform_onnx",
            "platform_torch",
            "backend_onnx",
            "file_onnx",
            "file_onnx_and_python",
            "file_onnx_configured",
            "file_pt",
        ),
        "the backend is here, and not in the oracle",
    ),
    **dict.fromkeys(
        (
            "platform_tf",
            "platform_trt",
            "file_plan",
            "file_savedmodel",
            "file_graphdef",
            "file_openvino",
        ),
        "the refusal goes on with what is here, and a cure",
    ),
    "ensemble_writes_input": "the real server loads it, and never answers its requests",
}
#: Members that are maps of more than one pair here; maps come in no order.
MAPS = ("parameters", "priority_queue_policy")
_STEP_MODEL = re.compile(r'model_name: "(\w+)"')
_POLL_FAILED = re.compile(r"Poll failed for model directory '(?P<model>[^']*)': (?P<text>.*)\"$")


@dataclass(frozen=True)
class Row:
    """A configuration, and the flags of the servers that load it."""

    switch: str
    config: str

    @property
    def name(self) -> str:
        return f"{self.switch}: {self.config}"

    def __str__(self) -> str:
        return f"{self.switch}-{self.config}"


ROWS = [Row(switch, name) for switch in SWITCHES for name in CONFIGS]


@dataclass(frozen=True)
class Outcome:
    """The outcome of loading a configuration on a server.

    `index` are its rows in the repository's index, `poll` what the log says if it was not taken
    at all.
    """

    index: tuple[str, ...]
    poll: str | None
    status: int
    config: Any


def _stable(text: str, repository: Path) -> str:
    """Return `text` without parts that depend on the server."""
    text = text.replace(str(repository), "REPOSITORY")
    # Of a Python error ours shows no frame that is not the model's.
    text = re.sub(r"(\n|\\n)  [^\n\\]*triton_python_backend_utils\.py[^\n\\]*", "", text)
    text = re.sub(r"(\n|\\n)  <frozen importlib[^\n\\]*", "", text)
    # Ours tells in one line what the real server spreads over two.
    text = re.sub(r"(failed to read text proto from \S+config\.pbtxt): .*", r"\1", text)
    # The last place is that of the backends.
    return re.sub(r"(searched: .*) '[^']*/backends/python' ", r"\1 ", text)


def _outcomes(
    start: Any, repository: Path, names: Iterable[str], **flags: Flag
) -> dict[str, Outcome]:
    """Return a server's outcomes for configurations and those of their steps, with one start."""
    names = _with_steps(names)
    repository.mkdir(parents=True)
    write_configs(repository, names)
    with start(repository, ready_path=LIVE, **FLAGS, **flags) as server:
        connection = http.client.HTTPConnection(server.http, timeout=30)

        def ask(method: str, path: str) -> tuple[int, str]:
            connection.request(method, path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

        rows: dict[str, list[str]] = {}
        for row in json.loads(ask("POST", "/v2/repository/index")[1]):
            rows.setdefault(row["name"], []).append(_stable(json.dumps(row), repository))
        polls = {
            match["model"]: _stable(match["text"].replace('\\"', '"'), repository)
            for line in server.log.splitlines()
            if (match := _POLL_FAILED.search(line))
        }
        outcomes = {}
        for name in names:
            status, body = ask("GET", f"/v2/models/{name}/config")
            config = json.loads(body, object_pairs_hook=list) if status == 200 else body
            outcomes[name] = Outcome(
                tuple(rows.get(name, ())), polls.get(name), status, _sorted_maps(config)
            )
        connection.close()
        return outcomes


def _with_steps(names: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name in CONFIGS and name not in found:
            found[name] = None
            waiting += _STEP_MODEL.findall(CONFIGS[name].config or "")
    return [name for name in CONFIGS if name in found]


def _sorted_maps(value: Any) -> Any:
    """The pairs of JSON's objects in their order, but for those of maps; tuples, no lists."""
    if isinstance(value, list):
        return tuple(map(_sorted_maps, value))
    if isinstance(value, tuple):
        name, content = value[0], _sorted_maps(value[1])
        return name, tuple(sorted(content)) if name in MAPS else content
    return value


def _sent(row: Row) -> object:
    """Return everything that a server receives for a row."""
    return FLAGS, SWITCHES[row.switch], [CONFIGS[name] for name in _with_steps([row.config])]


recorded = recorded_rows("configurations", ROWS, _sent, Outcome)


@pytest.fixture(scope="module")
def ask_triton(oracle_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _asking(start_tritonserver, tmp_path_factory.mktemp("real"), asked_live(ROWS))


@pytest.fixture(scope="module")
def ask_reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _asking(start_reference_server, tmp_path_factory.mktemp("ours"), ROWS)


def _asking(start: Any, folder: Path, rows: list[Row]) -> Callable[[Row], Outcome]:
    """Has a server started for all rows of a switch as soon as one of them is asked for."""
    known: dict[str, dict[str, Outcome]] = {}

    def of(row: Row) -> Outcome:
        if row.switch not in known:
            known[row.switch] = {}  # what fails is not started again for each row
            names = [each.config for each in rows if each.switch == row.switch]
            repository = folder / row.switch.replace(" ", "_") / "repository"
            known[row.switch] = _outcomes(start, repository, names, **SWITCHES[row.switch])
        return known[row.switch][row.config]

    return of


@pytest.mark.parametrize("row", asked_live(ROWS), ids=str)
def test_the_real_server_answers_as_recorded(
    row: Row, ask_triton: Callable[[Row], Outcome], recorded: Recording[Outcome]
):
    recorded.check(row, ask_triton(row), lambda _, outcome: outcome)


@pytest.mark.parametrize("switch", SWITCHES)
def test_both_servers_give_the_same_outcomes(
    switch: str, recorded: Recording[Outcome], ask_reference: Callable[[Row], Outcome]
):
    def check(row: Row) -> None:
        real, ours = recorded.said(row), ask_reference(row)
        # Strict servers refuse alike what has no config.pbtxt.
        unread = row.switch == "strict" and CONFIGS[row.config].config is None
        if row.config in DIFFERENCES and not unread:
            assert ours != real
        else:
            assert ours == real

    check_each((row for row in ROWS if row.switch == switch), check)


@dataclass(frozen=True)
class Checked:
    """Return the texts of `reference-server check` about a model: errors and warnings."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checked]:
    """Check all configurations without loading them."""
    repository = tmp_path_factory.mktemp("checked") / "repository"
    repository.mkdir()
    write_configs(repository, CONFIGS)
    faults = check_repositories([repository], Rules(V2_51)).faults

    def texts(name: str, level: Level) -> tuple[str, ...]:
        found = (fault for fault in faults if (fault.model, fault.level) == (name, level))
        return tuple(_stable(fault.message, repository) for fault in found)

    return {name: Checked(texts(name, Level.ERROR), texts(name, Level.WARNING)) for name in CONFIGS}


#: Of these nothing is known before they are loaded: their code decides, or that of a step.
ONLY_A_LOAD_TELLS = re.compile(r"completes_\w+|ensemble_of_(bad_config|failed)")
LOADED = [row for row in ROWS if row.switch == "models complete their configuration"]


def test_check_finds_what_the_real_server_refuses(
    recorded: Recording[Outcome], checked: dict[str, Checked]
):
    def check(row: Row) -> None:
        real, ours = recorded.said(row), checked[row.config]
        if real.status == 200 and row.config not in DIFFERENCES:
            assert ours.errors == ()
        elif real.status != 200 and not ONLY_A_LOAD_TELLS.fullmatch(row.config):
            texts = (*ours.errors, *ours.warnings)
            assert texts or row.config in DIFFERENCES
            # The index has no reason for an ensemble without its models, or without versions.
            said = (real.poll or "", *(json.loads(entry).get("reason", "") for entry in real.index))
            if any(said) and row.config not in DIFFERENCES:
                assert any(text in reason for text in texts for reason in said)

    check_each(LOADED, check)
