"""Tests of all forms of imports in a model's files, on any thread and at any time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from server.backends.kit import (
    instance,
    model_file,
    replying,
    said,
    write,
)
from server.support.requests import PATIENCE_S

from reference_server.backends.python_host.modules import ModelModules
from reference_server.core.errors import ServerError


@pytest.fixture
def table(tmp_path):
    """A module table of a folder, for tests of single modules."""
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    modules = ModelModules(folder, {})
    yield modules
    modules.close()


def test_the_model_is_named_by_version_and_file(reply_of):
    assert reply_of("def reply(): return f'{__name__} {__package__} {__spec__.name}'") == (
        "1.model 1 1.model"
    )


def test_file_names_are_real(reply_of, tmp_path):
    tells_file = reply_of(
        "import helper",
        "def reply(): return f'{__file__} {helper.__file__} {reply.__code__.co_filename}'",
        files={"1/helper.py": ""},
    )
    model, helper, code = tells_file.split()
    assert model == code == f"{tmp_path}/m/1/model.py"
    assert helper == f"{tmp_path}/m/1/helper.py"


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("import helper", "helper.name"),
        ("import helper as h", "h.name"),
        ("from helper import name", "name"),
        ("from helper import *", "name"),
        ("import helper_root", "helper_root.name"),
        ("from . import helper", "helper.name"),
        ("from .helper import name", "name"),
        ("from . import helper as h, other", "h.name + other.name"),
        ("import package", "package.name"),
        ("import package.inner", "package.inner.name"),
        ("import package.inner as i", "i.name"),
        ("from package import inner", "inner.name"),
        ("from package import *", "inner.name"),
        ("from package.inner import outer_name", "outer_name"),
        ("import folder.deep.leaf", "folder.deep.leaf.name"),
        ("from folder.deep import leaf", "leaf.name"),
        ("from folder.deep.leaf import sibling", "sibling.name"),
        ("from .folder.deep import leaf", "leaf.name"),
        ("import importlib; helper = importlib.import_module('helper')", "helper.name"),
        ("from importlib import import_module", "import_module('package.inner').name"),
        ("import importlib", "importlib.import_module('.helper', __package__).name"),
        ("helper = __import__('helper')", "helper.name"),
        ("package = __import__('package.inner')", "package.inner.name"),
        ("exec('import helper')", "helper.name"),
    ],
)
def test_every_form_of_import_finds_the_models_files(reply_of, statement, value):
    files = {
        "1/helper.py": "name = 'helper'",
        "1/other.py": "name = 'other'",
        "helper_root.py": "name = 'root'",
        "1/package/__init__.py": "name = 'package'\n__all__ = ['inner']",
        "1/package/inner.py": "name = 'inner'\nfrom . import name as outer_name",
        "1/folder/deep/leaf.py": "name = 'leaf'\nfrom . import sibling",
        "1/folder/deep/sibling.py": "name = 'sibling'",
    }
    told = reply_of(statement, f"def reply(): return {value}", files=files)
    assert told in {"helper", "helperother", "root", "package", "inner", "leaf", "sibling"}


@pytest.mark.parametrize("name", ["json", "numpy", "this"])
def test_installed_modules_come_before_both(reply_of, name):
    module = f"{name}.__name__ + str('mine' in vars({name}))"
    imported = (
        f"import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()): import {name}"
    )
    files = {f"1/{name}.py": "mine = 1"}
    assert reply_of(imported, f"def reply(): return {module}", files=files) == f"{name}False"


def test_the_package_of_the_version_may_have_code(reply_of):
    files = {"1/__init__.py": "name = 'init'"}
    assert reply_of("from . import name", "def reply(): return name", files=files) == "init"


def test_modules_may_import_each_other(reply_of):
    files = {
        "1/one.py": "from . import two\ndef name(): return two.name\n",
        "1/two.py": "from . import one\nname = 'two'\ndef back(): return one.name()\n",
    }
    assert reply_of("from . import one", "def reply(): return one.two.back()", files=files) == "two"


def test_the_utils_belong_to_the_instance(reply_of, tmp_path):
    lines = (
        "import triton_python_backend_utils, helper",
        "def reply(): return f'{triton_python_backend_utils is pb_utils is helper.pb_utils} '"
        " + pb_utils.__name__ + ' ' + pb_utils.get_model_dir()",
    )
    files = {"1/helper.py": "import triton_python_backend_utils as pb_utils"}
    assert reply_of(*lines, files=files) == f"True triton_python_backend_utils {tmp_path}/m/1"


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("import missing", "ModuleNotFoundError: No module named 'missing'"),
        ("import helper.part", "No module named 'helper.part'; 'helper' is not a package"),
        ("import package.part.deep", "ModuleNotFoundError: No module named 'package.part'"),
        ("from . import missing", "ImportError: cannot import name 'missing' from '1'"),
        ("from .missing import x", "ModuleNotFoundError: No module named '1.missing'"),
        ("from helper import missing", "ImportError: cannot import name 'missing' from 'helper'"),
        ("from package import missing", "ImportError: cannot import name 'missing' from 'package'"),
        ("from ... import x", "ImportError: attempted relative import beyond top-level package"),
        ("import uses_relative", "attempted relative import with no known parent package"),
        ("import importlib; importlib.import_module('missing')", "No module named 'missing'"),
    ],
)
def test_failed_imports_raise_pythons_errors(tmp_path, statement, text):
    files = {
        "1/helper.py": "",
        "1/package/__init__.py": "",
        "1/uses_relative.py": "from . import helper",
    }
    with pytest.raises(ServerError) as caught:
        instance(model_file(tmp_path, statement, files)).open()
    assert text in caught.value.message
    assert "model.py(1): <module>\n" in caught.value.message


def test_a_failed_import_is_repeated(table, tmp_path):
    helper = write(tmp_path / "m/1/package/helper.py", "1 / 0")
    with pytest.raises(ZeroDivisionError):
        table.require("package.helper")
    assert not hasattr(table.require("package"), "helper")
    helper.write_text("name = 'good'")
    assert table.require("package.helper").name == "good"


def test_a_helper_runs_once_however_many_threads_import_it(reply_of):
    told = reply_of(
        "import threading",
        "from concurrent.futures import ThreadPoolExecutor",
        "barrier = threading.Barrier(8)",
        "def lazy(_):",
        "    barrier.wait()",
        "    import helper",
        "    return helper.done",
        "def reply():",
        "    with ThreadPoolExecutor(8) as pool: done = set(pool.map(lazy, range(8)))",
        "    import helper",
        "    return f'{done} {helper.runs}'",
        files={
            "1/helper.py": "from counter import count\nruns = count()\ndone = True",
            "1/counter.py": "import itertools\nticks = itertools.count(1)\n"
            "def count(): return next(ticks)",
        },
    )
    assert told == "{True} 1"


def test_a_thread_waits_for_a_module_that_another_one_runs(tmp_path, table):
    write(
        tmp_path / "m/1/gate.py",
        "import threading\nreached, go_on = threading.Event(), threading.Event()",
    )
    write(
        tmp_path / "m/1/slow.py",
        "import gate\ngate.reached.set()\ngate.go_on.wait()\nname = 'slow'",
    )
    gate = table.require("gate")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(table.require, "slow")
        gate.reached.wait()
        second = pool.submit(table.require, "slow")
        gate.go_on.set()
        assert first.result() is second.result()
        assert second.result().name == "slow"


def test_two_models_open_side_by_side(tmp_path, open_file):
    meeting = threading.Barrier(2, timeout=PATIENCE_S)
    threading.meeting_of_models = meeting  # the one thing that both can reach
    source = replying(
        "import threading", "threading.meeting_of_models.wait()", "def reply(): return 'met'"
    )
    try:
        files = [model_file(tmp_path, source, name=name) for name in "ab"]
        with ThreadPoolExecutor(2) as pool:
            assert [said(opened) for opened in pool.map(open_file, files)] == ["met", "met"]
    finally:
        del threading.meeting_of_models
