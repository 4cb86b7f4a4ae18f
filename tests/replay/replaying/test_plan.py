"""Plans: due times of requests, and their order."""

import gzip
import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request, Response
from triton_replay.replaying import plan
from triton_replay.wire.grpc_messages import with_prefix


def plan_replay(requests, speed):
    return plan.plan_replay([Exchange(request, None) for request in requests], speed)


def infer(number, at=0, connection=0, sequence=None, model="m", **more):
    parameters = {"parameters": {"sequence_id": sequence}} if sequence else {}
    body = json.dumps({"inputs": [], **parameters, **more}).encode()
    target = f"/v2/models/{model}/infer"
    return Request(number, connection, at, at, "POST", target, (), len(body), body)


def post(number, target, at=0, connection=0):
    return Request(number, connection, at, at, "POST", target, (), 0)


def after(*requests):
    """Return the numbers of the requests that each request waits for."""
    found = plan_replay(requests, 1)
    numbers = [step.exchange.request.number for step in found.steps]
    return {
        step.exchange.request.number: [numbers[index] for index in step.after]
        for step in found.steps
    }


def test_gaps_are_divided_by_the_speed():
    requests = [infer(1, at=700), infer(0, at=500), infer(2, at=900, connection=4)]
    assert [step.due for step in plan_replay(requests, 1).steps] == [0, 200, 400]
    assert [step.due for step in plan_replay(requests, 4).steps] == [0, 50, 100]
    assert [step.due for step in plan_replay(requests, None).steps] == [0, 0, 0]
    assert [step.exchange.request.number for step in plan_replay(requests, None).steps] == [0, 1, 2]


def exchanges(gap, took, connections=2):
    """Return 20 requests of each connection, each `gap` after the previous response."""
    return [
        Exchange(
            infer(number * connections + lane, at=number * (took + gap), connection=lane),
            Response(0, 0, number * (took + gap) + took, 200, (), 0),
        )
        for number in range(20)
        for lane in range(connections)
    ]


@pytest.mark.parametrize(
    ("gap", "took", "closed"),
    [
        (900_000, 300_000, True),
        (1_100_000, 300_000, False),
        (9_000_000, 100_000_000, True),
        (11_000_000, 100_000_000, False),
        (0, 0, False),  # a generated load, without responses
    ],
)
def test_a_closed_loop_is_found_by_its_think_times(gap, took, closed):
    found = plan.plan_replay(exchanges(gap, took), 1, "auto")
    assert found.closed == closed
    assert [step.think for step in found.steps[:4]] == [None, None, *[gap if closed else None] * 2]
    few = exchanges(gap, took)[:11]
    assert not plan.plan_replay(few, 1, "auto").closed


@pytest.mark.parametrize(("quick", "closed"), [(13, True), (12, False)])
def test_three_of_four_requests_of_a_closed_loop_follow_at_once(quick, closed):
    both = exchanges(0, 1000, 1)[:quick] + exchanges(10**9, 1000, 1)[:5]
    requests = [
        replace(one, request=replace(one.request, connection=int(number >= quick)))
        for number, one in enumerate(both)
    ]
    assert plan.plan_replay(requests, 1, "auto").closed == closed


def test_pipelined_requests_have_no_think_time():
    answer = Response(0, 0, 500, 200, (), 0)
    found = plan.plan_replay([Exchange(infer(n, at=n * 100), answer) for n in (0, 1)], 1, "closed")
    assert [step.think for step in found.steps] == [None, 0]


def test_think_times_are_divided_by_the_speed():
    recorded = exchanges(gap=800, took=100, connections=1)
    for speed, think in ((1, 800), (4, 200), (None, None)):
        found = plan.plan_replay(recorded, speed, "closed")
        assert (found.closed, found.steps[1].think) == (speed is not None, think)
    assert not plan.plan_replay(recorded, 1, "open").closed


def test_each_connection_is_a_lane():
    requests = [infer(0), infer(1, connection=4), infer(2), infer(3, connection=4)]
    assert plan_replay(requests, 1).lanes == {0: [0, 2], 1: [1, 3]}


def test_a_sequence_keeps_its_order_over_connections():
    assert after(
        infer(0, sequence=7),
        infer(1, connection=1, sequence=7),
        infer(2, connection=2, sequence=8),
        infer(3, connection=3, sequence=7, model="other"),
        infer(4, connection=4, sequence=7),
    ) == {0: [], 1: [0], 2: [], 3: [], 4: [1]}


def test_a_request_that_changes_the_server_is_executed_alone():
    load = "/v2/repository/models/m/load"
    assert after(
        infer(0),
        infer(1, connection=1),
        post(2, load, connection=2),
        infer(3, connection=1),
        infer(4, connection=3),
        post(5, load, connection=4),
        infer(6),
        post(7, "/v2/repository/index", connection=5),
        infer(8, connection=6),
    ) == {0: [], 1: [], 2: [0, 1], 3: [2], 4: [2], 5: [2, 3, 4], 6: [5], 7: [5], 8: [5]}


def test_requests_that_cannot_be_sent_are_counted():
    too_long = Request(0, 0, 0, 0, "POST", "/v2/models/m/infer", (), 99)
    region = infer(1, outputs=[{"parameters": {"shared_memory_region": "r"}}])
    register = post(2, "/v2/systemsharedmemory/region/r/register")
    found = plan_replay([too_long, region, register, infer(3)], 1)
    assert [step.exchange.request.number for step in found.steps] == [3]
    assert dict(found.left_out) == {
        "requests without a body in the capture": 1,
        "requests with shared memory, whose content is not in the capture": 2,
    }


@given(
    st.lists(
        st.tuples(
            st.integers(0, 50), st.integers(0, 3), st.sampled_from([None, 5, 6]), st.booleans()
        )
    )
)
def test_no_plan_deadlocks(drawn):
    requests = [
        post(number, "/v2/repository/models/m/load", at, connection)
        if changes
        else infer(number, at, connection, sequence)
        for number, (at, connection, sequence, changes) in enumerate(drawn)
    ]
    found = plan_replay(requests, 2)
    assert len(found.steps) == len(requests)
    # All that a step waits for is before it, on its connection as well.
    assert all(earlier < index for index, step in enumerate(found.steps) for earlier in step.after)
    assert all(lane == sorted(lane) for lane in found.lanes.values())
    assert [step.due for step in found.steps] == sorted(step.due for step in found.steps)


def call(number, method="ModelInfer", at=0, end=0, connection=0, body=b"\0\0\0\0\0"):
    target = f"/inference.GRPCInferenceService/{method}"
    sent = Request(number, connection, at, at, "POST", target, (), len(body), body, protocol="grpc")
    return Exchange(sent, Response(number, end, end, 200, (), 0))


def test_a_grpc_connection_has_a_lane_for_each_concurrent_call():
    calls = [
        *(call(0, at=0, end=10), call(1, at=5, end=30), call(2, at=12, end=14)),
        *(call(3, at=20, end=40), call(4, at=25, end=26), call(5, at=0, connection=1)),
    ]
    lanes = {s.exchange.request.number: s.lane for s in plan.plan_replay(calls, 1).steps}
    assert lanes[0] == lanes[2] == lanes[3]
    assert len({lanes[0], lanes[1], lanes[4], lanes[5]}) == 4


def test_only_grpc_calls_that_change_the_server_are_executed_alone():
    calls = [
        *(call(0, "ModelReady"), call(1, "RepositoryModelLoad"), call(2), call(3, "ServerLive")),
    ]
    assert [step.after for step in plan.plan_replay(calls, 1).steps] == [(), (0,), (1,), (1,)]


def test_requests_with_shared_memory_are_skipped():
    region = {"inputs": [{"name": "x", "parameters": {"shared_memory_region": "r"}}]}
    inside = infer(0, **region)
    packed = gzip.compress(inside.body)
    gzipped = replace(
        infer(1), headers=(("Content-Encoding", "gzip"),), body=packed, body_size=len(packed)
    )
    length = (("Inference-Header-Content-Length", str(len(infer(2).body))),)
    binary = infer(2).body + b"shared_memory_region"  # the bytes of a tensor
    tensor = replace(infer(2), headers=length, body=binary, body_size=len(binary))
    found = plan_replay([inside, gzipped, tensor], 1)
    assert [step.exchange.request.number for step in found.steps] == [2]


def test_calls_with_shared_memory_are_skipped():
    region = b"shared_memory_region"
    calls = [
        *(call(0, body=b"\1\0\0\0\0"), call(1, "SystemSharedMemoryRegister"), call(2)),
        call(3, body=with_prefix(region)),
        call(4, body=with_prefix(gzip.compress(region), compressed=True)),
        call(5, body=with_prefix(zlib.compress(region), compressed=True)),
    ]
    found = plan.plan_replay(calls, 1)
    assert [step.exchange.request.number for step in found.steps] == [0, 2]
    assert sorted(found.left_out.values()) == [4]
