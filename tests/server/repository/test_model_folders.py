"""The folders of repositories, version policies, and overrides of load requests."""

import os
import shutil
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.configs import completed

from reference_server.config import schema
from reference_server.core.errors import Code, ServerError
from reference_server.repository.model_folders import (
    FileDirectory,
    ModelFolder,
    ModelId,
    Repositories,
    folder_stamp,
    parse_config_override,
    wanted_versions,
)


def folders(root, *names):
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def test_directories_of_several_repositories(tmp_path):
    one, two = folders(tmp_path / "one", "b", "c"), folders(tmp_path / "two", "a", "c")
    assert Repositories([one, two]).directories() == {
        "a": [two / "a"],
        "b": [one / "b"],
        "c": [one / "c", two / "c"],
    }


def test_missing_repository_is_an_error(tmp_path):
    with pytest.raises(ServerError) as caught:
        Repositories([tmp_path, tmp_path / "no"]).directories()
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message == f"failed to stat file {tmp_path / 'no'}"


@pytest.mark.parametrize(
    ("name", "said"),
    [("missing", "model not found"), ("m", "model appears in two or more repositories")],
)
def test_find_missing_or_ambiguous_model(tmp_path, name, said):
    one, two = folders(tmp_path / "one", "m"), folders(tmp_path / "two", "m")
    with pytest.raises(ServerError, match=said):
        Repositories([one, two]).find(ModelId(name))


def test_namespaces_allow_equal_names(tmp_path):
    one, two = folders(tmp_path / "one", "m", "n"), folders(tmp_path / "two", "m")
    repositories = Repositories([two, one], namespaced=True)
    assert list(repositories.directories()) == [f"{one}::m", f"{one}::n", f"{two}::m"]
    assert repositories.ids("m") == [f"{two}::m", f"{one}::m"]
    assert [repositories.find(model).path for model in repositories.ids("m")] == [
        two / "m",
        one / "m",
    ]
    assert repositories.ids("missing") == ["missing"]


def write_at(path, text, at_s):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at_s, at_s))


@pytest.fixture
def folder(tmp_path):
    """A model's folder whose files have known modification times."""
    model = tmp_path / "m"
    for path in ("1/model.py", "2/model.py", "config.pbtxt"):
        write_at(model / path, "x", 100)
    return model


def test_stamp_follows_links(tmp_path, folder):
    write_at(tmp_path / "elsewhere" / "model.py", "x", 100)
    (folder / "3").symlink_to(tmp_path / "elsewhere")
    (folder / "1" / "back").symlink_to(folder)
    before = folder_stamp(folder)
    write_at(tmp_path / "elsewhere" / "model.py", "x", 200)
    assert folder_stamp(folder).adds_to(before)


@pytest.mark.parametrize(
    ("change", "adds"),
    [
        (lambda model: write_at(model / "config.pbtxt", "x", 200), False),
        (lambda model: write_at(model / "1/model.py", "x", 200), True),
        (lambda model: write_at(model / "1/model.py", "longer", 100), True),
        (lambda model: write_at(model / "1/model.py", "y", 50), True),
        (lambda model: write_at(model / "1/helper.py", "x", 50), True),
        (lambda model: write_at(model / "labels.txt", "x", 50), True),
        (lambda model: shutil.rmtree(model / "2"), False),
    ],
    ids=["config", "touched", "longer", "older", "new", "new in the folder", "version gone"],
)
def test_stamp_detects_changed_files(folder, change, adds):
    before = folder_stamp(folder)
    os.utime(folder, (100, 100))
    change(folder)
    after = folder_stamp(folder)
    assert after != before
    assert after.adds_to(before) is adds


@pytest.mark.parametrize(
    ("names", "versions"),
    [
        (("1",), (1,)),
        (("10", "9", "2"), (2, 9, 10)),
        (("01", "abc", "-1", "v1", "configs"), ()),
        (("0", "1"), (0, 1)),
        (("3x",), (3,)),
        (("3", "3x"), (3,)),
        (("3", str(1 << 63)), (3,)),
    ],
)
def test_versions_are_folders_with_leading_digits(tmp_path, names, versions):
    assert ModelFolder(ModelId("m"), folders(tmp_path, *names)).versions() == versions


def test_other_folders_are_logged(tmp_path, caplog):
    for name in ("1", "003", "00", "abc", ".git"):
        (tmp_path / name).mkdir()
    assert ModelFolder(ModelId("m"), tmp_path).versions() == (1,)
    assert caplog.messages == [
        "ignore version directory '.git' which fails to convert to integral number",
        "ignore version directory '00' which contains leading zeros in its directory name",
        "ignore version directory '003' which contains leading zeros in its directory name",
        "ignore version directory 'abc' which fails to convert to integral number",
    ]


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", (10,)),
        ("latest { num_versions: 2 }", (3, 10)),
        ("latest { num_versions: 9 }", (1, 3, 10)),
        ("latest { num_versions: 0 }", ()),
        ("all { }", (1, 3, 10)),
        ("specific { versions: [10, 1] }", (1, 10)),
        ("specific { versions: [1, 9] }", (1,)),
        ("specific { versions: [9] }", ()),
        ("specific { }", ()),
    ],
)
def test_wanted_versions_follow_the_policy(policy, versions):
    config = completed(f"version_policy {{ {policy} }}" if policy else "")
    assert wanted_versions(schema.version_policy(config), (1, 3, 10)) == versions


@pytest.mark.parametrize("policy", ["latest { num_versions: 1 }", "all { }"])
def test_wanted_versions_of_no_versions(policy):
    config = completed(f"version_policy {{ {policy} }}")
    assert wanted_versions(schema.version_policy(config), ()) == ()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary directories."""
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
def test_override_file_is_written_in_the_directory(name, path, temporary):
    files = FileDirectory({name: b"content"})
    assert written(files.path) == {path: b"content"}


@pytest.mark.parametrize(
    "name", ["", ".", "/", "//", "..", "../x", "1/..", "1/../../x", "/../x", "1/", "a\0b", "x/y/"]
)
def test_override_path_outside_is_refused(name, temporary):
    with pytest.raises(ServerError):
        FileDirectory({"first": b"x", name: b"x"})
    assert list(temporary.iterdir()) == []


@given(st.text(st.sampled_from("./ab\0"), max_size=12))
def test_override_files_are_always_inside(name):
    try:
        files = FileDirectory({name: b"x"})
    except ServerError:
        return
    try:
        assert len(written(files.path)) == 1
    finally:
        files.release()


def test_last_reference_deletes_the_directory(temporary):
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
def test_config_override_is_protobuf_json(text):
    assert parse_config_override(text).max_batch_size == 4


@pytest.mark.parametrize(
    "text",
    ["", "x", "{", "[]", "null", "7", '{"nope": 1}', '{"max_batch_size": "x"}', '{"input": 1}'],
)
def test_invalid_config_override_is_refused(text):
    with pytest.raises(ServerError, match="Invalid config override: "):
        parse_config_override(text)
