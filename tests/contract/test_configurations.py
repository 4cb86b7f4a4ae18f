"""Small configurations on both servers: how they are completed, or why they are not loaded."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract.config_probes import CONFIGS, SWITCHES, write_configs
from support.servers import Flag, start_reference_server, start_tritonserver

pytestmark = pytest.mark.oracle

FLAGS: dict[str, Flag] = {
    "allow_grpc": False,
    "allow_metrics": False,
    "exit_on_error": False,
    "model_load_thread_count": 8,
}
LIVE = "/v2/health/live"

#: What the servers may say differently, and why.
DIFFERENCES = {
    "ensemble_inflight": "max_inflight_requests is of a newer release, and served here",
    "newer_field": "model_metrics cannot be read by the real server; here the refusal says why",
    "ensemble_writes_input": "the real server loads it, and never answers its requests",
}
#: Members that are maps of more than one pair here; maps come in no order.
MAPS = ("parameters", "priority_queue_policy")
_POLL_FAILED = re.compile(r"Poll failed for model directory '(?P<model>[^']*)': (?P<text>.*)\"$")


@dataclass(frozen=True)
class Outcome:
    """What a server made of a configuration.

    `index` are its rows in the repository's index, `poll` what the log says if it was not taken
    at all.
    """

    index: tuple[str, ...]
    poll: str | None
    status: int
    config: Any


def _stable(text: str, repository: Path) -> str:
    """`text` without what is one server's own."""
    text = text.replace(str(repository), "REPOSITORY")
    # Of a Python error ours shows no frame that is not the model's.
    text = re.sub(r"(\n|\\n)  [^\n\\]*triton_python_backend_utils\.py[^\n\\]*", "", text)
    text = re.sub(r"(\n|\\n)  <frozen importlib[^\n\\]*", "", text)
    # Ours tells in one line what the real server spreads over two.
    text = re.sub(r"(failed to read text proto from \S+config\.pbtxt): .*", r"\1", text)
    # The last place is that of the backends.
    return re.sub(r"(searched: .*) '[^']*/backends/python' ", r"\1 ", text)


def _outcomes(start: Any, repository: Path, **flags: Flag) -> dict[str, Outcome]:
    """What a server says to all of them; one start."""
    repository.mkdir(parents=True)
    write_configs(repository)
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
        for name in CONFIGS:
            status, body = ask("GET", f"/v2/models/{name}/config")
            config = json.loads(body, object_pairs_hook=list) if status == 200 else body
            outcomes[name] = Outcome(
                tuple(rows.get(name, ())), polls.get(name), status, _sorted_maps(config)
            )
        connection.close()
        return outcomes


def _sorted_maps(value: Any) -> Any:
    """The pairs of JSON's objects in their order, but for those of maps."""
    if not isinstance(value, list):
        return value
    return [
        (item[0], sorted(item[1]) if item[0] in MAPS else _sorted_maps(item[1]))
        if isinstance(item, tuple)
        else _sorted_maps(item)
        for item in value
    ]


@pytest.fixture(scope="module", params=SWITCHES, ids=str)
def outcomes(
    request: pytest.FixtureRequest,
    oracle_installed: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Of the real server and of ours, with one set of flags."""
    folder = tmp_path_factory.mktemp("configurations")
    flags = SWITCHES[request.param]
    return (
        _outcomes(start_tritonserver, folder / "real" / "repository", **flags),
        _outcomes(start_reference_server, folder / "ours" / "repository", **flags),
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_both_servers_make_the_same_of_it(
    name: str, outcomes: tuple[dict[str, Outcome], dict[str, Outcome]]
):
    real, ours = (each[name] for each in outcomes)
    if name in DIFFERENCES:
        assert ours != real
    else:
        assert ours == real
