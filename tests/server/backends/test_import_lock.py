"""Tests of concurrent imports by models: cycles, lazy modules, threads and forks."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from server.backends.kit import instance, model_file, replying, said, write

from reference_server.backends.python_host.modules import ImportLock

#: How long a module waits for another to be imported beside it, which must not happen.
MEETING_S = 0.2

#: A package like transformers: it puts a lazy module in its own place, whose parts are imported
#: when they are first asked for. They import each other in a circle; each works if it is alone.
LAZY = {
    "__init__.py": """
        import importlib, sys, threading, types

        events = {name: threading.Event() for name in ("package", "left", "right")}

        def meet(own, other):
            events[own].set()
            events[other].wait(%(meeting)s)

        class Lazy(types.ModuleType):
            NAMES = {"Left": "left", "Right": "right"}

            def __getattr__(self, name):
                if name not in self.NAMES:
                    raise AttributeError(name)
                value = getattr(importlib.import_module(f".{self.NAMES[name]}", __name__), name)
                setattr(self, name, value)
                return value

        lazy = Lazy(__name__)
        lazy.__path__, lazy.__spec__, lazy.__package__ = __path__, __spec__, __name__
        lazy.meet, lazy.events = meet, events
        events["package"].set()
        events["left"].wait(%(meeting)s)  # another model's import comes here, if it is let in
        sys.modules[__name__] = lazy
    """,
    "left.py": """
        from . import meet

        meet("left", "right")

        def name():
            return "left"

        from .right import name as other

        class Left:
            names = name(), other()
    """,
    "right.py": """
        from . import meet

        meet("right", "left")

        def name():
            return "right"

        from .left import name as other

        class Right:
            names = name(), other()
    """,
}


@pytest.fixture
def library(tmp_path):
    """A function that installs a package of these files for the test and returns its name."""
    folder = tmp_path / "installed"
    installed = []

    def install(files, name):
        for path, source in files.items():
            write(folder / name / path, source % {"meeting": MEETING_S})
        installed.append(name)
        return name

    sys.path.append(str(folder))
    yield install
    sys.path.remove(str(folder))
    for name in [known for known in sys.modules if known.partition(".")[0] in installed]:
        del sys.modules[name]


@pytest.fixture
def open_side_by_side(tmp_path):
    """A function that opens models on separate threads and returns their replies."""

    def open_all(*sources):
        opened = [
            instance(model_file(tmp_path, source, name=f"m{number}"))
            for number, source in enumerate(sources)
        ]

        def reply(one):
            one.open()
            try:
                return said(one)
            finally:
                one.close()

        with ThreadPoolExecutor(len(opened)) as threads:
            return list(threads.map(reply, opened))

    return open_all


@pytest.mark.brute_force
@pytest.mark.parametrize("when", ["import", "execute"])
def test_a_cycle_of_lazy_modules_is_imported_from_both_ends(library, open_side_by_side, when):
    package = library(LAZY, f"lazy_of_tests_{when}")
    sources = []
    for name in ("Left", "Right"):
        line = f"from {package} import {name}"
        top, inside = (line, "pass") if when == "import" else ("", line)
        sources.append(
            replying(top, "def reply():", f"    {inside}", f"    return ' '.join({name}.names)")
        )
    assert open_side_by_side(*sources) == ["left right", "right left"]


@pytest.mark.brute_force
def test_a_lazy_package_imported_inside_a_function_is_complete(
    library, open_side_by_side, monkeypatch
):
    """The import finds the first module before the package replaces it by a lazy one."""
    package = library(LAZY, "lazy_of_tests_late")
    late = library(
        {"__init__.py": f"def call():\n    from {package} import Left\n    return Left.names[0]"},
        "late_of_tests",
    )
    monkeypatch.setattr(sys, "ready_of_tests", threading.Event(), raising=False)
    first = replying(
        "sys.ready_of_tests.wait()",
        f"import {package}",
        f"def reply(): return {package}.Right.names[0]",
    )
    second = replying(
        f"import {late} as late",
        "sys.ready_of_tests.set()",
        "def begun():",
        f"    package = sys.modules.get('{package}')",
        "    return package is not None and hasattr(package, 'events')",
        "while not begun(): pass",
        "name = late.call()",
        "def reply(): return name",
    )
    assert open_side_by_side(first, second) == ["right", "left"]


def test_a_package_may_wait_for_importing_threads_of_its_own(library, reply_of):
    package = library(
        {
            "__init__.py": """
                from concurrent.futures import ThreadPoolExecutor

                def load():
                    import wave
                    from importlib import import_module
                    return import_module("threads_of_tests_part").NAME

                with ThreadPoolExecutor(1) as threads:
                    NAME = threads.submit(load).result()
            """
        },
        "threads_of_tests",
    )
    library({"__init__.py": "NAME = 'part'"}, "threads_of_tests_part")
    assert reply_of(f"import {package}", f"def reply(): return {package}.NAME") == "part"


# ---------------------------------------------------------------------------------- the turns


def entered(turns, owner):
    """Return whether a new thread can enter."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(turns.enter, owner).result()


def test_the_next_owner_enters_after_the_last_leave():
    turns = ImportLock(patience_s=0)
    turns.enter("a")
    turns.enter("a")
    turns.leave()
    assert not entered(turns, "b")
    turns.leave()
    assert entered(turns, "b")


def test_a_waiting_thread_is_woken():
    turns = ImportLock(patience_s=60)
    turns.enter("a")
    let_in = []
    thread = threading.Thread(target=lambda: let_in.append(turns.enter("b")))
    thread.start()
    turns.leave()
    thread.join()
    assert let_in == [True]


@pytest.mark.brute_force
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_child_forked_during_an_import_can_import_the_same_module(
    library, open_side_by_side, monkeypatch
):
    package = library(
        {
            "__init__.py": """
                import sys, threading

                sys.begun_of_tests.set()
                threading.Event().wait(%(meeting)s)
                NAME = "whole"
            """
        },
        "slow_of_tests",
    )
    monkeypatch.setattr(sys, "begun_of_tests", threading.Event(), raising=False)
    first = replying(f"import {package}", f"def reply(): return {package}.NAME")
    second = replying(
        "import multiprocessing, sys",
        "sys.begun_of_tests.wait()",
        "fork = multiprocessing.get_context('fork')",
        "def child(end):",
        f"    from {package} import NAME",
        "    end.send(NAME)",
        "end, childs = fork.Pipe()",
        "process = fork.Process(target=child, args=(childs,))",
        "process.start()",
        "name = end.recv() if end.poll(20) else 'nothing'",
        "process.kill()",
        "process.join()",
        "def reply(): return name",
    )
    assert open_side_by_side(first, second) == ["whole", "whole"]
