"""Draining of models: in parallel, except that an ensemble is finalized before its models."""

import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from server.support.clock import ManualClock
from server.support.configs import ensemble, step
from server.support.model_folders import OPTIONS, VECTOR, write_ensemble, write_model
from server.support.requests import PATIENCE_S, Answers, a_request, array_tensor

from reference_server.observability.metric_registry import MetricRegistry
from reference_server.repository.loader import ModelLoader
from reference_server.repository.manager import Repository

CHAIN = ensemble(step("part", {"X": "I"}, {"Y": "O"}))

#: Blocks in `execute` and in `finalize` until the test releases it.
HELD = """
    import sys
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.holds = sys.modules["holds"]
            self.name = args["model_name"]

        def execute(self, requests):
            self.holds.wait(self.name, "execute")
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor(
                    "Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy()
                )])
                for r in requests
            ]

        def finalize(self):
            self.holds.wait(self.name, "finalize")
"""


class Holds:
    """Events by model name and function: it has started; it may continue."""

    def __init__(self):
        self._events = {}

    def of(self, *what):
        return self._events.setdefault(what, (threading.Event(), threading.Event()))

    def started(self, *what):
        assert self.of(*what)[0].wait(PATIENCE_S)

    def has_started(self, *what):
        return self.of(*what)[0].is_set()

    def release(self, *what):
        self.of(*what)[1].set()

    def wait(self, *what):
        started, released = self.of(*what)
        started.set()
        assert released.wait(PATIENCE_S)


@pytest.fixture
def holds(monkeypatch):
    """The events, in the module that `HELD` imports."""
    module = Holds()
    monkeypatch.setitem(sys.modules, "holds", module)
    return module


@pytest.fixture
def repository(models):
    """A repository without loaded models."""
    loader = ModelLoader(
        ManualClock(), MetricRegistry(), replace(OPTIONS, auto_complete_config=False)
    )
    return Repository([models], loader, load_threads=2)


def in_background(call):
    """Start a thread that makes a call; the caller joins it."""
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_hanging_model_does_not_delay_others(models, repository, holds):
    names = ["a", "b", "c"]
    for name in names:
        write_model(models, name, VECTOR, HELD)
        repository.load(name)
    assert repository.live == 3
    closing = in_background(repository.close)
    for name in names:
        holds.started(name, "finalize")
    assert repository.live == 3
    for name in names:
        holds.release(name, "finalize")
    closing.join()
    assert repository.live == 0


def test_steps_are_finalized_after_the_ensemble(models, repository, holds):
    write_model(models, "part", VECTOR, HELD)
    write_model(models, "other", VECTOR, HELD)
    write_ensemble(models, "whole", CHAIN)
    for name in ("other", "whole"):
        repository.load(name)
        holds.release(name, "finalize")
    holds.release("part", "finalize")
    answers = Answers()
    request = a_request(array_tensor("I", [1], np.float32), model_name="whole", sink=answers)
    repository.find("whole").infer(request)
    holds.started("part", "execute")
    repository.unload("whole")
    repository.unload("part")
    repository.unload("other")
    holds.started("other", "finalize")
    assert not holds.has_started("part", "finalize")
    assert repository.live >= 2
    holds.release("part", "execute")
    assert answers.wait().error is None
    holds.started("part", "finalize")
    repository.close()
    assert repository.live == 0


def test_reloaded_step_does_not_wait_for_the_old_ensemble(models, repository, holds):
    write_model(models, "part", VECTOR, HELD)
    write_ensemble(models, "whole", CHAIN)
    repository.load("whole")
    answers = Answers()
    request = a_request(array_tensor("I", [1], np.float32), model_name="whole", sink=answers)
    repository.find("whole").infer(request)
    holds.started("part", "execute")
    repository.unload("whole")
    repository.unload("part")
    repository.load("part")  # a new load, which the ensemble does not use
    repository.unload("part")
    holds.started("part", "finalize")  # the old load still executes
    assert answers.is_empty
    holds.release("part", "finalize")
    holds.release("part", "execute")
    assert answers.wait().error is None
    repository.close()
