"""Messages between the server and a model's process, invalid ones included."""

import dataclasses
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nst
from server.backends import kit
from server.backends.process.connections import connected
from server.backends.process.mortal import HERE, MORTAL, UNHEALTHY, Start, asks, said
from server.support.requests import NullSink

from reference_server.backends.process_host import messages, process
from reference_server.backends.process_host.connection import Connection
from reference_server.backends.process_host.messages import Parcel, ReceivedParcel
from reference_server.core.errors import ServerError, not_found
from reference_server.core.request import Execution, InferRequest, InferResponse, SequenceFlag
from reference_server.core.tensor import DataType, Tensor, datatype_of

Ends = list[Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with connected(limit=1 << 24) as ends:
        yield ends


def arrived(ends: Ends, parcel: Parcel) -> ReceivedParcel:
    """Return the received parcel."""
    return ReceivedParcel(ends[1], bytearray(parcel.data))


def carried(ends: Ends, request: InferRequest, sink: NullSink) -> InferRequest:
    """Return a request as the other side receives it."""
    parcel = Parcel(ends[0])
    packed = messages.pack_request(parcel, request)
    return messages.unpack_request(arrived(ends, parcel), packed, sink)


def floats(name: str = "X", count: int = 4) -> Tensor:
    return Tensor(name, DataType.FP32, (count,), array=np.arange(count, dtype=np.float32))


def test_every_field_of_a_request_is_in_one_list():
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
def test_numbers_arrive_unchanged(ends: Ends, array):
    here = Tensor("né", datatype_of(array), array.shape, array=array)
    parcel = Parcel(ends[0])
    packed = messages.pack_tensors(parcel, [here])
    (there,) = messages.unpack_tensors(arrived(ends, parcel), packed)
    assert (there.name, there.datatype, there.shape) == ("né", here.datatype, array.shape)
    assert there.array().tobytes() == array.tobytes()
    assert there.array().flags.writeable


def test_strings_arrive(ends: Ends):
    strings = np.array([[b"", b"a\xff"], [b"x" * 70_000, "é".encode()]], object)
    here = Tensor("S", DataType.BYTES, (2, 2), array=strings)
    parcel = Parcel(ends[0])
    packed = messages.pack_tensors(parcel, [here])
    (there,) = messages.unpack_tensors(arrived(ends, parcel), packed)
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
    sink = NullSink()
    there = carried(ends, request, sink)
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
    assert carried(ends, request, NullSink()).cancellation.is_cancelled


def test_an_execution_arrives(ends: Ends):
    full = InferResponse("m", 1, "7", [floats()], [("k", 1), ("k", "v")], final=False)
    failed = InferResponse("m", 1, "8", error=not_found("gone"))
    empty = InferResponse("m", 1, "9", empty=True)
    here = Execution([full, None, failed, empty], 5, 6, frozenset({1}), failed=True)
    parcel = Parcel(ends[0])
    packed = messages.pack_execution(parcel, here)
    there = messages.unpack_execution(arrived(ends, parcel), packed)
    assert (there.input_end_ns, there.output_start_ns) == (5, 6)
    assert (there.rescheduled, there.failed) == (frozenset({1}), True)
    first, second, third, fourth = there.responses
    assert second is None
    assert first.outputs[0].array().tolist() == [0, 1, 2, 3]
    assert first.parameters == [("k", 1), ("k", "v")]
    assert not first.final
    assert third.error.described() == "Not found: gone"
    assert (fourth.empty, fourth.final) == (True, True)


def test_blocks_of_an_unsent_message_are_freed():
    requests = [InferRequest("m", {"X": floats(count=n)}, NullSink()) for n in (2000, 1 << 20)]
    with connected(limit=1 << 20) as (one, _):
        parcel = Parcel(one)
        messages.pack_request(parcel, requests[0])
        with pytest.raises(ServerError, match="no room"):
            messages.pack_request(parcel, requests[1])
        parcel.free_unsent()
        assert one.put(memoryview(bytes(1 << 20))) == 0


def test_a_response_without_room_becomes_an_error():
    response = InferResponse("m", 1, "7", [floats(count=2000), floats(count=1 << 20)])
    with connected(limit=1 << 20) as ends:
        parcel = Parcel(ends[0])
        packed = messages.pack_response(parcel, response)
        there = messages.unpack_response(arrived(ends, parcel), packed)
        assert there.outputs == ()
        assert "tensor of 4194304 bytes: found no room" in there.error.message
        assert ends[0].put(memoryview(bytes(1 << 20))) == 0


@pytest.mark.parametrize("place", [(-1, 4), (8, 4), (0, -1), (4, 8), (1 << 40, 4)])
def test_a_tensor_outside_of_its_parcel_is_refused(ends: Ends, place):
    with pytest.raises(ValueError, match=r"found a tensor at|found shape"):
        messages.unpack_tensors(
            ReceivedParcel(ends[1], bytearray(8)), [["T", "BYTES", [1], *place]]
        )


def framed(text: str, data: int) -> str:
    """Return a message with `data` bytes of tensors; -1 means no parcel."""
    return (struct.pack("<Ii", len(text), data) + text.encode() + bytes(max(0, data))).hex()


def event(text: str) -> str:
    return f"says {framed(text, -1)}"


def answer(text: str, data: int = 0) -> str:
    """Return a job's result, with no earlier events and no freed blocks."""
    return f"answers {framed(f'[0,[],{text[1:]}', data)}"


def tensor(kind: str, shape: list[int], offset: int, size: int, name: str = '"m"') -> str:
    """Return a response to one request with a tensor of this type, shape, offset and size."""
    packed = f'["T","{kind}",{shape},{offset},{size}]'
    return answer(f'["executed",[[[{name},1,"",[{packed}],[],null,true,false]],0,0,[],false]]', 16)


BLOCK = '["T","UINT8",[8192],0,8192]'
JUNK = {
    "endless": f"says {'ff' * 8}",
    "an endless answer": f"answers {'ff' * 8}",
    "no JSON": event("no JSON"),
    "no kind": event('["unheard of"]'),
    "no block": event('["free",[12345]]'),
    "no response": event('["response",0,[]]'),
    "no log line": event('["log",7]'),
    "no answer": answer('["executed",7]'),
    "an answer without a parcel": answer('["executed",[[],0,0,[],false]]', -1),
    "an answer's block": "answers " + framed('[0,[12345],"done",7]', -1),
    "an answer of another kind": answer('["unheard of"]'),
    "no count": "answers " + framed('["many",[],"done",7]', -1),
    "no times": answer('["executed",[[null],"soon",0,[],false]]'),
    "no name": tensor("BYTES", [1], 0, 16, name="7"),
    "no code": answer('["failed","NO_CODE",""]', -1),
    "no outcome": answer('["done"]', -1),
    "answer to another job": answer('["done",7]', -1),
    "too few answers": answer('["executed",[[],0,0,[],false]]'),
    "too many given back": answer('["executed",[[null],0,0,[1],false]]'),
    "no size": tensor("FP32", [4], 0, -1),
    "another size": tensor("FP32", [1 << 40], 0, 16),
    "no shape": tensor("BYTES", [-1], 0, 16),
    "before the message": tensor("BYTES", [1], -8, 16),
    "behind the message": tensor("BYTES", [1], 8, 16),
    "before the memory": tensor("BYTES", [1], -64, 8192),
    "behind the memory": tensor("BYTES", [1], 1 << 60, 8192),
    "the same block twice": answer(
        f'["executed",[[["m",1,"",[{BLOCK},{BLOCK}],[],null,true,false]],0,0,[],false]]'
    ),
    "no type": tensor("ODD", [1], 0, 16),
}


@pytest.mark.brute_force
def test_a_process_that_sends_an_invalid_message_is_killed(start: Start, health):
    instance, other = start(MORTAL), start(MORTAL, name="other")
    for what, junk in JUNK.items():
        error = kit.execution_error(instance, asks(junk))
        assert error == UNHEALTHY, what
        assert health.next().startswith(HERE), what
        assert health.next() == "", what
    assert said(instance, "again") == [b"again"]
    assert said(other, "unharmed") == [b"unharmed"]


@pytest.mark.brute_force
@pytest.mark.parametrize("how", ["says", "answers"])
def test_a_process_that_sends_half_a_message_is_killed(start, health, monkeypatch, how):
    monkeypatch.setattr(process, "_STALLED_S", 0.1)
    instance = start(MORTAL)
    half = "05000000ffffffff" + b"[".hex()
    assert kit.execution_error(instance, asks(f"{how} {half}")) == UNHEALTHY
    assert health.next() == HERE + "exited with code 1"
    assert health.next() == ""
    assert said(instance, "again") == [b"again"]
