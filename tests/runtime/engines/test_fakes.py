"""The fakes refuse what the modules they stand for would refuse, or would suffer from."""

import gc
import itertools

import numpy as np
import pytest
from runtime.support.ascend import SITE, Machine
from runtime.support.fakes import FAKES, forget
from runtime.support.graphs import copy_of, write

pytestmark = pytest.mark.brute_force


class Ge:
    """The fake's modules, and a session on a stream of the default context."""

    def __init__(self):
        import acl
        import ge.allocator
        import ge.ge_global
        import ge.graph
        import ge.graph.types
        import ge.session

        self.acl, self.types = acl, ge.graph.types
        self.allocator, self.graph, self.session = ge.allocator, ge.graph, ge.session
        self.api = ge.ge_global.GeApi()
        self.misuse = ge.Misuse
        acl.init()
        acl.rt.set_device(0)
        self.stream, _ = acl.rt.create_stream()

    def tensor(self, shape=(2, 3), **more):
        return self.graph.Tensor([1.0] * int(np.prod(shape)), shape=list(shape), **more)

    def begun(self, path):
        """A session with the graph in `path`, and an allocator for the stream."""
        self.api.ge_initialize({"ge.graphRunMode": "0"})
        session = self.session.Session()
        graph = self.graph.Graph("copy")
        graph.load_from_air(str(path))
        session.add_graph(0, graph)
        session.register_external_allocator(self.stream, self.allocating(0))
        return session

    def allocating(self, skew):
        """An allocator that never reuses memory, with blocks `skew` bytes off their alignment."""
        self.memory, _ = self.acl.rt.malloc(1 << 16, 2)
        places = itertools.count(self.memory + skew, 8192)
        block = self.allocator.MemBlock

        class Plain(self.allocator.Allocator):
            def malloc(self, size):
                return block(next(places), size)

            def free(self, block):
                pass

        self.kept = Plain()
        return self.kept


@pytest.fixture
def ge(little_garbage, monkeypatch):
    monkeypatch.syspath_prepend(SITE)
    monkeypatch.syspath_prepend(FAKES)
    forget("ge")
    machine = Machine()
    yield Ge()
    gc.collect()  # what errors referred to goes while its memory is there
    forget("ge")
    machine.start()


@pytest.fixture
def air(ge, tmp_path):
    path = tmp_path / "model.air"
    ge.graph.air_of(write(copy_of(np.float32), "onnxruntime", tmp_path), path)
    return path


def test_ge_tensors_are_made_of_flat_lists_only(ge):
    for data in (np.ones(3), (1.0, 2.0), 1.0):
        with pytest.raises(TypeError, match="data should be List"):
            ge.graph.Tensor(data)
    with pytest.raises(TypeError, match="Shape must be a list of integers"):
        ge.graph.Tensor([1.0], shape=(1,))
    types = ge.types.DataType
    with pytest.raises(RuntimeError, match="DT_DOUBLE is not supported"):
        ge.graph.Tensor([1.0], data_type=types.DT_DOUBLE, shape=[1])
    with pytest.raises(RuntimeError, match="Failed to create Tensor with data type"):
        ge.graph.Tensor([1.0], data_type=types.DT_BF16, shape=[1])
    with pytest.raises(ge.misuse, match="found bools for"):
        ge.graph.Tensor([True], data_type=types.DT_INT8, shape=[1])


def test_ge_tensors_are_moved_in_place_and_only_where_they_are_not(ge):
    tensor = ge.tensor()
    with pytest.raises(ValueError, match=r"to_host\(\) only supports device tensors"):
        tensor.to_host()
    assert tensor.to_device() is tensor
    with pytest.raises(RuntimeError, match="Failed to get Tensor data"):
        tensor.get_data()
    assert tensor.to_host().get_data() == [[1.0] * 3] * 2


def test_ge_formats_floats_with_six_decimals_and_integers_exactly(ge):
    types = ge.types.DataType
    numbers = [0.1, 1.2345678e-7, 3.0e9]
    tensor = ge.graph.Tensor(numbers, shape=[3])
    assert tensor.get_data() == [0.1, 0.0, 3.0e9]
    with pytest.raises(TypeError, match="Data_type must be a DataType"):
        tensor.set_data_type(3)
    with pytest.raises(ge.misuse, match="expected a type of that size"):
        tensor.set_data_type(types.DT_INT64)
    bits = tensor.set_data_type(types.DT_INT32).get_data()
    assert np.array(bits, np.int32).view(np.float32).tolist() == np.float32(numbers).tolist()
    truth = ge.graph.Tensor([True, False], data_type=types.DT_BOOL, shape=[2])
    with pytest.raises(ValueError, match="Invalid item: 'true'"):
        truth.get_data()
    assert truth.set_data_type(types.DT_UINT8).get_data() == [1, 0]
    with pytest.raises(ValueError, match=r"Input must start with '\['"):
        ge.graph.Tensor([], data_type=types.DT_BOOL, shape=[0]).get_data()
    with pytest.raises(ge.misuse, match="found no dims"):
        ge.graph.Tensor([1.0], shape=[]).get_data()


def test_ge_begins_once_and_ends_without_sessions(ge, air):
    with pytest.raises(TypeError, match="must not be empty"):
        ge.api.ge_initialize({})
    with pytest.raises(AttributeError, match="'int' object has no attribute 'encode'"):
        ge.api.ge_initialize({"ge.graphRunMode": 0})
    session = ge.begun(air)
    with pytest.raises(ge.misuse, match="found a second"):
        ge.api.ge_initialize({"ge.graphRunMode": "0"})
    with pytest.raises(ge.misuse, match=r"found 1 session\(s\), expected none"):
        ge.api.ge_finalize()
    with pytest.raises(RuntimeError, match="Failed to add graph, graph_id is 0"):
        session.add_graph(0, ge.graph.Graph())


def test_ge_runs_on_streams_of_the_default_context_with_inputs_on_the_device(ge, air):
    session = ge.begun(air)
    with pytest.raises(ge.misuse, match="found inputs on the host"):
        session.run_graph_with_stream_async(0, ge.stream, [ge.tensor()])
    ge.acl.rt.create_context(0)
    own, _ = ge.acl.rt.create_stream()
    with pytest.raises(ge.misuse, match="found a stream of a context of its own"):
        session.run_graph_with_stream_async(0, own, [ge.tensor().to_device()])


def test_ge_needs_an_allocator_that_aligns_while_the_stream_lives(ge, air):
    session = ge.begun(air)
    with pytest.raises(TypeError, match="allocator must be an Allocator instance"):
        session.register_external_allocator(ge.stream, object())
    session.register_external_allocator(ge.stream, ge.allocating(8))
    with pytest.raises(ge.misuse, match="expected a multiple of 64"):
        session.run_graph_with_stream_async(0, ge.stream, [ge.tensor().to_device()])
    del ge.kept
    with pytest.raises(ge.misuse, match="found the allocator gone, expected it kept"):
        session.run_graph_with_stream_async(0, ge.stream, [ge.tensor().to_device()])
    session.unregister_external_allocator(ge.stream)
    with pytest.raises(ge.misuse, match="found no allocator"):
        session.run_graph_with_stream_async(0, ge.stream, [ge.tensor().to_device()])


def test_ge_results_are_there_once_the_stream_was_waited_for(ge, air):
    from ascend_simulator import SimulatorViolation

    session = ge.begun(air)
    given = ge.tensor().to_device()
    (result,) = session.run_graph_with_stream_async(0, ge.stream, [given])
    with pytest.raises(SimulatorViolation, match=r"memory\.busy"):
        result.to_host()
    with pytest.raises(ge.misuse, match="found memory of it in use"):
        session.unregister_external_allocator(ge.stream)
    ge.acl.rt.synchronize_stream(ge.stream)
    assert result.to_host().get_data() == [[1.0] * 3] * 2
    with pytest.raises(ge.misuse, match="found memory of it in use"):
        session.unregister_external_allocator(ge.stream)
    session.remove_graph(0)
    session.unregister_external_allocator(ge.stream)


def test_ge_needs_its_memory_until_it_gives_it_back_and_no_allocator_in_the_end(ge, air):
    from ascend_simulator import SimulatorViolation

    session = ge.begun(air)
    given = ge.tensor().to_device()
    results = session.run_graph_with_stream_async(0, ge.stream, [given])
    ge.acl.rt.synchronize_stream(ge.stream)
    results.clear()
    ge.acl.rt.free(ge.memory)
    with pytest.raises(SimulatorViolation, match=r"memory\.use-after-free"):
        session.remove_graph(0)
    del session
    with pytest.raises(ge.misuse, match="ge_finalize: found an allocator registered"):
        ge.api.ge_finalize()
