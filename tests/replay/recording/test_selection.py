"""Sampling: the share, reproducibility, and whole sequences."""

import json

from triton_replay.capture.records import Request
from triton_replay.recording.recorder import Selection


def infer(number, sequence=None, model="m"):
    parameters = {} if sequence is None else {"parameters": {"sequence_id": sequence}}
    body = json.dumps({"inputs": [], **parameters}).encode()
    target = f"/v2/models/{model}/infer"
    return Request(number, 0, 0, 0, "POST", target, (), len(body), body)


def taken(selection, requests):
    return [request.number for request in requests if selection.takes(request)]


def test_a_share_is_kept_reproducibly():
    requests = [infer(number) for number in range(4000)]
    first = taken(Selection(0.25, 1), requests)
    assert 900 < len(first) < 1100
    assert first == taken(Selection(0.25, 1), requests)
    assert first != taken(Selection(0.25, 2), requests)


def test_shares_of_zero_and_one():
    requests = [infer(number) for number in range(50)]
    assert taken(Selection(0.0), requests) == []
    assert len(taken(Selection(1.0), requests)) == 50


def test_a_sequence_is_kept_or_skipped_as_a_whole():
    selection = Selection(0.5)
    fates = [
        {selection.takes(infer(step, sequence, model)) for step in range(20)}
        for model in ("a", "b")
        for sequence in (*range(1, 15), "a word")
    ]
    assert all(len(fate) == 1 for fate in fates)
    assert {True} in fates
    assert {False} in fates


def test_requests_that_change_the_server_are_always_kept():
    target = "/v2/systemsharedmemory/region/r/register"
    requests = [Request(n, 0, 0, 0, "POST", target, (), 0) for n in range(20)]
    assert len(taken(Selection(0.0), requests)) == 20
