"""Requests and responses on their way from one process to the other."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nst
from server.backends.process.connections import connected
from server.support.requests import NullSink

from reference_server.backends.process_host import messages
from reference_server.backends.process_host.connection import Connection
from reference_server.core import dtypes
from reference_server.core.dtypes import DataType
from reference_server.core.errors import ServerError, not_found
from reference_server.core.request import Execution, InferRequest, InferResponse, SequenceFlag
from reference_server.core.tensor import Tensor

Ends = list[Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with connected(limit=1 << 24) as ends:
        yield ends


def floats(name: str = "X", count: int = 4) -> Tensor:
    return Tensor(name, DataType.FP32, (count,), array=np.arange(count, dtype=np.float32))


def test_every_field_of_a_request_travels_or_has_a_reason_not_to():
    fields = [field.name for field in dataclasses.fields(InferRequest)]
    named = [*messages.PLAIN, *messages.CONVERTED, *messages.LEFT_OUT]
    assert sorted(named) == sorted(fields)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    array=nst.arrays(
        st.sampled_from([d.numpy for d in DataType if not d.is_bytes and d is not DataType.BF16]),
        nst.array_shapes(min_dims=0, min_side=0, max_side=4),
    )
)
def test_numbers_arrive_bit_by_bit(ends: Ends, array):
    here = Tensor("né", dtypes.of_array(array), array.shape, array=array)
    (there,) = messages.unpack_tensors(ends[1], messages.pack_tensors(ends[0], [here]))
    assert (there.name, there.datatype, there.shape) == ("né", here.datatype, array.shape)
    assert there.array().tobytes() == array.tobytes()
    assert there.array().flags.writeable


def test_strings_arrive(ends: Ends):
    strings = np.array([[b"", b"a\xff"], [b"x" * 70_000, "é".encode()]], object)
    here = Tensor("S", DataType.BYTES, (2, 2), array=strings)
    (there,) = messages.unpack_tensors(ends[1], messages.pack_tensors(ends[0], [here]))
    assert there.array().tolist() == strings.tolist()


def test_a_request_arrives(ends: Ends):
    request = InferRequest(
        "m",
        {"B": floats("B"), "A": floats("A", 0)},
        NullSink(),
        model_version=3,
        id="é\ud800",
        requested_outputs=("Y", "X"),
        parameters={"i": 2**64 - 1, "b": True, "f": 1.0, "s": "\n"},
        correlation_id=2**64 - 1,
        flags=SequenceFlag.START | SequenceFlag.END,
        priority=7,
        timeout_us=5,
        batch_size=2,
        received_ns=1,
        queued_ns=2,
    )
    (packed,) = messages.pack_requests(ends[0], [request])
    sink = NullSink()
    there = messages.unpack_request(ends[1], packed, sink)
    assert list(there.inputs) == ["B", "A"]
    assert there.inputs["B"].array().tolist() == [0, 1, 2, 3]
    assert there.sink is sink
    assert [type(value) for value in there.parameters.values()] == [int, bool, float, str]
    same = [*messages.PLAIN, "parameters", "flags"]
    assert [getattr(there, name) for name in same] == [getattr(request, name) for name in same]
    assert not there.cancellation.is_cancelled


def test_a_cancelled_request_arrives_cancelled(ends: Ends):
    request = InferRequest("m", {}, NullSink())
    request.cancellation.cancel()
    (packed,) = messages.pack_requests(ends[0], [request])
    assert messages.unpack_request(ends[1], packed, NullSink()).cancellation.is_cancelled


def test_an_execution_arrives(ends: Ends):
    full = InferResponse("m", 1, "7", [floats()], [("k", 1), ("k", "v")], final=False)
    failed = InferResponse("m", 1, "8", error=not_found("gone"))
    empty = InferResponse("m", 1, "9", empty=True)
    here = Execution([full, None, failed, empty], 5, 6, frozenset({1}), failed=True)
    there = messages.unpack_execution(ends[1], messages.pack_execution(ends[0], here))
    assert (there.input_end_ns, there.output_start_ns) == (5, 6)
    assert (there.rescheduled, there.failed) == (frozenset({1}), True)
    first, second, third, fourth = there.responses
    assert second is None
    assert first.outputs[0].array().tolist() == [0, 1, 2, 3]
    assert first.parameters == [("k", 1), ("k", "v")]
    assert not first.final
    assert third.error.described() == "Not found: gone"
    assert (fourth.empty, fourth.final) == (True, True)


def test_a_batch_that_finds_no_room_leaves_nothing_behind():
    requests = [InferRequest("m", {"X": floats(count=n)}, NullSink()) for n in (10, 1 << 20)]
    with connected(limit=1 << 20) as (one, _):
        with pytest.raises(ServerError, match="no room"):
            messages.pack_requests(one, requests)
        assert one.put(memoryview(bytes(1 << 20))) == (0, 1 << 20)


def test_a_response_that_finds_no_room_becomes_an_error():
    response = InferResponse("m", 1, "7", [floats(), floats(count=1 << 20)])
    with connected(limit=1 << 20) as (one, other):
        there = messages.unpack_response(other, messages.pack_response(one, response))
        assert there.outputs == ()
        assert "no room for a tensor of 4194304 bytes" in there.error.message
        assert one.put(memoryview(bytes(1 << 20))) == (0, 1 << 20)
