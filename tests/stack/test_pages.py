"""The examples on the pages for users: sessions, programs and configurations, on one server.

A block's info string says what it is. `console`: commands behind `$` and all that they print, `...`
standing for anything; those of the server and its clients are run. `python` is compiled; where it
asks `localhost` it is run, and prints what its comments say; tests are run as tests. `pbtxt` and
`json` are read. A block whose first line is a comment that names a file is an excerpt of that, with
`...` between its parts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib import request

import pytest
from google.protobuf import text_format
from support.pages import PAGES, Block, anchors, blocks, commands, links, sessions, shows
from support.servers import ROOT, Server, start_reference_server
from tritonclient.grpc.model_config_pb2 import ModelConfig

from reference_server.command import cli

pytestmark = pytest.mark.slow

MODELS_NAME = "examples/models"
MODELS = ROOT / MODELS_NAME
PROJECT = ROOT / "examples" / "test_your_model"
REPOSITORIES = [ROOT / "model_repository", MODELS, PROJECT / "model_repository"]
SERVER = ("reference-server ", "python -m reference_server ")
OTHER_COMMANDS = tuple(f"reference-server {name}" for name in ("check ", "page ", "new ", "demo"))
PRINTS = re.compile(r"^print\(.*\)  # (.*)$", re.M)


ASKS = "localhost:"
IS_TEST = "def test_"

PROGRAMS = [block for block in blocks("python") if not block.source]
CLIENTS = [block for block in PROGRAMS if ASKS in block.text]
TESTS = [block for block in PROGRAMS if IS_TEST in block.text]
SESSIONS = [
    (block, command, shown)
    for block in blocks("console")
    for command, shown in sessions(block)
    if command.startswith(SERVER) or ASKS in command
    if not command.startswith("reference-server new ")  # writes to the working directory
]
STARTS = [
    (block, command)
    for block in blocks()
    for command in commands(block)
    if command.startswith(SERVER) and "Error: " not in block.text
    if not command.startswith(OTHER_COMMANDS)
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    repositories: list[str] = [str(path) for path in REPOSITORIES]
    with start_reference_server(
        ROOT,
        model_repository=repositories,
        cache_config="local,size=1048576",
        trace_config="triton,file=trace.json",
    ) as server:
        # A page shows statistics of this model, whose requests are on other pages.
        url = f"http://{server.http}/v2/models/spell/generate_stream"
        request.urlopen(url, b'{"WORD": "hey"}').read()
        yield server


def run(command: list[str], server: Server | None = None, folder: Path = ROOT) -> str:
    """Return a command's standard output; if the command fails, so does the test."""
    if server is not None:
        ports = {"8000": server.http, "8001": server.grpc, "8002": server.metrics}
        at = re.compile(r"localhost:(800[0-2])")
        command = [at.sub(lambda match: ports[match[1]], word) for word in command]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("shown", "printed", "alike"),
    [
        ('{"Y":[1,2]}', '{"Y":[1,2]}\n', True),
        ('{"Y":\n  [1,2]}', '{"Y":[1,2]}', True),
        ('{"Y":[1,2]}', '{"Y":[1,3]}', False),
        ('{"Y":[1,2]}', '{"Y":[1,2]}, and more', False),
        ("one\n...\nthree", "one\ntwo\nthree\n", True),
        ("one...", "one\ntwo\n", True),
        ("two\n...\none", "one\ntwo\n", False),
        ("...two...", "one\nthree\n", False),
        ('{"count":1,"ns":5}', '{"count":1,"ns":7}', True),
        ('{"count":1,"ns":5}', '{"count":1,"ns":0}', False),
        ("[0.123456]", "[0.123478]", True),
        ("[0.123456]", "[0.124456]", False),
        (
            'I1121 08:14:31.378738 9333 a.py:55] "at 0.0.0.0:8000"',
            'I1122 02:17:19.742828 1 a.py:63] "at 127.0.0.1:23800"',
            True,
        ),
    ],
)
def test_what_is_shown_is_compared_with_what_was_printed(shown: str, printed: str, alike: bool):
    assert shows(shown, printed) is alike


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("page", sorted({block.page.name for block, _, _ in SESSIONS}))
def test_a_page_shows_what_its_commands_print(page: str, server: Server):
    for block, command, shown in SESSIONS:
        if block.page.name != page:
            continue
        if command.startswith(SERVER) and "Started " in shown:
            # This server has more models than that one, hence more lines between any two.
            printed = server.log
            shown = "...".join(["", *shown.splitlines(), ""])
        else:
            # A terminal shows complaints, too, and some commands are there to fail.
            printed = run(["bash", "-c", f"({command}) 2>&1 || true"], server)
        assert shows(shown, printed), f"{block}: $ {command}\n{printed}"


@pytest.mark.parametrize(("block", "command"), STARTS, ids=str)
def test_the_server_has_the_options_that_a_page_gives_it(block: Block, command: str):
    options = command.removeprefix(SERVER[0]).removeprefix(SERVER[1])
    words = [word.strip("[]") for word in shlex.split(options) if word.strip(".]")]
    cli.parse([*words, "--model-repository=DIR"])


def test_the_server_has_the_options_of_the_tables():
    rows = re.findall(r"^\| (`--[^|]*)\|", (ROOT / "docs" / "server.md").read_text(), re.M)
    options = {option for row in rows for option in re.findall(r"`(--[a-z0-9-]+)", row)}
    told = run([sys.executable, "-m", "reference_server", "--help"]).replace("-\n", "-")
    assert options <= set(re.findall(r"--[a-z0-9-]+", told))
    assert len(options) > 20


@pytest.mark.parametrize("block", [block for block in blocks() if block.source], ids=str)
def test_an_excerpt_stands_in_its_file(block: Block):
    file = "".join(map(str.strip, (ROOT / block.source).read_text().splitlines(keepends=True)))
    for part in block.text.split("\n", 1)[1].split("...\n"):
        assert "".join(map(str.strip, part.splitlines(keepends=True))) in file


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_is_python(block: Block):
    compile(textwrap.dedent(block.text), str(block), "exec")


@pytest.mark.parametrize("block", CLIENTS, ids=str)
def test_a_client_prints_what_the_page_says(block: Block, server: Server):
    printed = run([sys.executable, "-c", block.text], server).splitlines()
    assert printed == PRINTS.findall(block.text)


def test_tests_on_pages_pass(tmp_path: Path):
    ignored = shutil.ignore_patterns("__pycache__")
    for source, name in ((PROJECT / "model_repository", "model_repository"), (MODELS, MODELS_NAME)):
        shutil.copytree(source, tmp_path / name, ignore=ignored)
    for number, block in enumerate(TESTS):
        (tmp_path / f"test_{number}.py").write_text(block.text)
    told = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], folder=tmp_path)
    count = sum(block.text.count(IS_TEST) for block in TESTS)
    assert f"{count} passed" in told


@pytest.mark.parametrize("block", blocks("pbtxt"), ids=str)
def test_a_configuration_is_one(block: Block):
    text_format.Parse(block.text, ModelConfig())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_what_is_there(page: Path):
    for link in links(page):
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_pip_installs_goes_into_a_virtual_environment(page: Path):
    """A distribution's own Python refuses it: error: externally-managed-environment."""
    text = page.read_text()
    named = (
        "-m venv ",
        "quick-start.md",
        ".oracle/venv/bin/",
        ".venv/bin/python -m pip",
        "/opt/venv/bin/",
    )
    assert "pip install" not in text or any(name in text for name in named)


def test_the_contents_of_the_server_page_are_complete():
    page = ROOT / "docs" / "server.md"
    named = dict.fromkeys(link.removeprefix("#") for link in links(page) if link.startswith("#"))
    assert list(named) == anchors(page, level=2)


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_is_json(block: Block):
    json.loads(block.text)
