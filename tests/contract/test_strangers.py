"""Models with patterns of public repositories answer equally on both hosts and the real server.

`stranger_models.py` has the patterns; docs/hosts.md lists them.
"""

from __future__ import annotations

import http.client
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from contract.recordings import Recording, asked_live, recorded_rows
from contract.stranger_models import HEAD, PATTERNS
from support.servers import ROOT, Server, start_reference_server, start_tritonserver

from tools import oracle

pytestmark = pytest.mark.oracle

CONFIG = """
    backend: "python"
    input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
    instance_group [ { kind: KIND_CPU } ]
    parameters { key: "max_length" value: { string_value: "512" } }
"""
#: Files beside `model.py`, by path in the model's folder.
FILES = {
    "helper_module": {
        "1/helper.py": "WHO = 'first'\n",
        "1/package/__init__.py": "",
        "1/package/names.py": "NAME = 'name'\n",
    },
    "helper_of_the_same_name": {"1/helper.py": "WHO = 'second'\n"},
    "module_search": {"1/helper.py": "WHO = 'third'\n"},
    "text_file": {"1/labels.txt": "\u732b\n"},
    "path_edit": {"1/src/text_tools.py": "def clean(text): return ' '.join(text.split())\n"},
    "plugin_file": {"1/plugin.py": "def run(): return 'run'\n"},
}
REQUEST = {
    "id": "r1",
    "inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1.5, 2]}],
    "parameters": {"temperature": 0.5},
}
#: The models that other patterns call.
NEIGHBOURS = ("lazy_import", "worker_thread")
#: The folders of the model's files, and of the server's own code and of Python's.
_FOLDER = re.compile(r"/[\w./-]+/(?=\w+/1/|json/|encodings/)")
#: A line of Python's own code, which differs between its versions.
_LINE = re.compile(r"((?:json|encodings)/\w+\.py)\(\d+\)")


#: The models with special settings.
CONFIGS = {
    "own_environment": """
        parameters { key: "EXECUTION_ENV_PATH"
            value: { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }
    """
}
#: As venv-pack writes it: the environment may be in any folder.
ACTIVATE = """
OWN_ENVIRONMENT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export OWN_ENVIRONMENT PATH="$OWN_ENVIRONMENT/bin:$PATH"
"""


def write_environment(folder: Path) -> None:
    """Write an archive of a Python environment with NumPy and `own_package`.

    It is small: interpreter and NumPy are those of the real server's models.
    """
    python = (oracle.VENV / "bin" / "python3").resolve()
    (packages,) = oracle.VENV.glob("lib/python*/site-packages")
    own = packages.relative_to(oracle.VENV)
    files = {
        "bin/activate": ACTIVATE,
        "pyvenv.cfg": f"home = {python.parent}\n",
        f"{own}/own_package.py": "NAME = 'own'\n",
        f"{own}/packages.pth": f"{packages}\n",
    }
    with tarfile.open(folder / "env.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, str(python)
        archive.addfile(link)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, oracle_installed: None) -> Path:
    folder = tmp_path_factory.mktemp("strangers")
    for name in PATTERNS:
        for path, text in FILES.get(name, {}).items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text, encoding="utf-8")
        (folder / name / "1").mkdir(parents=True, exist_ok=True)
        (folder / name / "1" / "model.py").write_text(HEAD + PATTERNS[name])
        (folder / name / "config.pbtxt").write_text(CONFIG + CONFIGS.get(name, ""))
    write_environment(folder / "own_environment")
    return folder


@dataclass(frozen=True)
class Pattern:
    """A row of the recording."""

    name: str

    @property
    def files(self) -> object:
        """Return everything that determines the answer."""
        source = HEAD + PATTERNS[self.name]
        return source, CONFIG, CONFIGS.get(self.name), FILES.get(self.name), REQUEST


ROWS = [*map(Pattern, PATTERNS)]
HOSTS: dict[str, Callable[..., AbstractContextManager[Server]]] = {
    "inline": start_reference_server,
    "process": partial(start_reference_server, backend_config="python,host=process"),
}
FLAGS: dict[str, Any] = {
    "ready_path": "/v2/health/live",
    "exit_on_error": False,
    # The stub that completes a configuration takes a second for each model.
    "disable_auto_complete_config": None,
    "model_load_thread_count": 8,
    "allow_grpc": False,
    "allow_metrics": False,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a separate cache folder for these models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


recorded = recorded_rows("strangers", ROWS, lambda row: row.files)


@pytest.fixture(scope="module")
def real(repository: Path, cache: None) -> Iterator[Server]:
    names = sorted({*NEIGHBOURS, *(row.name for row in asked_live(ROWS))})
    flags = FLAGS | {"model_control_mode": "explicit", "load_model": names}
    with start_tritonserver(repository, **flags) as server:
        yield server


@pytest.fixture(scope="module")
def answers(repository: Path, cache: None) -> dict[str, dict[str, str]]:
    """Return the response of each pattern by host."""
    received = {}
    for host, start in HOSTS.items():
        with start(repository, **FLAGS) as server:
            received[host] = {name: ask(server, name) for name in PATTERNS}
    return received


def ask(server: Server, model: str) -> str:
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps(REQUEST))
    reply = connection.getresponse()
    body = json.loads(reply.read())
    connection.close()
    if reply.status == 200:
        return str(body["outputs"][0]["data"][0])
    return _LINE.sub(r"\1", _FOLDER.sub("", f"{reply.status} {body['error']}"))


#: Answers that differ from the real server's, with the hosts and the reasons.
DIFFERENT = {
    "alarm": ({"inline"}, "Python has signal handlers on its main thread alone"),
    "child_asks_the_server": ({"inline", "process"}, "a copy of a process has no connection"),
    "text_file": ({"inline", "process"}, "the default encoding of Triton's models is ASCII"),
    "terminated_child": ({"inline", "process"}, "a child of Triton's stub ignores SIGTERM"),
}


@pytest.mark.parametrize("row", asked_live(ROWS), ids=lambda row: row.name)
def test_the_real_server_answers_as_recorded(row: Pattern, real: Server, recorded: Recording[str]):
    recorded.check(row, ask(real, row.name), lambda _, said: said)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_public_pattern_answers_alike_on_both_hosts_and_the_real_server(
    row: Pattern, recorded: Recording[str], answers: dict[str, dict[str, str]]
):
    others, _ = DIFFERENT.get(row.name, (set(), ""))
    said = recorded.said(row)
    assert {host for host in HOSTS if answers[host][row.name] != said} == others


def test_an_inline_model_that_needs_a_process_is_told_so(answers: dict[str, dict[str, str]]):
    assert 'key: "EXECUTION_HOST" value: { string_value: "process" }' in answers["inline"]["alarm"]


# ----------------------------------------------------------------------------------- the page

PAGE = ROOT / "docs" / "hosts.md"


def test_the_page_names_each_pattern_and_those_that_differ():
    section = PAGE.read_text().partition("## Patterns of `model.py`")[2].partition("\n## ")[0]
    table, _, lists = section.partition("The others give")
    assert set(re.findall(r"\(`(\w+)`\) \|", table)) == set(DIFFERENT)
    assert sorted(re.findall(r"`([a-z_]+)`", lists)) == sorted(set(PATTERNS) - set(DIFFERENT))
    assert f"runs {len(PATTERNS)} patterns" in section
