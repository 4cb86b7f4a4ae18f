"""Files of recorded costs: their folder and content. Invalid files never fail a load."""

import json
import logging
from pathlib import Path

import pytest

from ge_runtime.scheduling.kept_costs import CacheFile, cache_folder, content_digest

SUBJECT = {"content": "abc", "cores": "2"}
LEARNED = {"calibration": {"weight": 3.0}}


@pytest.mark.parametrize(
    ("setting", "environment", "folder"),
    [
        ("off", {"HOME": "/home/me"}, None),
        ("auto", {}, None),
        ("auto", {"HOME": ""}, None),
        ("auto", {"HOME": "/home/me"}, "/home/me/.cache/ge_runtime/costs"),
        ("auto", {"HOME": "/home/me", "XDG_CACHE_HOME": "/xdg"}, "/xdg/ge_runtime/costs"),
        ("auto", {"XDG_CACHE_HOME": "/xdg", "GE_RUNTIME_CACHE": "/own"}, "/own/costs"),
        ("costs", {"GE_RUNTIME_CACHE": "/own"}, "/models/m/1/costs"),
        ("/var/costs", {"GE_RUNTIME_CACHE": "/own"}, "/var/costs"),
    ],
)
def test_cache_folder(setting, environment, folder):
    found = cache_folder(setting, Path("/models/m/1"), environment)
    assert found == (folder and Path(folder))


def test_save_and_load(tmp_path):
    folder = tmp_path / "not" / "there"
    CacheFile(folder, "tiny", SUBJECT).save(LEARNED)
    assert CacheFile(folder, "tiny", SUBJECT).load()["calibration"] == LEARNED["calibration"]
    CacheFile(folder, "tiny", SUBJECT).save({"calibration": {"weight": 4.0}})
    assert CacheFile(folder, "tiny", SUBJECT).load()["calibration"] == {"weight": 4.0}
    assert len(list(folder.iterdir())) == 1  # nothing is left of what was written first


@pytest.mark.parametrize("change", [{"content": "abd"}, {"cores": "3"}, {"threads": "1"}])
def test_costs_of_another_model_or_machine_are_ignored(tmp_path, change):
    CacheFile(tmp_path, "tiny", SUBJECT).save(LEARNED)
    assert CacheFile(tmp_path, "tiny", {**SUBJECT, **change}).load() is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "expected a file of format 1"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        (json.dumps({"format": 2, "subject": SUBJECT}), "expected a file of format 1"),
        (
            json.dumps({"format": 1, "subject": {}}),
            "it belongs to another machine, model or library",
        ),
    ],
)
def test_an_invalid_file_is_ignored_with_a_warning(tmp_path, caplog, content, reason):
    file = CacheFile(tmp_path, "tiny", SUBJECT)
    file.path.write_text(content)
    assert file.load() is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"tiny: ignored {file.path}: {reason}" in record.getMessage()


def test_a_folder_that_cannot_be_written_is_ignored(tmp_path, caplog):
    (tmp_path / "costs").write_text("a file where the folder should be")
    with caplog.at_level(logging.INFO):
        CacheFile(tmp_path / "costs", "tiny", SUBJECT).save(LEARNED)
    assert "tiny: costs of executions are not kept: " in caplog.text


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    file = CacheFile(tmp_path, "tiny", SUBJECT)
    file.save(LEARNED)

    def full(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    file.save({"calibration": None})
    assert file.load()["calibration"] == LEARNED["calibration"]
    assert [path.name for path in tmp_path.iterdir()] == [file.path.name]


def test_the_digest_depends_on_content_and_order(tmp_path):
    one, two, same = (tmp_path / name for name in ("one", "two", "same"))
    one.write_bytes(b"ab")
    two.write_bytes(b"c")
    same.write_bytes(b"ab")
    assert content_digest([one, two]) == content_digest([same, two])
    others = [[two, one], [one], [one, two, two]]
    assert content_digest([one, two]) not in map(content_digest, others)
    two.write_bytes(b"b")
    same.write_bytes(b"a")
    assert content_digest([one]) != content_digest([same, two])
