"""Engines use their own context in every thread, and restore the context of other libraries."""

import threading

import numpy as np
import pytest
from runtime.engines.conformance_engine import token_batch

from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import EngineFault
from ge_runtime.npu.driver.cann_values import DriverFault, FailureKind
from ge_runtime.npu.driver.installation import import_cann_module
from ge_runtime.npu.driver.pyacl import open_driver
from ge_runtime.npu.engines.ascend_backend import AscendBackend
from tools import ascend_trials


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


class Library:
    """Another library of the process, which sets the thread's context before each of its calls."""

    def __init__(self, *, has_own_context):
        """With an own context as in mmdeploy, or else in the default one as torch_npu's guards."""
        self._rt = import_cann_module("acl").rt
        self._set = 0
        self._own = None
        self.set_context()
        if has_own_context:
            self._own = ok(self._rt.create_context(0))
        self._stream, self._event = ok(self._rt.create_stream()), ok(self._rt.create_event())

    def set_context(self):
        if self._own is None:
            assert self._rt.set_device(0) == 0
            self._set += 1
        else:
            assert self._rt.set_context(self._own) == 0

    def beside(self, operation):
        """Call the operation between two calls of the library."""
        self.set_context()
        before = ok(self._rt.get_context())
        try:
            return operation()
        finally:
            assert ok(self._rt.get_context()) == before
            assert self._rt.record_event(self._event, self._stream) == 0  # in the stream's context
            assert self._rt.synchronize_stream(self._stream) == 0

    def close(self):
        self.set_context()
        assert self._rt.destroy_event(self._event) == self._rt.destroy_stream(self._stream) == 0
        if self._own is not None:
            assert self._rt.destroy_context(self._own) == 0
        for _ in range(self._set):
            assert self._rt.reset_device(0) == 0


def ok(answer):
    value, code = answer
    assert code == 0
    return value


@pytest.fixture
def acl(machine):
    """The initialized module `acl`."""
    acl = import_cann_module("acl")
    assert acl.init() == 0
    yield acl
    assert acl.finalize() == 0


@pytest.mark.parametrize("has_own_context", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_each_operation_restores_the_context_of_another_library(
    encoder_dir, machine, acl, has_own_context, fails
):
    library = Library(has_own_context=has_own_context)
    place = library.beside(lambda: AscendBackend(0))
    artifact = Artifact(encoder_dir / "model.om", "om", "")
    engine = library.beside(lambda: place.open([artifact], threads=1, outputs=()))
    library.beside(lambda: engine.bind([], place.memory))
    inputs, expected = token_batch(4, 8)
    if fails:
        machine.arm("execute@1=507011")
        with pytest.raises(EngineFault, match="507011"):
            library.beside(lambda: engine.run(inputs, {"embedding": None}))
    for _ in range(2):
        result = library.beside(lambda: engine.run(inputs, {"embedding": None}))
        np.testing.assert_allclose(result["embedding"], expected, rtol=1e-5)
    library.beside(engine.reload)
    library.beside(engine.close)
    library.beside(place.close)
    library.close()


@pytest.mark.parametrize("condition", ["one thread", "four threads", "two devices"])
@pytest.mark.parametrize("kind", ascend_trials.LIBRARIES)
def test_an_engine_and_a_library_work_in_one_process(kind, condition, machine, tmp_path):
    machine.start(devices=2)
    engine, library, operations = ascend_trials.cell(
        kind, condition, ascend_trials.compiled(tmp_path)
    )
    assert engine == library == operations > 0


def test_a_thread_without_a_context_has_the_default_context_afterwards(encoder_dir, acl):
    place = AscendBackend(0)
    default = ok(acl.rt.get_context())
    artifact = Artifact(encoder_dir / "model.om", "om", "")

    def execute():
        engine = place.open([artifact], threads=1, outputs=())
        engine.bind([], place.memory)
        engine.run(token_batch(4, 8)[0], {"embedding": None})
        engine.close()
        return ok(acl.rt.get_context())

    assert in_a_new_thread(execute) == default
    place.close()
