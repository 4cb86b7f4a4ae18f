"""Imports of models: their own directories, private to each instance."""

import bdb
import importlib
import linecache
import os
import pickle
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from server.backends.kit import answer, instance, model_file, request, said, write

from reference_server.backends.python_host.modules import ModelModules
from reference_server.core.errors import ServerError

#: A model that answers with what its function `tell` returns.
TELLING = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils
{}

class TritonPythonModel:
    def execute(self, requests):
        text = pb_utils.Tensor("TEXT", np.array([tell()], dtype=object))
        return [pb_utils.InferenceResponse([text]) for _ in requests]
"""


def telling(*lines: str) -> str:
    return TELLING.format("\n".join(lines))


@pytest.fixture
def tells(open_model):
    """Open a model made of lines, and give what its `tell` returns."""
    return lambda *lines, **files: said(open_model(telling(*lines), files.get("files", {})))


@pytest.fixture
def table(tmp_path):
    """A module table over a folder, where single modules can be tried."""
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    modules = ModelModules(folder, {})
    yield modules
    modules.close()


# ------------------------------------------------------------------------- names and directories


def test_the_model_is_named_by_version_and_file(tells):
    assert tells("def tell(): return f'{__name__} {__package__} {__spec__.name}'") == (
        "1.model 1 1.model"
    )


def test_file_names_are_real(tells, tmp_path):
    tells_file = tells(
        "import helper",
        "def tell(): return f'{__file__} {helper.__file__} {tell.__code__.co_filename}'",
        files={"1/helper.py": ""},
    )
    model, helper, code = tells_file.split()
    assert model == code == f"{tmp_path}/m/1/model.py"
    assert helper == f"{tmp_path}/m/1/helper.py"


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
def test_every_form_of_import_finds_the_models_files(tells, statement, value):
    files = {
        "1/helper.py": "name = 'helper'",
        "1/other.py": "name = 'other'",
        "helper_root.py": "name = 'root'",
        "1/package/__init__.py": "name = 'package'\n__all__ = ['inner']",
        "1/package/inner.py": "name = 'inner'\nfrom . import name as outer_name",
        "1/folder/deep/leaf.py": "name = 'leaf'\nfrom . import sibling",
        "1/folder/deep/sibling.py": "name = 'sibling'",
    }
    told = tells(statement, f"def tell(): return {value}", files=files)
    assert told in {"helper", "helperother", "root", "package", "inner", "leaf", "sibling"}


def test_the_version_comes_before_the_model(tells):
    files = {"1/helper.py": "name = 'version'", "helper.py": "name = 'model'"}
    assert tells("import helper", "def tell(): return helper.name", files=files) == "version"


@pytest.mark.parametrize("name", ["json", "numpy", "this"])
def test_what_is_installed_comes_before_both(tells, name):
    module = f"{name}.__name__ + str('mine' in vars({name}))"
    imported = (
        f"import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()): import {name}"
    )
    files = {f"1/{name}.py": "mine = 1"}
    assert tells(imported, f"def tell(): return {module}", files=files) == f"{name}False"


def test_the_package_of_the_version_may_have_code(tells):
    files = {"1/__init__.py": "name = 'init'"}
    assert tells("from . import name", "def tell(): return name", files=files) == "init"


def test_modules_may_import_each_other(tells):
    files = {
        "1/one.py": "from . import two\ndef name(): return two.name\n",
        "1/two.py": "from . import one\nname = 'two'\ndef back(): return one.name()\n",
    }
    assert tells("from . import one", "def tell(): return one.two.back()", files=files) == "two"


def test_the_utils_belong_to_the_instance(tells, tmp_path):
    lines = (
        "import triton_python_backend_utils, helper",
        "def tell(): return f'{triton_python_backend_utils is pb_utils is helper.pb_utils} '"
        " + pb_utils.__name__ + ' ' + pb_utils.get_model_dir()",
    )
    files = {"1/helper.py": "import triton_python_backend_utils as pb_utils"}
    assert tells(*lines, files=files) == f"True triton_python_backend_utils {tmp_path}/m/1"


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
def test_what_cannot_be_imported_is_refused_as_python_does(tmp_path, statement, text):
    files = {
        "1/helper.py": "",
        "1/package/__init__.py": "",
        "1/uses_relative.py": "from . import helper",
    }
    with pytest.raises(ServerError) as caught:
        instance(model_file(tmp_path, statement, files)).open()
    assert text in caught.value.message
    assert "model.py(1): <module>\n" in caught.value.message


def test_a_module_that_failed_is_tried_again(table, tmp_path):
    helper = write(tmp_path / "m/1/package/helper.py", "1 / 0")
    with pytest.raises(ZeroDivisionError):
        table.require("package.helper")
    assert not hasattr(table.require("package"), "helper")
    helper.write_text("name = 'good'")
    assert table.require("package.helper").name == "good"


# -------------------------------------------------------------------------------- private to each

COUNTING = telling(
    "import helper",
    "count = 0",
    "def tell():",
    "    global count",
    "    count += 1",
    "    helper.count += 10",
    "    return f'{count} {helper.count} {helper.name}'",
)


def test_instances_have_globals_of_their_own(tmp_path, open_file):
    file = model_file(tmp_path, COUNTING, {"1/helper.py": "count = 0\nname = 'x'"})
    first, second = open_file(file), open_file(file, name="m_0_1")
    assert [said(first), said(first), said(second)] == ["1 10 x", "2 20 x", "1 10 x"]


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


def test_helpers_below_a_folder_that_models_put_on_the_path_never_meet(tmp_path, open_file):
    source = telling(
        "import os",
        "sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(__file__)), 'lib'))",
        "import helper",
        "def tell(): return helper.name",
    )
    path = sys.path.copy()
    a = open_file(model_file(tmp_path, source, {"lib/helper.py": "name = 'a'"}, name="a"))
    b = open_file(model_file(tmp_path, source, {"lib/helper.py": "name = 'b'"}, name="b"))
    sys.path[:] = path
    assert [said(a), said(b)] == ["a", "b"]


def test_a_folder_elsewhere_that_a_model_puts_on_the_path_is_shared(tmp_path, tells):
    write(tmp_path / "shared" / "shared_by_models_xyz.py", "name = 'shared'")
    path = sys.path.copy()
    told = tells(
        f"sys.path.append({str(tmp_path / 'shared')!r})",
        "import shared_by_models_xyz",
        "def tell(): return shared_by_models_xyz.name",
    )
    sys.path[:] = path
    assert told == "shared"
    assert sys.modules.pop("shared_by_models_xyz").name == "shared"


def test_builtins_that_a_model_sets_stay_its_own(tells):
    told = tells(
        "import builtins, helper",
        "builtins.set_by_model = 'set'",
        "def tell(): return set_by_model + helper.tell()",
        files={"1/helper.py": "def tell(): return set_by_model"},
    )
    assert told == "setset"
    assert not hasattr(importlib.import_module("builtins"), "set_by_model")


def test_installed_modules_are_shared_with_the_process(tells):
    assert tells("import json", "def tell(): return str(id(json))") == str(
        id(importlib.import_module("json"))
    )


# ------------------------------------------------------------------------------ whenever, wherever


def test_imports_inside_functions_work_while_executing_and_on_other_threads(tells):
    told = tells(
        "from concurrent.futures import ThreadPoolExecutor",
        "def lazy():",
        "    import helper",
        "    from .other import name",
        "    return helper.name + name",
        "def tell():",
        "    with ThreadPoolExecutor(1) as pool: return pool.submit(lazy).result()",
        files={"1/helper.py": "name = 'helper'", "1/other.py": "name = 'other'"},
    )
    assert told == "helperother"


def test_a_helper_runs_once_however_many_threads_import_it(tells):
    told = tells(
        "import threading",
        "from concurrent.futures import ThreadPoolExecutor",
        "barrier = threading.Barrier(8)",
        "def lazy(_):",
        "    barrier.wait()",
        "    import helper",
        "    return helper.done",
        "def tell():",
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
    meeting = threading.Barrier(2)
    threading.meeting_of_models = meeting  # the one thing that both can reach
    source = telling(
        "import threading", "threading.meeting_of_models.wait(10)", "def tell(): return 'met'"
    )
    try:
        files = [model_file(tmp_path, source, name=name) for name in "ab"]
        with ThreadPoolExecutor(2) as pool:
            assert [said(opened) for opened in pool.map(open_file, files)] == ["met", "met"]
    finally:
        del threading.meeting_of_models


# ------------------------------------------------------------------------------------------ reload


def test_opening_again_runs_what_is_on_the_disk_now(tmp_path, open_file):
    file = model_file(tmp_path, COUNTING, {"1/helper.py": "count = 0; name = 'a'"})
    helper = file.with_name("helper.py")
    before = helper.stat()
    first = open_file(file)
    assert said(first) == "1 10 a"
    helper.write_text("count = 0; name = 'b'")
    os.utime(helper, ns=(before.st_atime_ns, before.st_mtime_ns))  # an edit within the same second
    assert said(open_file(file)) == "1 10 b"
    assert said(first) == "2 20 a"


def test_nothing_is_written_into_the_repository(tmp_path, open_file):
    file = model_file(tmp_path, COUNTING, {"1/helper.py": "count = 0; name = 'a'"})
    open_file(file)
    assert sorted(p.name for p in file.parent.iterdir()) == ["helper.py", "model.py"]


def test_a_model_may_reload_its_helper(tmp_path, open_model):
    opened = open_model(
        telling(
            "import importlib, json, helper",
            "def tell():",
            "    importlib.reload(json)",
            "    return importlib.reload(helper).name",
        ),
        {"1/helper.py": "name = 'old'"},
    )
    (tmp_path / "m/1/helper.py").write_text("name = 'new'")
    assert said(opened) == "new"


# -------------------------------------------------------------------- found by name, from outside


DATACLASSES = (
    "from __future__ import annotations\n"
    "import dataclasses, inspect, pickle, sys, typing\n"
    "@dataclasses.dataclass\n"
    "class Point:\n"
    "    x: int = {}\n"
    "    nearest: typing.ClassVar[Point | None] = None\n"
)


@pytest.mark.parametrize(
    "expression",
    [
        "dataclasses.asdict({m}.Point(5))['x'] == 5",
        "typing.get_type_hints({m}.Point)['x'] is int",
        "pickle.loads(pickle.dumps({m}.Point(5))) == {m}.Point(5)",
        "type(pickle.loads(pickle.dumps({m}.Point(5)))) is {m}.Point",
        "sys.modules[{m}.__name__].Point is {m}.Point",
        "vars(sys.modules[{m}.__name__]) is vars({m})",
        "'Point' in dir(sys.modules[{m}.__name__])",
        "inspect.getsource({m}.Point).startswith('@dataclasses.dataclass')",
        "inspect.getmodule({m}.Point).__file__ == {m}.__file__",
        "repr(sys.modules[{m}.__name__]) == repr({m})",
        "{m}.Point.__module__ == {m}.__name__",
    ],
)
@pytest.mark.parametrize("module", ["helper", "sub"])
def test_libraries_find_an_instances_modules_by_name(tmp_path, open_file, module, expression):
    told = []
    for number, name in enumerate("ab"):
        source = telling(
            "import dataclasses, inspect, pickle, typing, helper",
            "from . import sub",
            f"def tell(): return str({expression.format(m=module)}) + str({module}.Point().x)",
        )
        points = DATACLASSES.format(number)
        files = {"1/helper.py": points, "1/sub.py": points}
        told.append(open_file(model_file(tmp_path, source, files, name=name)))
    assert [said(opened) for opened in told] == ["True0", "True1"]


def test_a_pickle_of_a_helpers_class_is_read(tmp_path, open_file):
    helper = "class Weights:\n    def __init__(self): self.name = {!r}\n"
    source = telling(
        "import pickle",
        "def tell():",
        "    with open(pb_utils.get_model_dir() + '/weights', 'rb') as f: loaded = pickle.load(f)",
        "    return loaded.name + ' ' + type(loaded)().name",
    )
    opened = []
    for name in "ab":
        file = model_file(tmp_path, source, {"1/helper.py": helper.format(name)}, name=name)
        # As a training script would: helper is a module of its own there.
        wire = pickle.dumps(Weights(name), protocol=2).replace(__name__.encode(), b"helper")
        file.with_name("weights").write_bytes(wire)
        opened.append(open_file(file))
    assert [said(one) for one in opened] == ["a a", "b b"]


class Weights:
    def __init__(self, name):
        self.name = name


Weights.__module__ = __name__


def test_a_library_that_imports_by_name_finds_the_asking_models_module(tmp_path, open_file):
    library = write(
        tmp_path / "library_of_tests_xyz.py",
        """
        import importlib

        def call(name, function):
            return getattr(importlib.import_module(name), function)()

        def put(name, attribute, value):
            setattr(importlib.import_module(name), attribute, value)
        """,
    )
    sys.path.append(str(tmp_path))
    try:
        importlib.import_module(library.stem)
    finally:
        sys.path.remove(str(tmp_path))
    source = telling(
        f"import {library.stem} as library",
        "def tell():",
        "    library.put('package.helper', 'name', library.call('package.helper', 'tell') * 2)",
        "    from package import helper",
        "    return helper.name",
    )
    try:
        told = [
            said(
                open_file(
                    model_file(
                        tmp_path,
                        source,
                        {"1/package/helper.py": f"name = {name!r}\ndef tell(): return name"},
                        name=name,
                    )
                )
            )
            for name in "ab"
        ]
        assert told == ["aa", "bb"]
        with pytest.raises(AttributeError):  # the library alone has no such module
            sys.modules[library.stem].call("package.helper", "tell")
    finally:
        del sys.modules[library.stem]


def test_a_library_may_import_the_utils_itself(tmp_path, tells):
    write(tmp_path / "library_of_tests_uvw.py", "import triton_python_backend_utils as pb_utils")
    path = sys.path.copy()
    try:
        told = tells(
            f"sys.path.append({str(tmp_path)!r})",
            "import library_of_tests_uvw as library",
            "def tell(): return str(library.pb_utils.Tensor is pb_utils.Tensor)",
        )
    finally:
        sys.path[:] = path
        sys.modules.pop("library_of_tests_uvw", None)
        sys.modules.pop("triton_python_backend_utils", None)
    assert told == "True"


def test_who_walks_through_all_modules_imports_nothing(tmp_path, open_file):
    holder = model_file(tmp_path, COUNTING, {"1/helper.py": "count = 0; name = 'a'"}, name="a")
    open_file(holder)
    walker = telling(
        "def tell():",
        "    walked = [hasattr(m, '__file__') for m in list(sys.modules.values())]",
        "    return 'walked'",
    )
    files = {"1/helper.py": "raise SystemExit('must not run')"}
    assert said(open_file(model_file(tmp_path, walker, files, name="b"))) == "walked"


# ---------------------------------------------------------------------------------------- debugging


def test_tracebacks_show_the_models_lines(tmp_path, open_model):
    opened = open_model(telling("def tell():", "    raise ValueError  # here it is"))
    with pytest.raises(ServerError) as caught:
        answer(opened, request())
    text = "".join(traceback.format_exception(caught.value.__cause__))
    assert "raise ValueError  # here it is" in text
    assert f'File "{tmp_path}/m/1/model.py", line 6, in tell' in text
    assert (
        linecache.getline(f"{tmp_path}/m/1/model.py", 6) == "    raise ValueError  # here it is\n"
    )


class Debugger(bdb.Bdb):
    """Notes the lines at which it stops."""

    def __init__(self):
        super().__init__()
        self.stops = []

    def user_line(self, frame):
        self.stops.append((frame.f_code.co_filename, frame.f_lineno))
        self.set_continue()


def test_breakpoints_in_a_models_files_are_hit(tmp_path, open_model):
    opened = open_model(
        telling("import helper", "def tell(): return helper.tell()"),
        {"1/helper.py": "def tell():\n    text = 'told'\n    return text\n"},
    )
    helper = str(tmp_path / "m/1/helper.py")
    debugger = Debugger()
    assert debugger.set_break(helper, 3) is None
    debugger.reset()
    previous = sys.gettrace()
    sys.settrace(debugger.trace_dispatch)
    try:
        assert said(opened) == "told"
    finally:
        sys.settrace(previous)
        debugger.clear_all_breaks()
    assert (helper, 3) in debugger.stops


def test_the_breakpoint_function_stops_in_the_models_file(open_model, monkeypatch):
    stops = []
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: stops.append(sys._getframe(1).f_code.co_filename)
    )
    opened = open_model(telling("def tell():", "    breakpoint()", "    return __file__"))
    assert [said(opened)] == stops


def test_closing_forgets_every_module(tmp_path):
    file = model_file(tmp_path, COUNTING, {"1/helper.py": "count = 0; name = 'a'"})
    before = set(sys.modules)
    for _ in range(3):
        opened = instance(file)
        opened.open()
        assert set(sys.modules) - before == {"1", "1.model", "helper"}
        opened.close()
        assert set(sys.modules) == before
