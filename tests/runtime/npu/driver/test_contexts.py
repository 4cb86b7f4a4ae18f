"""Engines use their own context in every thread, and restore the context of other libraries."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from runtime.engines.conformance_engine import token_batch

from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import EngineFault
from ge_runtime.npu.driver.cann_values import DriverFault, FailureKind
from ge_runtime.npu.driver.installation import import_cann_module
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


class Library:
    """Another library of the process, which uses pyACL in a context of its own.

    Before each of its calls it sets the device ("guard", as torch_npu) or its own context
    ("wrapper", as mmdeploy); or it has set the device once ("streams").
    """

    def __init__(self, kind, device=0):
        self._rt = import_cann_module("acl").rt
        self._kind, self._device = kind, device
        self._set = 0
        self._own = None
        self._set_device()
        if kind == "wrapper":
            self._own = ok(self._rt.create_context(device))
        self._stream, self._event = ok(self._rt.create_stream()), ok(self._rt.create_event())

    def _set_device(self):
        assert self._rt.set_device(self._device) == 0
        self._set += 1

    def _set_context(self):
        if self._kind == "guard":
            self._set_device()
        elif self._own is not None:
            assert self._rt.set_context(self._own) == 0

    def beside(self, operation):
        """Call the operation between two calls of the library."""
        self._set_context()
        before = ok(self._rt.get_context())
        try:
            return operation()
        finally:
            assert self._rt.record_event(self._event, self._stream) == 0  # in the stream's context
            assert self._rt.synchronize_stream(self._stream) == 0
            assert ok(self._rt.get_context()) == before

    def close(self):
        self._set_context()
        assert self._rt.destroy_event(self._event) == self._rt.destroy_stream(self._stream) == 0
        if self._own is not None:
            assert self._rt.destroy_context(self._own) == 0
        for _ in range(self._set):
            assert self._rt.reset_device(self._device) == 0


KINDS = ["guard", "wrapper", "streams"]


def run_beside(library, encoder_dir, fail=None):
    """Open, execute, reload and close an engine, each operation between calls of the library.

    If `fail` is given, it is called before an execution that has to fail.
    """
    place = library.beside(lambda: AscendBackend(0))
    artifact = Artifact(encoder_dir / "model.om", "om", "")
    engine = library.beside(lambda: place.open([artifact], threads=1, outputs=()))
    library.beside(lambda: engine.bind([], place.memory))
    inputs, expected = token_batch(4, 8)
    if fail:
        fail()
        with pytest.raises(EngineFault, match="507011"):
            library.beside(lambda: engine.run(inputs, {"embedding": None}))
    for _ in range(2):
        result = library.beside(lambda: engine.run(inputs, {"embedding": None}))
        np.testing.assert_allclose(result["embedding"], expected, rtol=1e-5)
    library.beside(engine.reload)
    library.beside(engine.close)
    library.beside(place.close)
    library.close()


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails", [False, True])
def test_each_operation_restores_the_context_of_another_library(
    encoder_dir, machine, acl, kind, fails
):
    fail = (lambda: machine.arm("execute@1=507011")) if fails else None
    run_beside(Library(kind), encoder_dir, fail)


@pytest.mark.parametrize("kind", KINDS)
def test_a_library_may_use_another_device(kind, machine, encoder_dir):
    machine.start(devices=2)
    acl = import_cann_module("acl")
    ok((None, acl.init()))
    run_beside(Library(kind, device=1), encoder_dir)
    ok((None, acl.finalize()))


@pytest.mark.parametrize("kind", KINDS)
def test_threads_of_a_library_keep_their_contexts(kind, encoder_dir, acl):
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(lambda: run_beside(Library(kind), encoder_dir)) for _ in range(4)]
        for run in runs:
            run.result()


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
