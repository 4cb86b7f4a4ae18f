"""What load requests bring: files that stay inside, and configurations in JSON."""

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.core.errors import ServerError
from reference_server.repository.model_folders import FileDirectory, parse_config_override


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary directories are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def written(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("1/model.py", "1/model.py"),
        ("config.pbtxt", "config.pbtxt"),
        ("/1/model.py", "1/model.py"),
        ("//1//x", "1/x"),
        ("./1/./x", "1/x"),
        ("a/b/c/d", "a/b/c/d"),
        ("a..b/..c", "a..b/..c"),
        (" ", " "),
    ],
)
def test_a_file_is_written_below_the_directory(name, path, temporary):
    files = FileDirectory({name: b"content"})
    assert written(files.path) == {path: b"content"}


@pytest.mark.parametrize(
    "name", ["", ".", "/", "//", "..", "../x", "1/..", "1/../../x", "/../x", "1/", "a\0b", "x/y/"]
)
def test_a_path_that_names_no_file_inside_is_refused(name, temporary):
    with pytest.raises(ServerError):
        FileDirectory({"first": b"x", name: b"x"})
    assert list(temporary.iterdir()) == []


@given(st.text(st.sampled_from("./ab\0"), max_size=12))
def test_whatever_is_written_is_inside(name):
    try:
        files = FileDirectory({name: b"x"})
    except ServerError:
        return
    try:
        assert len(written(files.path)) == 1
    finally:
        files.release()


def test_the_last_holder_removes_it(temporary):
    files = FileDirectory({"x": b""})
    files.hold()
    files.release()
    assert files.path.is_dir()
    files.release()
    assert not files.path.exists()


@pytest.mark.parametrize(
    "text",
    ['{"max_batch_size": 4}', '{"maxBatchSize": 4}', '{"max_batch_size": "4"}'],
)
def test_a_config_is_read_as_protobuf_reads_json(text):
    assert parse_config_override(text).max_batch_size == 4


@pytest.mark.parametrize(
    "text",
    ["", "x", "{", "[]", "null", "7", '{"nope": 1}', '{"max_batch_size": "x"}', '{"input": 1}'],
)
def test_another_config_is_refused(text):
    with pytest.raises(ServerError, match="Invalid config override: "):
        parse_config_override(text)
