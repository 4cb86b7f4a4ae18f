"""Tests of models whose `execute` is a coroutine."""

import threading

import pytest
from server.backends.kit import (
    FAILED,
    answer,
    executing,
    execution_error,
    instance,
    model_file,
    request,
    said,
)

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


def test_the_loop_ends_before_finalize(open_model):
    opened = open_model(
        ASYNC + "    def finalize(self): print([t.name for t in threading.enumerate()])\n"
    )
    thread, _, _ = said(opened).partition(" ")
    opened.close()
    assert thread not in [t.name for t in threading.enumerate()]


@pytest.mark.parametrize("error", ["ValueError('late')", "SystemExit(3)", "KeyboardInterrupt()"])
def test_the_loop_survives_an_exception_in_a_coroutine(tmp_path, open_model, error):
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
    assert f"At:\n  {tmp_path}/m/1/model.py(8): later\n" in text
    assert answer(opened, request(id="good")).error is None


LOOPING = """
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    LOOP = asyncio.get_event_loop()

    class TritonPythonModel:
        def initialize(self, args):
            self.loop = asyncio.get_event_loop()
            self.first = self.loop.run_until_complete(asyncio.sleep(0, "first"))

        def execute(self, requests):
            second = asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, "second"))
            same = LOOP is self.loop is asyncio.get_event_loop()
            text = pb_utils.Tensor("TEXT", np.array([f"{self.first} {second} {same}"], object))
            return [pb_utils.InferenceResponse([text]) for _ in requests]

        def finalize(self):
            assert not asyncio.get_event_loop().is_closed()
"""


def test_the_models_thread_has_an_event_loop_during_import(open_model):
    assert said(open_model(LOOPING)) == "first second True"


def test_the_loop_of_a_models_thread_ends_with_the_instance(tmp_path, caplog):
    opened = instance(model_file(tmp_path, LOOPING))
    opened.open()
    loop = opened._model.loop
    opened.close()
    assert loop.is_closed()
    assert "Error" not in caplog.text


def test_a_loop_that_the_model_runs_on_a_thread_keeps_running(tmp_path):
    source = """
        import asyncio, threading

        class TritonPythonModel:
            def initialize(self, args):
                self.loop = asyncio.get_event_loop()
                self.thread = threading.Thread(target=self.loop.run_forever)
                self.thread.start()
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result()
    """
    opened = instance(model_file(tmp_path, source))
    opened.open()
    model = opened._model
    opened.close()
    assert model.loop.is_running()
    model.loop.call_soon_threadsafe(model.loop.stop)
    model.thread.join()
    model.loop.close()
