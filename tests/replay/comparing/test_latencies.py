"""Latencies of captures: response and service times, streams, and replays that were late."""

from dataclasses import replace

import pytest
from replay.traffic import inputs, request, response, write_capture

from triton_replay.capture.files import Exchange, read_capture
from triton_replay.capture.records import Closing, StreamMessage
from triton_replay.comparing.comparison import compare_captures
from triton_replay.comparing.latencies import latencies, percentiles
from triton_replay.comparing.tolerances import parse_tolerances
from triton_replay.reporting.hdr import hdr_lines
from triton_replay.reporting.page import comparison_page
from triton_replay.reporting.table import comparison_document, comparison_lines

VALUES = inputs(20)


def values_of(percentiles):
    return [one.value for one in percentiles]


def exchange(number, waited=0, took=1000, parts=(), messages=(), protocol="http"):
    sent = replace(request(number, VALUES[0]), at=0, end=waited, protocol=protocol)
    answer = replace(response(number, VALUES[0]), end=waited + took, parts=parts)
    return Exchange(sent, answer, messages)


def test_service_times_count_from_the_sending_of_a_request():
    found = latencies([exchange(n, waited=n * 100) for n in range(1, 5)])[1]
    assert values_of(found.percentiles) == [1200, 1400, 1400, 1400]
    assert values_of(found.service) == [1000] * 4
    assert found.first == found.between == ()


def test_streams_have_times_of_the_first_and_between_the_responses():
    messages = tuple(StreamMessage(0, False, at, 0) for at in (7, 19))
    call = exchange(0, waited=5, messages=messages, protocol="grpc")
    several = exchange(
        1, waited=1, messages=(*messages, StreamMessage(0, True, 8, 0)), protocol="grpc"
    )
    chunks = exchange(2, waited=5, parts=((15, 1), (18, 2), (38, 3)))
    kind = (("Content-Type", "text/event-stream"),)
    events = replace(chunks, response=replace(chunks.response, headers=kind))
    single = exchange(3, messages=messages[:1], protocol="grpc")
    found = latencies([call, several, chunks, events, single, exchange(4)])[1]
    assert values_of(found.first) == [2, 10, 10, 10]
    assert values_of(found.between) == [12, 20, 20, 20]


@pytest.mark.parametrize(("count", "shown"), [(1999, 4), (2000, 5)])
def test_the_highest_percentile_needs_many_values(count, shown):
    found = percentiles(range(1, count + 1))
    assert len(found) == shown
    assert (found[-1].percent, found[-1].value) == {4: (99, 1980), 5: (99.9, 1998)}[shown]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    a, b = (
        read_capture(write_capture(folder / f"{name}.trc", lambda _, x: x, VALUES)) for name in "ab"
    )
    waiting = [
        replace(one, request=replace(one.request, at=one.request.at - 5_000_000))
        for one in b.exchanges
    ]
    return compare_captures(a, replace(b, exchanges=tuple(waiting)), parse_tolerances([]))


def test_latencies_are_written_for_the_plotter_of_hdrhistogram():
    lines = list(hdr_lines([n * 1_000_000 for n in range(100, 0, -1)]))
    rows = [line.split() for line in lines[2:-3]]
    assert rows[0] == ["1.000", "0.000000000000", "1", "1.00"]
    assert rows[5] == ["50.000", "0.500000000000", "50", "2.00"]
    assert [float(row[1]) for row in rows[4:8]] == pytest.approx([0.4, 0.5, 0.55, 0.6])
    assert rows[-1] == ["100.000", "1.000000000000", "100"]
    assert all(int(row[2]) == float(row[0]) for row in rows)
    assert lines[-2] == "#[Max     =      100.000, Total count    =          100]"
    assert list(hdr_lines([5_000_000]))[2].split() == ["5.000", "1.000000000000", "1"]


def test_service_times_are_shown_beside_response_times(comparison):
    rows = {line[:24].strip(): line[24:].split() for line in comparison_lines(comparison)}
    assert (rows["p50"][0], rows["p50"][2]) == ("1.00", "6.00")
    assert (rows["p50 service"][0], rows["p50 service"][2]) == ("1.00", "1.00")
    assert "<td>p99 service<td" in comparison_page(comparison)


@pytest.mark.parametrize(("loop", "alike"), [("closed", False), ("open", True)])
def test_replays_of_different_loops_have_different_loads(comparison, loop, alike):
    a, b = (
        replace(one, opening=replace(one.opening, settings={"speed": "1", "loop": each}))
        for one, each in ((comparison.a, loop), (comparison.b, "open"))
    )
    text = "\n".join(comparison_lines(replace(comparison, a=a, b=b)))
    assert ("A and B have different loads" in text) != alike
    shadowed = replace(a, opening=replace(a.opening, settings={"shadow_of": "s:1"}))
    text = "\n".join(comparison_lines(replace(comparison, a=shadowed)))
    assert "shadow stored only requests whose responses differ" in text
    assert "ran at different times" not in text


@pytest.mark.parametrize("late", [1, 2])
def test_a_late_replay_has_no_latencies(comparison, late):
    counts = {"requests": 100, "late": late, "largest": 32_000_000}
    late_b = replace(comparison.b, closing=Closing(0, "stopped", {}, counts))
    found = replace(comparison, b=late_b)
    text, page = "\n".join(comparison_lines(found)), comparison_page(found)
    reason = "B: 2 of 100 requests were sent 10 to 32 ms late"
    assert (reason in text, reason in page) == (late == 2, late == 2)
    assert ("p50" in text, "<svg" in page) == (late == 1, late == 1)
    assert comparison_document(found)["b"]["lateness"] == counts
