"""The fake of a GPU is strict where a GPU is silent or late."""

import gc

import numpy as np
import pytest
from runtime.support.gpus import fake_gpu

torch = pytest.importorskip("torch", reason="the fake of a GPU is made of torch")


@pytest.fixture
def gpu(monkeypatch):
    fake_gpu(monkeypatch)
    return torch.get_device_module("npu")


@pytest.fixture
def stream(gpu):
    stream = gpu.Stream(device="npu:0")
    with gpu.stream(stream):
        yield stream


def there(*values):
    return torch.tensor(values, dtype=torch.float32).to("npu:0")


def captured(gpu, stream, execute):
    graph = gpu.CUDAGraph()
    with gpu.graph(graph, pool=gpu.graph_pool_handle(), stream=stream):
        result = execute()
    return graph, result


@pytest.mark.brute_force
def test_queued_copy_to_the_host_is_garbage_until_it_was_waited_for(stream):
    target = torch.from_numpy(np.zeros(2, np.float32))
    target.copy_(there(1, 2), non_blocking=True)
    assert target.tolist() != [1, 2]
    stream.synchronize()
    assert target.tolist() == [1, 2]


@pytest.mark.brute_force
def test_source_of_a_queued_copy_must_not_change(stream):
    source, target = torch.ones(2), there(0, 0)
    target.copy_(source, non_blocking=True)
    source[0] = 7
    with pytest.raises(AssertionError, match="source of a queued copy was changed"):
        stream.synchronize()


def test_replay_computes_again_where_the_capture_wrote(gpu, stream):
    given, target = there(1, 2), there(0, 0)
    graph, _ = captured(gpu, stream, lambda: target.copy_((given + 1) * 2))
    given.copy_(there(10, 20))
    graph.replay()
    assert target.cpu().tolist() == [22, 42]


@pytest.mark.parametrize(
    "execute",
    [
        lambda: there(1, 2).cpu(),
        lambda: torch.ones(2).to("npu:0"),
        lambda: torch.ones((), device="npu:0").item(),
        lambda: torch.nonzero(torch.ones(2, device="npu:0")),
        lambda: torch.get_device_module("npu").current_stream().synchronize(),
    ],
)
def test_what_waits_or_copies_breaks_a_capture_and_its_end(gpu, stream, execute):
    with pytest.raises(torch.AcceleratorError, match="previous error during capture") as raised:
        captured(gpu, stream, execute)
    assert "not permitted when stream is capturing" in str(raised.value.__context__)
    assert captured(gpu, stream, lambda: None)


@pytest.mark.brute_force
def test_broken_capture_spoils_its_pool_and_needs_its_graph(gpu, stream):
    pool, broken = gpu.graph_pool_handle(), gpu.CUDAGraph()
    with (
        pytest.raises(torch.AcceleratorError),
        gpu.graph(broken, pool=pool, stream=stream),
    ):
        stream.synchronize()
    other = gpu.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="already recording to mempool_id"),
        gpu.graph(other, pool=pool, stream=stream),
    ):
        pass
    assert captured(gpu, stream, lambda: None)
    del broken
    gc.collect()
    with pytest.raises(AssertionError, match="a graph is gone whose capture failed"):
        captured(gpu, stream, lambda: None)


def test_streams_of_torch_are_the_same_after_32(gpu):
    streams = [gpu.Stream() for _ in range(33)]
    assert streams[32] is streams[0]
    assert gpu.ExternalStream(0x100, device="npu:0") not in streams


def test_capture_needs_a_stream_of_its_own_and_a_replay_a_capture(gpu):
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        captured(gpu, gpu.current_stream(), lambda: None)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        gpu.CUDAGraph().replay()


def test_index_out_of_range_breaks_the_device_for_good(gpu, stream):
    table, index = there(1, 2), torch.tensor([5]).to("npu:0")
    for _ in range(2):
        with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            table.index_select(0, index)
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        stream.synchronize()


def test_memory_of_a_pool_is_its_graphs_until_the_last_of_them_goes(gpu, stream):
    from torch_npu import STATE

    given = there(*range(1000))
    graph, _ = captured(gpu, stream, lambda: given * 2 + 1)
    held = STATE.reserved[0]
    STATE.empty_cache()
    assert STATE.reserved[0] == held
    del graph, _
    STATE.empty_cache()
    assert STATE.reserved[0] < held
