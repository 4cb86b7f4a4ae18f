"""Tests of `auto_complete_config` of models."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from server.backends.kit import instance, model_file

from reference_server.backends.python_host.model_code import auto_complete
from reference_server.core.errors import Code, ServerError

CONFIG = {"name": "m", "max_batch_size": 0, "input": [], "output": []}

COMPLETING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    {}
    def auto_complete_config({}):
        {}
"""
ADDS = "c.add_input({'name': 'X', 'data_type': 'TYPE_FP32', 'dims': [1]}); return c"
COMPLETED = CONFIG | {"input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}]}


def completed(tmp_path, source: str) -> dict:
    file = model_file(tmp_path, source)
    return json.loads(auto_complete(file, file.parent, "m", dict(CONFIG)))


@pytest.mark.parametrize(
    ("decorator", "parameters"),
    [("@staticmethod", "c"), ("@classmethod", "cls, c"), ("", "c")],
)
def test_all_forms_of_the_function_are_called(tmp_path, decorator, parameters):
    assert completed(tmp_path, COMPLETING.format(decorator, parameters, ADDS)) == COMPLETED


def test_the_function_has_an_event_loop_that_ends_with_it(tmp_path):
    source = """
        import asyncio

        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                asyncio.get_event_loop().run_until_complete(asyncio.sleep(0))
                return config
    """
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(completed, tmp_path, source).result() == CONFIG
        with pytest.raises(RuntimeError, match="no current event loop"):
            thread.submit(asyncio.get_event_loop).result()


@pytest.mark.parametrize("value", ["None", "{}", "c.as_dict()"])
def test_another_return_value_is_refused(tmp_path, value):
    with pytest.raises(ServerError) as caught:
        completed(tmp_path, COMPLETING.format("@staticmethod", "c", f"return {value}"))
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message == (
        "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            COMPLETING.format("@staticmethod", "c", "raise RuntimeError('auto no good')"),
            "RuntimeError: auto no good\n\nAt:\n  {file}(7): auto_complete_config\n",
        ),
        (
            COMPLETING.format("@staticmethod", "c", "raise SystemExit(1)"),
            "SystemExit: 1\n\nAt:\n  {file}(7): auto_complete_config\n",
        ),
        (
            COMPLETING.format("", "self, c", "return c"),
            "TypeError: TritonPythonModel.auto_complete_config() "
            "missing 1 required positional argument: 'c'",
        ),
        (
            COMPLETING.format("@staticmethod", "c", "c.set_max_batch_size(-1)"),
            "ValueError: configuration specified max_batch_size 0, but in auto-complete-config "
            "function for model 'm' specified max_batch_size -1\n\nAt:\n"
            "  {file}(7): auto_complete_config\n",
        ),
        ("x = 1", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        ("1 / 0", "ZeroDivisionError: division by zero\n\nAt:\n  {file}(1): <module>\n"),
    ],
)
def test_exceptions_have_tritons_text(tmp_path, source, text):
    with pytest.raises(ServerError) as caught:
        completed(tmp_path, source)
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message == text.format(file=tmp_path / "m/1/model.py")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("c.set_max_batch_size(numpy.int32(4))", "TypeError: Object of type int32 is not JSON"),
        ("c._model_config['x'] = {1}", "TypeError: Object of type set is not JSON"),
        ("c._model_config['x'] = c._model_config", "ValueError: Circular reference detected"),
    ],
)
def test_values_that_json_cannot_hold_are_refused(tmp_path, line, text):
    source = COMPLETING.format("@staticmethod", "c", f"import numpy; {line}; return c")
    with pytest.raises(ServerError) as caught:
        completed(tmp_path, source)
    message, _, frames = caught.value.message.partition("\n\nAt:\n")
    assert message.startswith(text)
    assert "json/encoder.py" in frames
    assert "model_code.py" not in frames


def test_its_state_does_not_reach_an_instance(tmp_path):
    file = model_file(
        tmp_path,
        """
        import helper
        seen = []

        class TritonPythonModel:
            state = None

            @staticmethod
            def auto_complete_config(config):
                helper.seen.append(1)
                seen.append(1)
                TritonPythonModel.state = 1
                return config

            def initialize(self, args):
                assert (helper.seen, seen, self.state) == ([], [], None)
        """,
        {"1/helper.py": "seen = []"},
    )
    assert json.loads(auto_complete(file, file.parent, "m", dict(CONFIG))) == CONFIG
    opened = instance(file)
    opened.open()
    opened.close()


def test_calls_to_the_server_are_refused(tmp_path):
    source = COMPLETING.format("@staticmethod", "c", "pb_utils.is_model_ready('m')")
    with pytest.raises(ServerError, match=r"Failed to check model readiness: .* Server not ready"):
        completed(tmp_path, source)
