"""What lies in the repositories, and which of it is wanted."""

import pytest
from server.support.configs import completed

from reference_server.config import schema
from reference_server.core.errors import Code, ServerError
from reference_server.repository.scan import ModelFolder, scan, wanted


def folders(root, *names):
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def test_folders_are_models_by_name(tmp_path):
    folders(tmp_path, "b", "a", ".git")
    (tmp_path / "README.md").touch()
    assert scan([tmp_path]) == [
        ModelFolder("a", tmp_path / "a"),
        ModelFolder("b", tmp_path / "b"),
    ]


def test_repositories_are_joined(tmp_path):
    one, two = folders(tmp_path / "one", "b"), folders(tmp_path / "two", "a")
    assert [folder.path for folder in scan([one, two])] == [two / "a", one / "b"]


def test_a_missing_repository_is_an_error(tmp_path):
    with pytest.raises(ServerError) as caught:
        scan([tmp_path, tmp_path / "no"])
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message == f"failed to stat file {tmp_path / 'no'}"


def test_a_model_in_two_repositories_is_an_error(tmp_path):
    one, two = folders(tmp_path / "one", "m"), folders(tmp_path / "two", "m")
    with pytest.raises(ServerError) as caught:
        scan([one, two])
    assert caught.value.message == (
        f"model 'm' is in more than one repository: {one / 'm'} and {two / 'm'}"
    )


@pytest.mark.parametrize(
    ("names", "versions"),
    [
        (("1",), (1,)),
        (("10", "9", "2"), (2, 9, 10)),
        (("0", "01", "abc", "-1", "v1", "configs"), ()),
        (("3x",), (3,)),
        (("3", "3x"), (3,)),
    ],
)
def test_versions_are_folders_that_begin_with_a_number(tmp_path, names, versions):
    assert ModelFolder("m", folders(tmp_path, *names)).versions() == versions


def test_a_file_is_no_version(tmp_path):
    (tmp_path / "1").touch()
    assert ModelFolder("m", tmp_path).versions() == ()


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
def test_the_policy_decides(policy, versions):
    config = completed(f"version_policy {{ {policy} }}" if policy else "")
    assert wanted(schema.version_policy(config), (1, 3, 10)) == versions


@pytest.mark.parametrize("policy", ["latest { num_versions: 1 }", "all { }"])
def test_of_nothing_nothing_is_wanted(policy):
    config = completed(f"version_policy {{ {policy} }}")
    assert wanted(schema.version_policy(config), ()) == ()
