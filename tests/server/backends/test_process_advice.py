"""Tests of the hint for inline models that need a process of their own."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest
from server.backends import kit

from reference_server.backends.hosts import PythonHosts, process_advice
from reference_server.backends.python_host.api.server_access import NO_CALLS
from reference_server.core.errors import ServerError
from reference_server.core.health import Health
from reference_server.core.ports import SystemClock
from reference_server.observability.metric_registry import MetricRegistry

ADVICE = (
    "\nThe model runs on a thread of the server's process, beside other models; this operation "
    "needs a process of its own, as in Triton. Set in its config.pbtxt: "
    'parameters { key: "EXECUTION_HOST" value: { string_value: "process" } }'
)
HANDLING = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)"
MODEL = """
    import signal
    {top}

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            {complete}
            return config

        def initialize(self, args):
            {initialize}

        {kind} execute(self, requests):
            {execute}
            return []
"""
PARTS = {"top": "", "complete": "", "initialize": "pass", "execute": "", "kind": "def"}
HOSTS = PythonHosts({}, SystemClock(), MetricRegistry())


def played(file, host=""):
    """Return the reply of a model that runs on another thread than the main thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(play, file, host).result()


def play(file, host):
    try:
        HOSTS.auto_complete(file, file.parent, "m", {}, host)
        opened = HOSTS.instance(kit.spec(file), NO_CALLS, host, Health())
        opened.open()
    except ServerError as error:
        return error.message
    try:
        opened.execute([kit.request()])
    except ServerError as error:
        return error.message
    finally:
        opened.close()
    return "ran"


@pytest.mark.parametrize(
    "parts",
    [
        {"top": HANDLING},
        {"complete": HANDLING},
        {"initialize": HANDLING},
        {"execute": HANDLING},
        {"execute": HANDLING, "kind": "async def"},
        {"initialize": f"raise RuntimeError('why') from self.cause()\n        def cause(self):\n"
         f"            try: {HANDLING}\n            except ValueError as error: return error"},
    ],
    ids=lambda parts: "-".join(parts),
)  # fmt: skip
def test_a_model_that_needs_the_main_thread_gets_the_hint(tmp_path, parts):
    said = played(kit.model_file(tmp_path, MODEL.format(**PARTS | parts)))
    assert said.endswith(ADVICE)
    assert said.count("EXECUTION_HOST") == 1


def test_other_failures_get_no_hint(tmp_path):
    file = kit.model_file(
        tmp_path, MODEL.format(**PARTS | {"initialize": "raise ValueError('why')"})
    )
    assert "EXECUTION_HOST" not in played(file)


def test_the_text_of_multiprocessing_is_recognised():
    context = multiprocessing.context.DefaultContext(multiprocessing.get_context("spawn"))
    context.set_start_method("spawn")
    with pytest.raises(RuntimeError) as caught:
        context.set_start_method("spawn")
    assert process_advice(caught.value) == ADVICE


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError


def test_exceptions_without_text_or_in_a_cycle_get_no_hint():
    first, second = Unspeakable(), ValueError("main")
    first.__cause__, second.__cause__ = second, first
    assert process_advice(first) == ""
    assert process_advice(None) == ""
