"""An ensemble whose steps are answered by the test."""

from __future__ import annotations

import numpy as np
from server.support.clock import ManualClock
from server.support.configs import model_config
from server.support.requests import Answers, a_request, array_tensor

from reference_server.core.request import InferResponse, Timing
from reference_server.scheduling.ensemble import EnsembleScheduler

STEP_MODEL = 'input { name: "X" dims: [-1] data_type: TYPE_FP32 }'
DECOUPLED = " model_transaction_policy { decoupled: true }"


class NotedCompositions:
    """A recorder that keeps the timings of what was composed, the ids of what failed, and why."""

    TIMING = Timing(9, 9, 9)

    def __init__(self):
        self.composed_of = []
        self.longer = []
        self.failed = []
        self.reasons = []

    def composed(self, request, began_ns, steps):
        self.composed_of.append((began_ns, list(steps)))
        return self.TIMING

    def took_longer(self, request, step):
        self.longer.append(step)

    def refused(self, request, reason):
        self.failed.append(request.id)
        self.reasons.append(reason)


class Bench:
    """An ensemble whose steps the test answers."""

    def __init__(self, text, *, refuses=(), decoupled=(), recorder=None):
        self.outcomes = recorder or NotedCompositions()
        self.clock = ManualClock(now_ns=5)
        self.steps = []
        self._refuses = dict(refuses)
        config = model_config(text, "e")
        models = [
            model_config(
                STEP_MODEL + (DECOUPLED if step.model_name in decoupled else ""), step.model_name
            )
            for step in config.ensemble
        ]
        self.scheduler = EnsembleScheduler(
            config, 1, models, self._dispatch, self.outcomes, self.clock
        )

    def _dispatch(self, request):
        if request.model_name in self._refuses:
            raise self._refuses[request.model_name]
        self.steps.append(request)

    def submit(self, **fields):
        """Submit a request over one input; returns where its answer will come."""
        answers = Answers()
        self.scheduler.submit(
            a_request(array_tensor("I", [1, 2], np.float32), **{"sink": answers, **fields})
        )
        return answers

    def running(self):
        """The models of the steps that were sent and not answered, in order."""
        return [request.model_name for request in self.steps]

    def answer(self, model, *outputs, **fields):
        """Answer the running step of `model` with outputs by name and value."""
        (request,) = [request for request in self.steps if request.model_name == model]
        self.steps.remove(request)
        tensors = [array_tensor(name, [value], np.float32) for name, value in outputs]
        request.sink.send(InferResponse(model, 1, request.id, tensors, **fields))
        return request


def values(response):
    assert response.error is None
    return {tensor.name: tensor.array().tolist() for tensor in response.outputs}


def failure(answers):
    error = answers.wait().error
    assert answers.is_empty
    return error.code, error.message
