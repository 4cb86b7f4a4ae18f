"""Tests that an idle instance holds no tensors of its last batch."""

import gc
import weakref

import numpy as np
import pytest
from server.backends.kit import Ticks, executing, instance, model_file, request
from server.support.instances import NotedOutcomes
from server.support.requests import Answers

from reference_server.scheduling.instance_scheduler import InstanceScheduler
from reference_server.scheduling.work_queue import Fifo

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
