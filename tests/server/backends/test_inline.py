"""The life of one instance: open, execute, close, and what goes wrong in each."""

import logging
import threading
from pathlib import Path

import numpy as np
import pytest
from server.backends.kit import (
    FAILED,
    IDENTITY,
    answer,
    instance,
    model_file,
    outputs,
    request,
    said,
)

from reference_server.core.dtypes import DataType
from reference_server.core.errors import Code, ServerError
from reference_server.core.tensor import Tensor

MODEL = """
import triton_python_backend_utils as pb_utils
import numpy as np

class TritonPythonModel:
    def execute(self, requests):
        {}
"""


def executing(*lines: str) -> str:
    return MODEL.format("\n        ".join(lines))


def opening_error(tmp_path: Path, source: str, **settings: str) -> ServerError:
    file = model_file(tmp_path, source, **settings)
    with pytest.raises(ServerError) as caught:
        instance(file).open()
    return caught.value


def execution_error(opened, *requests) -> str:
    with pytest.raises(ServerError) as caught:
        opened.execute(requests or [request()])
    assert caught.value.code is Code.INTERNAL
    return caught.value.message


# ------------------------------------------------------------------------------------------- open


def test_initialize_is_given_seven_strings(tmp_path, open_file):
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


def test_only_execute_is_needed(open_model):
    assert outputs(answer(open_model(IDENTITY), request(IN=[1, 2]))) == {"OUT": [1, 2]}


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
def test_what_fails_while_opening_is_told_in_tritons_words(tmp_path, source, text):
    error = opening_error(tmp_path, source)
    assert error.code is Code.INTERNAL
    assert error.message == text.format(file=tmp_path / "m/1/model.py")


def test_a_failing_helper_is_told_with_the_line_that_imports_it(tmp_path):
    file = model_file(tmp_path, "import helper", {"1/helper.py": "x = 1\nraise OSError('disk')"})
    with pytest.raises(ServerError) as caught:
        instance(file).open()
    assert caught.value.message == (
        f"OSError: disk\n\nAt:\n  {file.with_name('helper.py')}(2): <module>\n"
        f"  {file}(1): <module>\n"
    )


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


def test_an_async_initialize_is_not_awaited(open_model):
    with pytest.warns(RuntimeWarning, match=r"initialize' was never awaited"):
        open_model("""
            class TritonPythonModel:
                async def initialize(self, args): raise ValueError
        """)


def test_opening_is_logged_as_triton_does(open_model, caplog):
    caplog.set_level(logging.INFO)
    open_model(IDENTITY)
    assert "TRITONBACKEND_ModelInstanceInitialize: m_0_0 (CPU device 0)" in caplog.messages


# ---------------------------------------------------------------------------------------- execute


def test_a_batch_is_answered_in_order_each_with_its_own_shape(open_model):
    execution = open_model(IDENTITY).execute(
        [request(id="a", IN=[[1], [2]]), request(id="b", IN=[3.5]), request(id="c", IN=[b"x"])]
    )
    assert [(r.id, outputs(r)) for r in execution.responses] == [
        ("a", {"OUT": [[1], [2]]}),
        ("b", {"OUT": [3.5]}),
        ("c", {"OUT": [b"x"]}),
    ]
    assert all(r.final and r.model_name == "m" for r in execution.responses)


def test_responses_carry_the_version_that_answered(tmp_path, open_file):
    opened = open_file(model_file(tmp_path, IDENTITY, version=7))
    assert answer(opened, request(IN=[1])).model_version == 7


def test_the_moments_between_the_three_parts_are_told(open_model):
    execution = open_model(IDENTITY).execute([request(IN=[1])])
    assert (execution.input_end_ns, execution.output_start_ns) == (1, 2)


def test_arrays_pass_through_without_a_copy(open_model):
    given = np.arange(4, dtype=np.float32)
    (output,) = answer(open_model(IDENTITY), request(IN=given)).outputs
    assert np.shares_memory(output.array(), given)


def test_bytes_of_the_wire_are_viewed_not_copied(open_model):
    wire = bytearray(np.arange(4, dtype=np.float32).tobytes())
    asked = request()
    asked.inputs["IN"] = Tensor("IN", DataType.FP32, (4,), raw=memoryview(wire))
    (output,) = answer(open_model(IDENTITY), asked).outputs
    assert np.shares_memory(output.array(), np.frombuffer(wire, np.uint8))


def test_outputs_nobody_asked_for_are_dropped(open_model):
    opened = open_model(
        executing(
            "def out(name, *values): return pb_utils.Tensor(name, np.array(values))",
            "made = [out('OUT', 1), out('UNDECLARED', 2), out('TEXT', 3), out('OUT', 4)]",
            "return [pb_utils.InferenceResponse(made) for _ in requests]",
        )
    )
    execution = opened.execute([request(), request("TEXT"), request("OUT")])
    assert [[t.name for t in r.outputs] for r in execution.responses] == [
        ["OUT", "TEXT", "OUT"],
        ["TEXT"],
        ["OUT", "OUT"],
    ]


def test_a_missing_output_is_simply_absent(open_model):
    opened = open_model(executing("return [pb_utils.InferenceResponse([])]"))
    assert outputs(answer(opened, request("OUT"))) == {}


@pytest.mark.parametrize("code", list(Code))
def test_an_error_response_fails_only_its_request(open_model, code):
    opened = open_model(
        executing(
            f"error = pb_utils.TritonError('broken é', pb_utils.TritonError.{code.name})",
            "good = [pb_utils.Tensor('OUT', np.array([1]))]",
            "return [pb_utils.InferenceResponse(good, error), pb_utils.InferenceResponse(good)]",
        )
    )
    failed, good = opened.execute([request(id="a"), request(id="b")]).responses
    assert (failed.id, failed.error.code, failed.error.message) == ("a", code, "broken é")
    assert failed.outputs == ()
    assert outputs(good) == {"OUT": [1]}


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            "return []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest "
            "objects. InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n",
        ),
        (
            "return (pb_utils.InferenceResponse([]),)",
            "Expected a list in the execute return, found type '<class 'tuple'>'.",
        ),
        (
            "return pb_utils.InferenceResponse([])",
            "Expected a list in the execute return, found type "
            "'<class 'c_python_backend_utils.InferenceResponse'>'.",
        ),
        ("return {}", "Expected a list in the execute return, found type '<class 'dict'>'."),
        (
            "return (x for x in [])",
            "Expected a list in the execute return, found type '<class 'generator'>'.",
        ),
        (
            "return [5]",
            "Expected an 'InferenceResponse' object in the execute function return list, "
            "found type '<class 'int'>'.",
        ),
        (
            "return [pb_utils.TritonError('x')]",
            "Expected an 'InferenceResponse' object in the execute function return list, "
            "found type '<class 'c_python_backend_utils.TritonError'>'.",
        ),
        ("return None", "The model returned None instead of a response, and has not sent one."),
        (
            "raise ValueError('bad value here')",
            "ValueError: bad value here\n\nAt:\n  {file}(7): execute\n",
        ),
        (
            "raise pb_utils.TritonModelException('x')",
            "TritonModelException: x\n\nAt:\n  {file}(7): execute\n",
        ),
        ("raise SystemExit(3)", "SystemExit: 3\n\nAt:\n  {file}(7): execute\n"),
        (
            "raise KeyboardInterrupt",
            "KeyboardInterrupt: <EMPTY MESSAGE>\n\nAt:\n  {file}(7): execute\n",
        ),
        (
            "pb_utils.Tensor('OUT', np.array([1j]))",
            "TritonModelException: NumPy dtype is not supported.\n\nAt:\n  {file}(7): execute\n",
        ),
    ],
)
def test_what_fails_in_execute_fails_the_whole_batch(tmp_path, open_model, statement, text, caplog):
    expected = FAILED + text.format(file=tmp_path / "m/1/model.py")
    assert execution_error(open_model(executing(statement))) == expected
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [expected]


def test_none_in_the_list_fails_only_its_request(open_model):
    opened = open_model(executing("return [None, pb_utils.InferenceResponse([])]"))
    failed, good = opened.execute([request(), request()]).responses
    assert failed.error.code is Code.INTERNAL
    assert failed.error.message == (
        f"{FAILED}The model returned None instead of a response, and has not sent one."
    )
    assert good.error is None


def test_a_model_without_execute_loads_and_fails_each_request(tmp_path, open_model):
    opened = open_model("class TritonPythonModel: pass")
    assert execution_error(opened) == (
        f"{FAILED}Python model {tmp_path}/m/1/model.py does not implement `execute` method."
    )


def test_an_instance_goes_on_after_a_failure(open_model):
    opened = open_model(
        executing(
            "if requests[0].request_id() == 'bad': raise ValueError",
            "return [pb_utils.InferenceResponse([])]",
        )
    )
    execution_error(opened, request(id="bad"))
    assert answer(opened, request(id="good")).error is None


def test_the_models_exception_is_the_cause(open_model):
    opened = open_model(executing("raise LookupError('here')"))
    with pytest.raises(ServerError) as caught:
        opened.execute([request()])
    assert isinstance(caught.value.__cause__, LookupError)


# -------------------------------------------------------------------------------------- coroutines

ASYNC = """
import asyncio, threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0)
        here = f"{threading.current_thread().name} {id(asyncio.get_running_loop())}"
        text = pb_utils.Tensor("TEXT", np.array([here], dtype=object))
        return [pb_utils.InferenceResponse([text]) for _ in requests]
"""


def test_coroutines_run_on_one_loop_in_a_thread_of_their_own(open_model):
    opened = open_model(ASYNC)
    first = said(opened)
    assert said(opened) == first
    assert "(run_forever)" in first


def test_each_instance_has_a_loop_of_its_own(open_model):
    assert said(open_model(ASYNC)) != said(open_model(ASYNC))


def test_the_loop_ends_before_finalize(open_model):
    opened = open_model(
        ASYNC + "    def finalize(self): print([t.name for t in threading.enumerate()])\n"
    )
    thread, _, _ = said(opened).partition(" ")
    opened.close()
    assert thread not in [t.name for t in threading.enumerate()]


@pytest.mark.parametrize("error", ["ValueError('late')", "SystemExit(3)", "KeyboardInterrupt()"])
def test_an_exception_in_a_coroutine_is_answered_and_the_loop_goes_on(tmp_path, open_model, error):
    opened = open_model(
        executing("return self.later(requests)").replace(
            "    def execute",
            "    async def later(self, requests):\n"
            "        if requests[0].request_id(): return [pb_utils.InferenceResponse([])]\n"
            f"        raise {error}\n"
            "    def execute",
        )
    )
    text = execution_error(opened)
    assert text.startswith(FAILED + error.partition("(")[0])
    assert text.endswith(f"At:\n  {tmp_path}/m/1/model.py(8): later\n")
    assert answer(opened, request(id="good")).error is None


def test_a_model_may_run_a_loop_itself(open_model):
    opened = open_model(
        executing(
            "import asyncio",
            "async def work(): return [pb_utils.InferenceResponse([])]",
            "return asyncio.run(work())",
        )
    )
    assert answer(opened, request()).error is None


# ------------------------------------------------------------------------------------------ close


def test_finalize_runs_once(open_model, capsys):
    opened = open_model("class TritonPythonModel:\n  def finalize(self): print('bye')")
    opened.close()
    opened.close()
    assert capsys.readouterr().out == "bye\n"


@pytest.mark.parametrize("error", ["ValueError('fin')", "SystemExit('fin')"])
def test_an_exception_in_finalize_is_only_logged(tmp_path, open_model, caplog, error):
    caplog.set_level(logging.INFO)
    opened = open_model(f"class TritonPythonModel:\n  def finalize(self): raise {error}")
    opened.close()
    kind = error.partition("(")[0]
    expected = f"{kind}: fin\n\nAt:\n  {tmp_path}/m/1/model.py(2): finalize\n"
    assert (logging.INFO, expected) in [(r.levelno, r.getMessage()) for r in caplog.records]


def test_an_instance_that_never_opened_closes_silently(tmp_path):
    unopened = instance(tmp_path / "m/1/model.py")
    unopened.close()
    assert "closed" in repr(unopened)


def test_prints_pass_through(open_model, capsys):
    open_model("print('héllo')\nclass TritonPythonModel: pass")
    assert capsys.readouterr().out == "héllo\n"
