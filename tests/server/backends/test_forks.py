"""Tests of models that fork, through multiprocessing or directly, on both hosts."""

import os
import signal

import pytest
from server.backends.kit import instance, model_file, replying, said

from reference_server.core.errors import ServerError

#: What a child says to its parent.
ASKING = (
    "import multiprocessing",
    "fork = multiprocessing.get_context('fork')",
    "def saying(end, say):",
    "    try: end.send(say())",
    "    except BaseException as error: end.send(f'{type(error).__name__}: {error}')",
    "def ask(say):",
    "    end, childs = fork.Pipe()",
    "    child = fork.Process(target=saying, args=(childs, say))",
    "    child.start()",
    "    answer = end.recv()",
    "    child.join()",
    "    return str(answer)",
)


def test_a_pool_lives_from_initialize_to_finalize(open_model):
    source = """
        import multiprocessing
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.pool = multiprocessing.get_context("fork").Pool(1)
                self.first = self.pool.map(abs, [-1])

            def execute(self, requests):
                text = f"{self.first} {self.pool.apply(abs, (-2,))}"
                text = pb_utils.Tensor("TEXT", np.array([text], dtype=object))
                return [pb_utils.InferenceResponse([text]) for _ in requests]

            def finalize(self):
                self.pool.terminate()
                self.pool.join()
    """
    assert said(open_model(source)) == "[1] 2"


def test_terminate_ends_a_child(reply_of):
    lines = (
        "import multiprocessing, time",
        "def reply():",
        "    child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))",
        "    child.start()",
        "    child.terminate()",
        "    child.join()",
        "    return str(child.exitcode)",
    )
    assert reply_of(*lines) == "-15"


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("end", "code"), [("return None", 0), ("sys.exit(7)", 7), ("raise ValueError", 1)]
)
def test_a_child_that_returns_from_execute_ends(reply_of, end, code):
    lines = (
        "import os",
        "def reply():",
        "    child = os.fork()",
        f"    if child == 0: {end}",
        "    return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    )
    assert reply_of(*lines) == str(code)


def test_a_child_that_calls_the_server_gets_an_error(reply_of):
    lines = (
        *ASKING,
        "def call():",
        "    pb_utils.load_model('other')",
        "def reply(): return ask(call)",
    )
    assert reply_of(*lines) == (
        "TritonModelException: A process that a model has forked cannot call the server: only the "
        "model's own process can."
    )


@pytest.mark.brute_force
@pytest.mark.parametrize(
    "call", ["made.increment(1)", "family.Metric({'b': 'c'})", "new()", "drop()"]
)
def test_a_child_that_uses_metrics_gets_an_error(reply_of, call):
    lines = (
        *ASKING,
        "def new(): return pb_utils.MetricFamily('name', 'text', pb_utils.MetricFamily.COUNTER)",
        "def drop():",
        "    global family",
        "    family = None",
        "    made.value()",
        "def reply():",
        "    global family, made",
        "    family = new()",
        "    made = family.Metric({'a': 'b'})",
        f"    return ask(lambda: {call}) + str(made.value())",
    )
    assert reply_of(*lines) == (
        "TritonModelException: A process that a model has forked cannot call the server: only the "
        "model's own process can.0.0"
    )


def test_a_child_cannot_answer_for_its_model(open_model):
    source = replying(*ASKING, "def reply(): return ask(SENDERS[0].send)", "SENDERS = []")
    source = source.replace(
        "def execute(self, requests):",
        "def execute(self, requests):\n"
        "        answer = pb_utils.InferenceResponse([])\n"
        "        sender = requests[0].get_response_sender()\n"
        "        SENDERS[:] = [type('', (), {'send': lambda *_: sender.send(answer, 1)})]",
    )
    assert said(open_model(source)) == (
        "TritonModelException: A process that a model has forked cannot call the server: only the "
        "model's own process can."
    )


STAYS = """
    import os, signal
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            ours, childs = os.pipe()
            self.child = os.fork()
            if self.child == 0:
                os.write(childs, b"!")
                signal.pause()
            os.read(ours, 1)
            {end}

        def execute(self, requests):
            text = pb_utils.Tensor("TEXT", np.array([str(self.child)], dtype=object))
            return [pb_utils.InferenceResponse([text]) for _ in requests]

"""


def test_a_child_that_outlives_its_model_is_logged(tmp_path, caplog):
    opened = instance(model_file(tmp_path, STAYS.format(end="pass")))
    opened.open()
    child = int(said(opened))
    opened.close()
    (line,) = [r.getMessage() for r in caplog.records if "forked" in r.getMessage()]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert line == (
        f"'m_0_0': found forked processes that still run after close: {child}; expected none. "
        "End them in `finalize`."
    )


def test_a_child_of_a_model_that_failed_to_start_is_logged(tmp_path, caplog):
    end = "os.environ['CHILD'] = str(self.child); raise ValueError"
    opened = instance(model_file(tmp_path, STAYS.format(end=end)))
    with pytest.raises(ServerError):
        opened.open()
    child = os.environ.pop("CHILD")
    os.kill(int(child), signal.SIGKILL)
    os.waitpid(int(child), 0)
    assert f"forked processes that still run after close: {child};" in caplog.text
