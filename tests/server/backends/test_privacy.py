"""Tests that modules are private to an instance and are read again when it opens again."""

import importlib
import os
import sys

import pytest
from server.backends.kit import (
    COUNTING,
    instance,
    model_file,
    replying,
    said,
    write,
)

from reference_server.core.errors import ServerError


def test_equally_named_helpers_of_two_models_never_meet(tmp_path, open_file):
    a = open_file(
        model_file(tmp_path, COUNTING, {"1/helper.py": "count = 1; name = 'a'"}, name="a")
    )
    b = open_file(
        model_file(tmp_path, COUNTING, {"1/helper.py": "count = 2; name = 'b'"}, name="b")
    )
    assert [said(a), said(b), said(a)] == ["1 11 a", "1 12 b", "2 21 a"]


def test_equally_named_helpers_of_two_versions_never_meet(tmp_path, open_file):
    files = {"1/helper.py": "count = 0; name = 'one'", "2/helper.py": "count = 0; name = 'two'"}
    one = open_file(model_file(tmp_path, COUNTING, files))
    two = open_file(model_file(tmp_path, COUNTING, version=2))
    assert [said(one), said(two)] == ["1 10 one", "1 10 two"]


def test_a_helper_of_another_model_is_not_found(tmp_path, open_file):
    open_file(model_file(tmp_path, COUNTING, {"1/helper.py": "count = 0; name = 'a'"}, name="a"))
    alone = model_file(tmp_path, "import helper", name="alone")
    with pytest.raises(ServerError, match=r"ModuleNotFoundError: No module named 'helper'"):
        instance(alone).open()


def test_helpers_in_added_folders_of_the_model_are_private(tmp_path, open_file):
    source = replying(
        "import os",
        "sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(__file__)), 'lib'))",
        "import helper",
        "def reply(): return helper.name",
    )
    path = sys.path.copy()
    a = open_file(model_file(tmp_path, source, {"lib/helper.py": "name = 'a'"}, name="a"))
    b = open_file(model_file(tmp_path, source, {"lib/helper.py": "name = 'b'"}, name="b"))
    sys.path[:] = path
    assert [said(a), said(b)] == ["a", "b"]


def test_an_added_folder_outside_of_the_model_is_shared(tmp_path, reply_of):
    write(tmp_path / "shared" / "shared_by_models_xyz.py", "name = 'shared'")
    path = sys.path.copy()
    told = reply_of(
        f"sys.path.append({str(tmp_path / 'shared')!r})",
        "import shared_by_models_xyz",
        "def reply(): return shared_by_models_xyz.name",
    )
    sys.path[:] = path
    assert told == "shared"
    assert sys.modules.pop("shared_by_models_xyz").name == "shared"


def test_builtins_that_a_model_sets_stay_its_own(reply_of):
    told = reply_of(
        "import builtins, helper",
        "builtins.set_by_model = 'set'",
        "def reply(): return set_by_model + helper.reply()",
        files={"1/helper.py": "def reply(): return set_by_model"},
    )
    assert told == "setset"
    assert not hasattr(importlib.import_module("builtins"), "set_by_model")


def test_opening_again_runs_the_current_files(tmp_path, open_file):
    file = model_file(tmp_path, COUNTING, {"1/helper.py": "count = 0; name = 'a'"})
    helper = file.with_name("helper.py")
    before = helper.stat()
    first = open_file(file)
    assert said(first) == "1 10 a"
    helper.write_text("count = 0; name = 'b'")
    os.utime(helper, ns=(before.st_atime_ns, before.st_mtime_ns))  # an edit within the same second
    assert said(open_file(file)) == "1 10 b"
    assert said(first) == "2 20 a"


def test_a_model_may_reload_its_helper(tmp_path, open_model):
    opened = open_model(
        replying(
            "import importlib, json, helper",
            "def reply():",
            "    importlib.reload(json)",
            "    return importlib.reload(helper).name",
        ),
        {"1/helper.py": "name = 'old'"},
    )
    (tmp_path / "m/1/helper.py").write_text("name = 'new'")
    assert said(opened) == "new"
