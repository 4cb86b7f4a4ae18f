"""`reference-server new` and `demo`: the files that they write, and the names that they refuse."""

import subprocess
import sys
from pathlib import Path

import pytest

from reference_server.checking.faults import check_repositories
from reference_server.checking.model_check import Rules
from reference_server.command import cli, new
from reference_server.core.profiles import NEWEST


@pytest.mark.brute_force
def test_a_new_model_has_no_faults_and_its_test_passes(tmp_path, capsys):
    assert new.main(["my-model.v2", "--into", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    test = tmp_path / "test_my_model_v2.py"
    assert f"pytest {test}\n" in shown
    assert "/v2/models/my-model.v2/generate" in shown
    rules = Rules(NEWEST, strict_portable=True, strict=True)
    found = check_repositories([tmp_path / "model_repository"], rules)
    assert (found.models, list(found.faults)) == (1, [])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_existing_files_are_kept(tmp_path, capsys):
    test = tmp_path / "test_m.py"
    test.write_text("mine")
    with pytest.raises(SystemExit) as ended:
        new.main(["m", "--into", str(tmp_path)])
    assert ended.value.code == 2
    assert f"{test} exists" in capsys.readouterr().err
    assert [file.read_text() for file in tmp_path.rglob("*")] == ["mine"]


@pytest.mark.parametrize("name", ["", "a b", "../m", "a/b", "1m", "-m", "é", "m\n"])
def test_names_that_need_quotes_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match="expected letters"):
        new.write(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_demo_serves_on_loopback_and_removes_its_folder(monkeypatch):
    served = []

    def serve(arguments):
        options, _ = cli.parse(arguments)
        served.append(options)
        assert (Path(options.model_repositories[0]) / "squares" / "1" / "model.py").is_file()
        return 0

    monkeypatch.setattr(cli, "main", serve)
    assert new.demo(["--http-port=18123"]) == 0
    (options,) = served
    assert (options.http.address, options.http.port) == ("127.0.0.1", 18123)
    assert {options.grpc.address, options.metrics.address} == {"127.0.0.1"}
    assert not Path(options.model_repositories[0]).exists()
