"""Tests of opening and closing instances, failures included, and of what an idle one holds."""

import gc
import logging
import os
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from server.backends.kit import (
    IDENTITY,
    Ticks,
    executing,
    execution_error,
    instance,
    model_file,
    request,
    said,
)
from server.support.instances import NotedOutcomes
from server.support.requests import Answers

from reference_server.backends.python_host.inline import InlineInstance
from reference_server.core.errors import Code, ServerError
from reference_server.scheduling.instance_scheduler import InstanceScheduler
from reference_server.scheduling.work_queue import Fifo


def opening_error(tmp_path: Path, source: str, **settings: str) -> ServerError:
    file = model_file(tmp_path, source, **settings)
    with pytest.raises(ServerError) as caught:
        instance(file).open()
    return caught.value


def test_initialize_receives_seven_strings(tmp_path, open_file):
    file = model_file(
        tmp_path,
        """
        import json
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.args = json.dumps(args)

            def execute(self, requests):
                text = pb_utils.Tensor("TEXT", np.array([self.args], dtype=object))
                return [pb_utils.InferenceResponse([text]) for _ in requests]
        """,
        name="bert",
        version=3,
    )
    opened = open_file(file, name="bert_0_1", config_json='{"name":"bert"}', device_id=2)
    assert eval(said(opened)) == {
        "model_config": '{"name":"bert"}',
        "model_instance_kind": "CPU",
        "model_instance_name": "bert_0_1",
        "model_instance_device_id": "2",
        "model_repository": str(tmp_path / "bert"),
        "model_version": "3",
        "model_name": "bert",
    }


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "import json\nraise ValueError('at import')",
            "ValueError: at import\n\nAt:\n  {file}(2): <module>\n",
        ),
        ("def f(:\n", "SyntaxError: invalid syntax (model.py, line 1)"),
        (
            "import nonexistent_xyz",
            "ModuleNotFoundError: No module named 'nonexistent_xyz'\n\nAt:\n"
            "  {file}(1): <module>\n",
        ),
        ("raise SystemExit(2)", "SystemExit: 2\n\nAt:\n  {file}(1): <module>\n"),
        ("", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        ("TritonPythonModel = 5", "TypeError: 'int' object is not callable"),
        (
            "class TritonPythonModel:\n  def __init__(self, x): pass",
            "TypeError: TritonPythonModel.__init__() missing 1 required positional argument: 'x'",
        ),
        (
            "class TritonPythonModel:\n  def __init__(self): raise KeyError('k')",
            "KeyError: 'k'\n\nAt:\n  {file}(2): __init__\n",
        ),
        (
            "class TritonPythonModel:\n  def initialize(self): pass",
            "TypeError: TritonPythonModel.initialize() "
            "takes 1 positional argument but 2 were given",
        ),
        (
            "class TritonPythonModel:\n  def initialize(self, args): raise RuntimeError('no good')",
            "RuntimeError: no good\n\nAt:\n  {file}(2): initialize\n",
        ),
        (
            "class TritonPythonModel:\n  def initialize(self, args): raise SystemExit(4)",
            "SystemExit: 4\n\nAt:\n  {file}(2): initialize\n",
        ),
    ],
)
def test_failures_while_opening_have_tritons_text(tmp_path, source, text):
    error = opening_error(tmp_path, source)
    assert error.code is Code.INTERNAL
    assert error.message == text.format(file=tmp_path / "m/1/model.py")


def test_a_missing_file_fails_at_once(tmp_path):
    missing = tmp_path / "m" / "1" / "model.py"
    with pytest.raises(ServerError, match=r"Python model file not found in") as caught:
        instance(missing).open()
    assert caught.value.message == f"Python model file not found in '{missing}'"


def test_a_file_of_another_suffix_is_refused(tmp_path):
    error = opening_error(tmp_path, IDENTITY, filename="model.txt")
    assert error.message == "Model name must end with '.py'. Model name is \"model.txt\"."


def test_another_file_name_names_the_module(tmp_path, open_file):
    file = model_file(
        tmp_path, executing("raise ValueError(__name__, __package__)"), filename="other.py"
    )
    assert "ValueError: ('1.other', '1')" in execution_error(open_file(file))


def test_opening_is_logged_as_triton_does(open_model, caplog):
    caplog.set_level(logging.INFO, "reference_server")
    open_model(IDENTITY)
    assert "TRITONBACKEND_ModelInstanceInitialize: m_0_0 (CPU device 0)" in caplog.messages


def test_finalize_runs_once(open_model, capsys):
    opened = open_model("class TritonPythonModel:\n  def finalize(self): print('bye')")
    opened.close()
    opened.close()
    assert capsys.readouterr().out == "bye\n"


@pytest.mark.parametrize("error", ["ValueError('fin')", "SystemExit('fin')"])
def test_an_exception_in_finalize_is_only_logged(tmp_path, open_model, caplog, error):
    caplog.set_level(logging.INFO, "reference_server")
    opened = open_model(f"class TritonPythonModel:\n  def finalize(self): raise {error}")
    opened.close()
    kind = error.partition("(")[0]
    expected = f"{kind}: fin\n\nAt:\n  {tmp_path}/m/1/model.py(2): finalize\n"
    assert (logging.INFO, expected) in [(r.levelno, r.getMessage()) for r in caplog.records]


def test_an_instance_that_never_opened_closes_silently(tmp_path):
    unopened = instance(tmp_path / "m/1/model.py")
    unopened.close()
    assert "closed" in repr(unopened)


ONE_AT_A_TIME = """
    import sys
    import threading

    class TritonPythonModel:
        def initialize(self, args):
            sys.modules["overlaps"].enter("initialize")

        def finalize(self):
            sys.modules["overlaps"].enter("finalize")
"""


class Overlaps:
    """Records calls, and whether another one began before a call ended."""

    def __init__(self):
        self.calls = []
        self.found = False
        self._inside = 0

    def enter(self, name):
        self._inside += 1
        for _ in range(50):
            os.sched_yield()
            self.found |= self._inside > 1
        self.calls.append(name)
        self._inside -= 1


def test_instances_initialize_and_finalize_one_after_the_other(tmp_path, monkeypatch):
    overlaps = Overlaps()
    monkeypatch.setitem(sys.modules, "overlaps", overlaps)
    file = model_file(tmp_path, ONE_AT_A_TIME)
    instances = [instance(file, name=f"m_{number}") for number in range(4)]
    for action in (InlineInstance.open, InlineInstance.close):
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(action, instances))
    assert overlaps.calls == ["initialize"] * 4 + ["finalize"] * 4
    assert not overlaps.found


ARRAYS = "arrays = [r.inputs()[0].as_numpy() for r in requests]"
RETURNS = "return [pb_utils.InferenceResponse([]) for _ in requests]"
FINAL = "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"
SENDS = f"[r.get_response_sender().send(pb_utils.InferenceResponse([]), {FINAL}) for r in requests]"
RAISES = "raise ValueError('no')"
COROUTINE = ("async def work(arrays):", "    {}", "return work(arrays)")


def coroutine(line):
    """Return the lines of an `execute` that returns a coroutine, which runs `line`."""
    return [part.format(line) for part in COROUTINE]


WAYS = {
    "answered": ([RETURNS], {}),
    "sent": ([SENDS], {}),
    "sent of many": ([SENDS], {"is_decoupled": True}),
    "awaited": (coroutine(RETURNS), {}),
    "started": (coroutine(SENDS), {"is_decoupled": True}),
    "failed": ([RAISES], {}),
    "failed with a sender": (["[r.get_response_sender() for r in requests]", RAISES], {}),
    "failed when awaited": (coroutine(RAISES), {}),
    "failed when started": (coroutine(RAISES), {"is_decoupled": True}),
    "of another type": (["return 7"], {}),
    "not answered": (["return None"], {}),
}


@pytest.fixture
def no_collector():
    """Disable the collector, so that only unreferenced objects are freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.brute_force
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_is_freed_although_its_response_is_kept(tmp_path, way):
    lines, changes = WAYS[way]
    model = instance(model_file(tmp_path, executing(ARRAYS, *lines)), **changes)
    scheduler = InstanceScheduler("m", 1, Fifo(), [model], NotedOutcomes(), Ticks())
    scheduler.open()
    kept = []

    def ask():
        array = np.zeros(4)
        asked = request(IN=array)
        asked.sink = answers = Answers()
        scheduler.submit(asked)
        kept.append(answers.wait())
        return weakref.ref(array)

    first = ask()
    ask()  # now the thread is done with the first one
    assert first() is None
    scheduler.close()
