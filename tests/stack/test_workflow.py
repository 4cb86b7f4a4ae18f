"""The workflow for users' repositories: its commands, run in its order as a CI runs them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract.casebook import infer, tensor
from contract.wire import exchange
from support.replaying import recording
from support.servers import ROOT, free_ports, start_reference_server

pytestmark = pytest.mark.slow

WORKFLOW = ROOT / "examples" / "ci" / "models.yml"
PROJECT = ROOT / "examples" / "test_your_model"
#: As GitHub runs `shell: bash`.
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A checkout of a repository of models, with tests and recorded traffic."""
    shutil.copytree(PROJECT / "model_repository", tmp_path / "model_repository")
    (tmp_path / "tests").mkdir()
    test = (PROJECT / "test_word_count.py").read_text()
    test = test.replace("Path(__file__).parent /", "Path(__file__).parents[1] /")
    (tmp_path / "tests" / "test_word_count.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (tmp_path / "recorded").mkdir()
    with (
        start_reference_server(tmp_path / "model_repository") as server,
        recording(server.http, tmp_path / "recorded" / "traffic.trc") as recorder,
    ):
        for text in ("one", "two words"):
            asked = infer("word_count", tensor("TEXT", "BYTES", [1, 1], [text]))
            exchange(recorder.address, asked)
    return tmp_path


def steps() -> dict[str, Any]:
    """The workflow's steps by name."""
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    return {step["name"]: step for step in job["steps"] if "name" in step}


def run(workspace: Path, script: str, port: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a step; the server that it starts, if it does, is on `port` and ends behind it."""
    ports = f"--http-port={port} --allow-grpc=false --allow-metrics=false"
    script = script.replace("reference-server --model", f"reference-server {ports} --model")
    script = script.replace("localhost:8000", f"localhost:{port}")
    script = script.replace("replay recorded", f"replay --server=127.0.0.1:{port} recorded")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    summary = workspace / "summary.md"
    with (workspace / "told").open("w+") as told:
        shell = subprocess.Popen(
            [*SHELL, script],
            cwd=workspace,
            env=os.environ | {"PATH": path, "GITHUB_STEP_SUMMARY": str(summary)},
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = shell.wait()
        # The job's end; nobody is left of a step that started no server.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
        told.seek(0)
        return subprocess.CompletedProcess(script, code, told.read())


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_each_step_does_what_it_is_for(workspace: Path):
    named = steps()
    (port,) = free_ports(1)
    for name in ("Configurations", "Tests of the models", "Recorded traffic"):
        ran = run(workspace, named[name]["run"], port)
        assert ran.returncode == 0, f"{name}: {ran.stdout}"
    assert json.loads((workspace / "check.sarif").read_text())["runs"][0]["results"] == []
    assert run(workspace, named["Post the comparison"]["run"]).returncode == 0
    summary = (workspace / "summary.md").read_text()
    assert summary.startswith("```\n")
    assert summary.endswith("\n```\n")
    assert "word_count" in summary
    kept = named["Keep the comparison and the log"]["with"]["path"].split()
    assert all((workspace / file).stat().st_size for file in kept)


def test_a_fault_ends_the_step_and_is_in_its_file(workspace: Path):
    config = workspace / "model_repository" / "word_count" / "config.pbtxt"
    config.write_text(config.read_text() + "\nmax_queue: 3\n")
    ran = run(workspace, steps()["Configurations"]["run"])
    assert ran.returncode == 1
    (result,) = json.loads((workspace / "check.sarif").read_text())["runs"][0]["results"]
    assert 'no field named "max_queue"' in result["message"]["text"]


def test_the_action_and_the_hook_check_a_repository(workspace: Path):
    action = yaml.safe_load((ROOT / "deploy" / "github-check" / "action.yml").read_text())
    given = {name: each["default"] for name, each in action["inputs"].items()}
    (check,) = [step for step in action["runs"]["steps"] if step["name"] == "Check"]
    as_written = " ".join(f"{name}='{given[name.lower()]}'" for name in check["env"])
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    as_here = check["run"].replace("triton-check", "reference-server check")
    assert as_here != check["run"]
    scripts = (f"{as_written}; {as_here}", " ".join([hook["entry"], *hook["args"]]))
    for script in scripts:
        assert run(workspace, script).returncode == 0
    (workspace / "model_repository" / "word_count" / "config.pbtxt").write_text("max_queue: 3\n")
    for script in scripts:
        ran = run(workspace, script)
        assert ran.returncode == 1
        assert "model_repository/word_count/config.pbtxt" in ran.stdout
