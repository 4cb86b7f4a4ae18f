"""Tests that libraries, debuggers and pickle find an instance's modules by name."""

import bdb
import gc
import importlib
import linecache
import pickle
import sys
import traceback
import types
import weakref

import pytest
from server.backends.kit import (
    COUNTING,
    answer,
    instance,
    model_file,
    replying,
    request,
    said,
    write,
)

from reference_server.core.errors import ServerError

DATACLASSES = (
    "from __future__ import annotations\n"
    "import dataclasses, inspect, pickle, sys, typing\n"
    "@dataclasses.dataclass\n"
    "class Point:\n"
    "    x: int = {}\n"
    "    nearest: typing.ClassVar[Point | None] = None\n"
)


#: Each must be true of a module `m` of the model.
FOUND = [
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
]


@pytest.mark.brute_force
@pytest.mark.parametrize("module", ["helper", "sub"])
def test_libraries_find_an_instances_modules_by_name(tmp_path, open_file, module):
    told = []
    for number, name in enumerate("ab"):
        source = replying(
            "import dataclasses, inspect, pickle, typing, helper",
            "from . import sub",
            "def reply():",
            f"    found = [{', '.join(FOUND)}]".format(m=module),
            f"    return f'{{found}} {{{module}.Point().x}}'",
        )
        points = DATACLASSES.format(number)
        files = {"1/helper.py": points, "1/sub.py": points}
        told.append(open_file(model_file(tmp_path, source, files, name=name)))
    found = [True] * len(FOUND)
    assert [said(opened) for opened in told] == [f"{found} 0", f"{found} 1"]


def test_a_pickle_of_a_helpers_class_is_read(tmp_path, open_file):
    helper = "class Weights:\n    def __init__(self): self.name = {!r}\n"
    source = replying(
        "import pickle",
        "def reply():",
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


def test_a_library_that_imports_by_name_finds_the_calling_models_module(tmp_path, open_file):
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
    source = replying(
        f"import {library.stem} as library",
        "def reply():",
        "    library.put('package.helper', 'name', library.call('package.helper', 'reply') * 2)",
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
                        {"1/package/helper.py": f"name = {name!r}\ndef reply(): return name"},
                        name=name,
                    )
                )
            )
            for name in "ab"
        ]
        assert told == ["aa", "bb"]
        with pytest.raises(AttributeError):  # the library alone has no such module
            sys.modules[library.stem].call("package.helper", "reply")
    finally:
        del sys.modules[library.stem]


def test_a_library_may_import_the_utils_itself(tmp_path, reply_of):
    write(tmp_path / "library_of_tests_uvw.py", "import triton_python_backend_utils as pb_utils")
    path = sys.path.copy()
    try:
        told = reply_of(
            f"sys.path.append({str(tmp_path)!r})",
            "import library_of_tests_uvw as library",
            "def reply(): return str(library.pb_utils.Tensor is pb_utils.Tensor)",
        )
    finally:
        sys.path[:] = path
        sys.modules.pop("library_of_tests_uvw", None)
        sys.modules.pop("triton_python_backend_utils", None)
    assert told == "True"


def test_iterating_over_sys_modules_imports_nothing(tmp_path, open_file):
    holder = model_file(tmp_path, COUNTING, {"1/helper.py": "count = 0; name = 'a'"}, name="a")
    open_file(holder)
    walker = replying(
        "def reply():",
        "    walked = [hasattr(m, '__file__') for m in list(sys.modules.values())]",
        "    return 'walked'",
    )
    files = {"1/helper.py": "raise SystemExit('must not run')"}
    assert said(open_file(model_file(tmp_path, walker, files, name="b"))) == "walked"


def test_tracebacks_show_the_models_lines(tmp_path, open_model):
    opened = open_model(replying("def reply():", "    raise ValueError  # here it is"))
    with pytest.raises(ServerError) as caught:
        answer(opened, request())
    text = "".join(traceback.format_exception(caught.value.__cause__))
    assert "raise ValueError  # here it is" in text
    assert f'File "{tmp_path}/m/1/model.py", line 6, in reply' in text
    assert (
        linecache.getline(f"{tmp_path}/m/1/model.py", 6) == "    raise ValueError  # here it is\n"
    )


class Debugger(bdb.Bdb):
    """A debugger that records the lines at which it stops."""

    def __init__(self):
        super().__init__()
        self.stops = []

    def user_line(self, frame):
        self.stops.append((frame.f_code.co_filename, frame.f_lineno))
        self.set_continue()


def test_breakpoints_in_a_models_files_are_hit(tmp_path, open_model):
    opened = open_model(
        replying("import helper", "def reply(): return helper.reply()"),
        {"1/helper.py": "def reply():\n    text = 'done'\n    return text\n"},
    )
    helper = str(tmp_path / "m/1/helper.py")
    debugger = Debugger()
    assert debugger.set_break(helper, 3) is None
    debugger.reset()
    previous = sys.gettrace()
    sys.settrace(debugger.trace_dispatch)
    try:
        assert said(opened) == "done"
    finally:
        sys.settrace(previous)
        debugger.clear_all_breaks()
    assert (helper, 3) in debugger.stops


def test_the_breakpoint_function_stops_in_the_models_file(open_model, monkeypatch):
    stops = []
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: stops.append(sys._getframe(1).f_code.co_filename)
    )
    opened = open_model(replying("def reply():", "    breakpoint()", "    return __file__"))
    assert [said(opened)] == stops


def test_a_module_of_the_process_keeps_its_name(tmp_path, open_file, monkeypatch):
    ours = types.ModuleType("helper")
    monkeypatch.setitem(sys.modules, "helper", ours)
    file = model_file(tmp_path, COUNTING, {"1/helper.py": "count = 0; name = 'own'"})
    opened = instance(file)
    opened.open()
    assert said(opened) == "1 10 own"
    assert sys.modules["helper"] is ours
    opened.close()
    assert sys.modules["helper"] is ours


@pytest.mark.brute_force
def test_closing_forgets_every_module(tmp_path):
    file = model_file(tmp_path, COUNTING, {"1/helper.py": "count = 0; name = 'a'"})
    before = set(sys.modules)
    for _ in range(3):
        opened = instance(file)
        opened.open()
        # Some of which other open models may have, too.
        assert set(sys.modules) - before == {"1", "1.model", "helper"} - before
        model = weakref.ref(opened._model)
        opened.close()
        assert set(sys.modules) == before
        gc.collect()
        assert model() is None
