"""The installer's refusals, each with one sentence and the remedy."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.servers import ROOT

from tools import oracle


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the home of an oracle that is not installed."""
    monkeypatch.setattr(oracle, "HOME", tmp_path)
    monkeypatch.setattr(oracle, "VENV", tmp_path / "venv")
    monkeypatch.setattr(oracle, "STAMP", tmp_path / "installed.json")
    return tmp_path


def refusal(*arguments: str) -> str:
    """Run the tool until it refuses, and return its last words."""
    with pytest.raises(SystemExit) as ended:
        oracle.main(list(arguments))
    return str(ended.value)


@pytest.mark.parametrize("verb", ["serve", "perf"])
def test_nothing_runs_before_it_is_installed(verb: str, empty_home: Path):
    assert "run `make oracle` first" in refusal(verb)


def test_another_recipe_is_not_installed(empty_home: Path):
    (empty_home / "venv" / "bin").mkdir(parents=True)
    (empty_home / "venv" / "bin" / "python3").touch()
    oracle.write_stamp(Path("/usr/lib"))
    assert oracle.is_installed()
    stamp = json.loads(oracle.STAMP.read_text())
    stamp["recipe"]["packages"] = []
    oracle.STAMP.write_text(json.dumps(stamp))
    assert not oracle.is_installed()


def test_other_machines_are_refused(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "runs on Linux x86_64 only" in refusal("install")


@pytest.mark.parametrize("found", [("", ""), ("glibc", "2.31"), ("glibc", "2.9")])
def test_other_c_libraries_are_refused(
    found: tuple[str, str], empty_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: found)
    assert "needs glibc 2.35 or later" in refusal("install")


def test_a_static_python_is_refused(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(oracle, "PYTHON", (3, 11))
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setattr(sys, "base_prefix", str(empty_home))
    assert "need a shared libpython3.11.so.1.0" in refusal("install")


@pytest.mark.oracle
def test_the_second_installation_finds_the_first(oracle_installed: None):
    before = oracle.STAMP.stat().st_mtime_ns
    again = subprocess.run(
        [sys.executable, ROOT / "tools" / "oracle.py"], capture_output=True, text=True, check=True
    )
    assert again.stdout == f"oracle: ready in {oracle.HOME}\n"
    assert oracle.STAMP.stat().st_mtime_ns == before
