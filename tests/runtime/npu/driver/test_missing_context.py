"""Threads without a context: a call that forgets it is refused, and the engine never forgets."""

import threading

import numpy as np
import pytest
from runtime.engines.conformance_engine import token_batch

from ge_runtime.engines.artifact import Artifact
from ge_runtime.npu.driver.cann_values import DriverFault, FailureKind
from ge_runtime.npu.driver.pyacl import open_driver
from ge_runtime.npu.engines.ascend_backend import AscendBackend


def in_a_new_thread(call):
    """Return the result of the call in a new thread, or its exception."""
    results = []

    def run():
        try:
            results.append(call())
        except DriverFault as fault:
            results.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("acl.rt.malloc", lambda driver: driver.malloc(64)),
        ("acl.rt.create_stream", lambda driver: driver.create_stream()),
        ("acl.rt.get_mem_info", lambda driver: driver.memory_info()),
    ],
)
def test_a_call_without_a_context_is_refused_by_name_and_takes_nothing(function, call, machine):
    place = AscendBackend(0)
    live = machine.report.live
    fault = in_a_new_thread(lambda: call(open_driver()))
    assert (fault.function, fault.code, fault.kind) == (function, 107002, FailureKind.REFUSED)
    assert f"{function}: 107002 ACL_ERROR_RT_CONTEXT_NULL" in str(fault)
    assert machine.report.live == live
    place.close()


def test_an_engine_has_its_context_in_every_thread(encoder_dir):
    place = AscendBackend(0)
    inputs, expected = token_batch(4, 8)
    artifact = Artifact(encoder_dir / "model.om", "om", "")
    engine = in_a_new_thread(lambda: place.open([artifact], threads=1, outputs=()))
    in_a_new_thread(lambda: engine.bind([], place.memory))
    result = in_a_new_thread(lambda: engine.run(inputs, {"embedding": None}))
    np.testing.assert_allclose(result["embedding"], expected, rtol=1e-5)
    in_a_new_thread(engine.close)
    in_a_new_thread(place.close)
