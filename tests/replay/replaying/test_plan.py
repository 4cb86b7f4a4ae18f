"""Plans: when requests are due, and which ones wait for which."""

import json

from hypothesis import given
from hypothesis import strategies as st

from triton_replay.capture.records import Request
from triton_replay.replaying.plan import plan_replay


def infer(number, at=0, connection=0, sequence=None, model="m", **more):
    parameters = {"parameters": {"sequence_id": sequence}} if sequence else {}
    body = json.dumps({"inputs": [], **parameters, **more}).encode()
    target = f"/v2/models/{model}/infer"
    return Request(number, connection, at, at, "POST", target, (), len(body), body)


def post(number, target, at=0, connection=0):
    return Request(number, connection, at, at, "POST", target, (), 0)


def after(*requests):
    """The numbers that each request waits for."""
    plan = plan_replay(requests, 1)
    numbers = [step.request.number for step in plan.steps]
    return {step.request.number: [numbers[index] for index in step.after] for step in plan.steps}


def test_gaps_are_kept_from_the_first_request_on_and_divided_by_the_speed():
    requests = [infer(1, at=700), infer(0, at=500), infer(2, at=900, connection=4)]
    assert [step.due for step in plan_replay(requests, 1).steps] == [0, 200, 400]
    assert [step.due for step in plan_replay(requests, 4).steps] == [0, 50, 100]
    assert [step.due for step in plan_replay(requests, None).steps] == [0, 0, 0]
    assert [step.request.number for step in plan_replay(requests, None).steps] == [0, 1, 2]


def test_each_connection_is_a_lane():
    requests = [infer(0), infer(1, connection=4), infer(2), infer(3, connection=4)]
    assert plan_replay(requests, 1).lanes == {0: [0, 2], 4: [1, 3]}


def test_a_sequence_keeps_its_order_over_connections():
    assert after(
        infer(0, sequence=7),
        infer(1, connection=1, sequence=7),
        infer(2, connection=2, sequence=8),
        infer(3, connection=3, sequence=7, model="other"),
        infer(4, connection=4, sequence=7),
    ) == {0: [], 1: [0], 2: [], 3: [], 4: [1]}


def test_what_changes_the_server_waits_for_all_before_it_and_is_waited_for():
    load = "/v2/repository/models/m/load"
    assert after(
        infer(0),
        infer(1, connection=1),
        post(2, load, connection=2),
        infer(3, connection=1),
        infer(4, connection=3),
        post(5, load, connection=4),
        infer(6),
    ) == {0: [], 1: [], 2: [0, 1], 3: [2], 4: [2], 5: [2, 3, 4], 6: [5]}


def test_what_cannot_be_sent_is_left_out_and_counted():
    too_long = Request(0, 0, 0, 0, "POST", "/v2/models/m/infer", (), 99)
    region = infer(1, outputs=[{"parameters": {"shared_memory_region": "r"}}])
    register = post(2, "/v2/systemsharedmemory/region/r/register")
    plan = plan_replay([too_long, region, register, infer(3)], 1)
    assert [step.request.number for step in plan.steps] == [3]
    assert dict(plan.left_out) == {
        "requests whose bodies are not in the capture": 1,
        "requests in shared memory, whose contents are not in the capture": 2,
    }


@given(
    st.lists(
        st.tuples(
            st.integers(0, 50), st.integers(0, 3), st.sampled_from([None, 5, 6]), st.booleans()
        )
    )
)
def test_no_plan_can_come_to_a_standstill(drawn):
    requests = [
        post(number, "/v2/repository/models/m/load", at, connection)
        if changes
        else infer(number, at, connection, sequence)
        for number, (at, connection, sequence, changes) in enumerate(drawn)
    ]
    plan = plan_replay(requests, 2)
    assert len(plan.steps) == len(requests)
    # All that a step waits for is before it, on its connection as well.
    assert all(earlier < index for index, step in enumerate(plan.steps) for earlier in step.after)
    assert all(lane == sorted(lane) for lane in plan.lanes.values())
    assert [step.due for step in plan.steps] == sorted(step.due for step in plan.steps)
