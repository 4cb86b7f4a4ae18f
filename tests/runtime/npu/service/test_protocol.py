"""Messages as bytes: what is packed comes out again, and nothing else does."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.errors import (
    ConfigFault,
    EngineFault,
    EngineLost,
    OutOfMemory,
    RuntimeFault,
    ShapeMismatch,
)
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.npu.service.protocol import (
    HEADER_BYTES,
    LAYOUT_AT,
    MOST_BYTES,
    VERSION,
    Done,
    ExecutionLayout,
    Kind,
    ProtocolError,
    RemoteCause,
    fault_as_json,
    fault_of,
    framed,
    intermediates_as_json,
    intermediates_of,
    pack_done,
    pack_json,
    pack_layout,
    pack_run,
    signature_as_json,
    signature_of,
    unframed,
    unpack_done,
    unpack_json,
    unpack_layout,
    unpack_run,
)
from ge_runtime.specs import DType

pytestmark = pytest.mark.brute_force

dims = st.lists(st.integers(0, 2**63 - 1), max_size=5).map(tuple)
buffers = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), dims)
placed = st.tuples(st.integers(0, 2**16 - 1), buffers)
seconds = st.floats(0, allow_nan=False)


@given(st.sampled_from(Kind), st.binary(max_size=100))
def test_frames_come_apart_as_they_were_put_together(kind, body):
    assert unframed(framed(kind, body)) == (kind, body)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused(packet):
    with pytest.raises(ProtocolError):
        unframed(packet)


@given(st.data(), st.sampled_from(Kind), st.binary(max_size=50))
def test_header_with_any_other_bit_is_refused(data, kind, body):
    packet = bytearray(framed(kind, body))
    bit = data.draw(st.integers(0, 8 * HEADER_BYTES - 1))
    packet[bit // 8] ^= 1 << bit % 8
    try:
        found, _ = unframed(bytes(packet))
    except ProtocolError:
        return
    assert found is not kind  # of all bits only those of the kind may mean something else


def test_another_version_is_reported_with_both():
    packet = bytearray(framed(Kind.RUN, b""))
    packet[4] = 7
    with pytest.raises(ProtocolError, match=f"found version 7 of the protocol, expected {VERSION}"):
        unframed(bytes(packet))


@given(st.lists(buffers, max_size=5), st.lists(placed, max_size=5))
def test_layouts_come_back_whole(inputs, outputs):
    layout = unpack_layout(pack_layout(inputs, outputs))
    assert layout == ExecutionLayout(tuple(inputs), tuple(outputs))


@given(st.binary(max_size=200))
def test_layouts_of_any_bytes_are_layouts_or_refused(data):
    try:
        layout = unpack_layout(data)
    except ProtocolError:
        return
    assert pack_layout(layout.inputs, layout.outputs) == data


@given(st.lists(buffers, min_size=1, max_size=3), st.data())
def test_layout_cut_short_or_with_more_behind_it_is_refused(inputs, data):
    whole = pack_layout(inputs, [])
    cut = data.draw(st.integers(0, len(whole) - 1))
    for broken in (whole[:cut], whole + b"\0"):
        with pytest.raises(ProtocolError):
            unpack_layout(broken)


@given(st.integers(0, 2**64 - 1), st.one_of(seconds, st.just(math.inf)), st.integers(0, 2**32 - 1))
def test_executions_come_back_whole(sequence, within_s, filled):
    layout = pack_layout([(1, 64, (2, 3))], [])
    kind, body = unframed(pack_run(sequence, within_s, layout, filled))
    assert kind is Kind.RUN
    assert unpack_run(body) == (sequence, within_s, filled)
    assert body[LAYOUT_AT:] == layout


@pytest.mark.parametrize("body", [b"", b"x" * 19, pack_run(1, math.nan, b"")[HEADER_BYTES:]])
def test_executions_that_are_none_are_refused(body):
    with pytest.raises(ProtocolError):
        unpack_run(body)


@given(
    st.builds(
        Done,
        st.integers(0, 2**64 - 1),
        seconds,
        seconds,
        st.lists(placed, max_size=3).map(tuple),
        st.none() | st.lists(st.text(max_size=20), min_size=3, max_size=3),
    )
)
def test_ends_of_executions_come_back_whole(done):
    kind, body = unframed(pack_done(done))
    assert (kind, unpack_done(body)) == (Kind.DONE, done)


@given(st.binary(max_size=200))
def test_ends_of_any_bytes_are_ends_or_refused(body):
    with contextlib.suppress(ProtocolError):
        unpack_done(body)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"1", b"[" * 100_000])
def test_control_messages_are_objects(body):
    with pytest.raises(ProtocolError):
        unpack_json(body)


def test_signatures_come_back_whole():
    signature = Signature(
        (
            GraphTensor("x", DType.FP32, (None, 3), ("batch", None)),
            GraphTensor("any", DType.BF16, None),
        ),
        (GraphTensor("y", DType.BYTES, ()),),
    )
    packed = unpack_json(pack_json(signature_as_json(signature)))
    assert signature_of(packed) == signature
    assert [t.symbols for t in signature_of(packed).inputs] == [("batch", None), ()]


@pytest.mark.parametrize(
    "intermediates", [None, Intermediates((Lifetime("a/b", 2**40, 0, 7),), unsized=2)]
)
def test_intermediates_come_back_whole(intermediates):
    packed = unpack_json(pack_json({"here": intermediates_as_json(intermediates)}))
    assert intermediates_of(packed["here"]) == intermediates


@pytest.mark.parametrize("kind", [EngineFault, EngineLost, OutOfMemory, RuntimeFault])
def test_faults_keep_class_text_and_cause(kind):
    error = kind("found ñ, expected n")
    error.__cause__ = KeyError("behind it")
    fault = fault_of(fault_as_json(error))
    assert (type(fault), str(fault)) == (kind, "found ñ, expected n")
    assert isinstance(fault.__cause__, RemoteCause)
    assert str(fault.__cause__) == "KeyError: 'behind it'"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ZeroDivisionError("by zero"), RuntimeFault, "ZeroDivisionError: by zero"),
        (ShapeMismatch("too long"), RuntimeFault, "too long"),
        (ConfigFault("m", ["a", "b"]), RuntimeFault, str(ConfigFault("m", ["a", "b"]))),
    ],
)
def test_faults_without_a_class_of_their_own_here_keep_their_text(error, kind, text):
    fault = fault_of(fault_as_json(error))
    assert (type(fault), str(fault), fault.__cause__) == (kind, text, None)


def test_fault_fits_a_packet_however_long_its_text_is():
    error = EngineFault("\U0001f600" * 100_000)
    error.__cause__ = ValueError("\0" * 100_000)
    packet = pack_done(Done(1, 0.0, 0.0, fault=fault_as_json(error)))
    assert len(packet) < 4 * MOST_BYTES
