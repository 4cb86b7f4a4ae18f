"""`compare` finds seeded differences and groups them by their condition."""

import dataclasses
import json

import numpy as np
import pytest
from replay.traffic import MS, events, inputs, request, response, write_capture

from triton_replay.__main__ import main
from triton_replay.capture.files import read_capture
from triton_replay.capture.records import Response
from triton_replay.comparing.comparison import compare_captures
from triton_replay.comparing.tolerances import Tolerances, parse_tolerances
from triton_replay.errors import ReplayError
from triton_replay.reporting.table import comparison_lines, failure_rows, failures_of

VALUES = inputs(120)


def right(number, x):
    return np.float32(2) * x


@pytest.fixture
def compared(tmp_path):
    """Compare correct responses with those of a function."""

    def compare(answering, against=right):
        a = write_capture(tmp_path / "a.trc", against, VALUES)
        b = write_capture(tmp_path / "b.trc", answering, VALUES)
        return compare_captures(read_capture(a), read_capture(b), Tolerances())

    return compare


def reported(comparison):
    """Return kind, output, number of requests and condition of each group."""
    return [(g.kind, g.output, len(g.requests), g.condition) for g in comparison.groups]


def only(condition, count):
    """Return the text of a condition that holds for all differing requests, and no others."""
    counts = f"{count} of {count} that differ, 0 of {120 - count} that are equal"
    return f"only where {condition}: {counts}"


def test_equal_responses_in_json_and_binary_do_not_differ(compared):
    found = compared(lambda n, x: response(n, right(n, x), binary=False))
    assert (found.compared, found.differing, found.groups) == (120, 0, ())


def test_rounding_is_reported_as_rounding(compared):
    def half(number, x):
        return right(number, x).astype(np.float16).astype(np.float32)

    found = compared(half)
    (group,) = found.groups
    assert (group.kind, group.model, group.output) == ("rounding", "m", "y")
    assert 0 < group.largest < 1e-3
    assert compared_again(found, "rel=1e-3").differing == 0


def compared_again(found, tolerance):
    return compare_captures(found.a, found.b, parse_tolerances([tolerance]))


def test_a_row_that_is_wrong_only_when_batched(compared):
    def wrong(number, x):
        y = right(number, x)
        if len(y) >= 3:
            y[1] = 7
        return y

    found = compared(wrong)
    assert reported(found) == [("values of some rows", "y", 60, only("rows is 3 or more", 60))]
    (group,) = found.groups
    assert f"1 of {len(VALUES[group.smallest.number])} rows" in group.example
    assert group.smallest.body_size == min(
        request(n, x).body_size for n, x in enumerate(VALUES) if len(x) >= 3
    )


def test_a_shape_that_is_wrong_only_for_long_inputs(compared):
    found = compared(lambda n, x: right(n, x)[:, :32])
    long = sum(x.shape[1] > 32 for x in VALUES)
    assert reported(found) == [
        ("shape", "y", long, only("size of axis 1 of x is 33 or more", long))
    ]


def test_a_rare_difference_has_no_condition(compared):
    found = compared(lambda n, x: right(n, x) + np.float32(n in (17, 64)))
    assert reported(found) == [("values", "y", 2, "")]


def test_a_difference_in_all_requests_is_reported_as_always(compared):
    assert reported(compared(lambda n, x: x)) == [("values", "y", 120, "always")]


def test_a_lost_stream_response_is_found(compared):
    found = compared(
        lambda n, x: events(n, 1, 2) if n == 3 else events(n, 1, 2, 3),
        against=lambda n, x: events(n, 1, 2, 3),
    )
    assert reported(found) == [("stream responses missing", "", 1, "")]
    assert found.groups[0].example == "3 and 2"


def test_statuses_error_texts_and_missing_answers_are_found(compared):
    def failed(number, status, text):
        body = json.dumps({"error": text}).encode()
        return Response(number, number, number, status, (), len(body), body)

    def first(number, x):
        return failed(number, 400, "bad shape") if number < 5 else right(number, x)

    def second(number, x):
        if number < 3:
            return failed(number, 400, "wrong shape")
        if number < 5:
            return failed(number, 500, "bad shape")
        if number == 5:
            return Response(number, 0, 0, 0, (), 0, ended="server")
        return right(number, x)

    found = compared(second, against=first)
    assert {(kind, count) for kind, _, count, _ in reported(found)} == {
        *(("error text", 3), ("status", 2), ("no complete response in B", 1)),
    }


def test_latencies_stand_side_by_side_without_a_verdict(compared):
    found = compared(lambda n, x: response(n, right(n, x), took=9 * MS if n % 10 == 0 else MS))
    (times,) = found.times
    assert [p.value // MS for p in times.summary_a.percentiles] == [1, 1, 1, 1]
    assert [p.value // MS for p in times.summary_b.percentiles] == [1, 1, 9, 9]
    assert found.differing == 0
    lines = [" ".join(line.split()) for line in comparison_lines(found)]
    assert "No verdict: A and B ran at different times" in "\n".join(lines)
    # The tail is 12 of 120: whether it reaches below p90 the interval leaves open.
    assert lines[-4:] == [
        "p50 1.00 [1.00..1.00] 1.00 [1.00..1.00] 1.00",
        "p90 1.00 [1.00..1.00] 1.00 [1.00..9.00] 1.00",
        "p95 1.00 [1.00..1.00] 9.00 [9.00..9.00] 9.00",
        "p99 1.00 [1.00..] 9.00 [9.00..] 9.00",
    ]


def quick_failure(number):
    return Response(number, 0, number * 10 * MS + MS // 100, 500, (), 2, b"{}")


def no_response(number):
    return Response(number, 0, number * 10 * MS, 0, (), 0, ended="client")


def truncated(number):
    return dataclasses.replace(response(number, VALUES[number]), ended="server")


def failed_event(number):
    body = b'data: {"error": "out of memory"}\n\n'
    headers = (("Content-Type", "text/event-stream"),)
    return Response(number, 0, number * 10 * MS, 200, headers, len(body), body)


@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        (quick_failure, "status 500"),
        (no_response, "no response"),
        (truncated, "incomplete response"),
        (failed_event, "error in the stream"),
    ],
)
def test_a_failed_request_counts_as_failure_and_not_as_latency(compared, failing, reason):
    def mostly_failing(number, x):
        return failing(number) if number % 5 < 3 else response(number, right(number, x))

    found = compared(mostly_failing)
    (times,) = found.times
    assert (times.requests, times.failures_a, times.failures_b) == (120, {}, {reason: 72})
    assert times.excluded == 72
    assert times.a == times.b == (MS,) * 48
    lines = [" ".join(line.split()) for line in comparison_lines(found)]
    assert f"m {reason} 0 72" in lines
    # Failures stand before differences and latencies.
    assert lines.index(f"m {reason} 0 72") < lines.index(
        "p50 1.00 [1.00..1.00] 1.00 [1.00..1.00] 1.00"
    )
    assert "without 72 of 120 requests that failed in A or B" in lines


def test_a_request_that_failed_in_one_capture_has_no_latency_in_the_other(compared):
    """The slow requests time out in B: without them B would look quicker."""

    def slow(number, x):
        return response(number, right(number, x), took=9 * MS if number % 10 == 0 else MS)

    found = compared(
        lambda n, x: no_response(n) if n % 10 == 0 else response(n, right(n, x)), against=slow
    )
    (times,) = found.times
    assert times.summary_a.percentiles == times.summary_b.percentiles
    assert times.excluded == 12


def test_failures_that_differ_most_are_first(compared):
    def failing(number, x):
        if number >= 20:
            return right(number, x)
        return truncated(number) if number < 5 else quick_failure(number)

    rows = failure_rows(
        failures_of(compared(failing, against=lambda n, x: truncated(n) if n < 2 else x))
    )
    assert rows == [("m", "status 500", 0, 15), ("m", "incomplete response", 2, 5)]


def test_a_model_that_always_fails_has_no_latency(compared):
    found = compared(lambda n, x: quick_failure(n))
    assert found.times[0].summary_b.count == 0
    lines = [" ".join(line.split()) for line in comparison_lines(found)]
    assert "m status 500 0 120" in lines
    assert not any(line.startswith("p50") for line in lines)


def test_captures_of_different_requests_are_not_compared(tmp_path):
    a = write_capture(tmp_path / "a.trc", right, VALUES)
    b = write_capture(tmp_path / "b.trc", right, VALUES[1:])
    with pytest.raises(ReplayError, match="with the same number differ"):
        compare_captures(read_capture(a), read_capture(b), Tolerances())


def test_the_command_ignores_fields(tmp_path, capsys):
    def versioned(number, x):
        body = b'{"model_version": "2", "parameters": {"ms": 3}}'
        return Response(number, 0, 1, 200, (), len(body), body)

    def first(number, x):
        body = b'{"model_version": "1"}'
        return Response(number, 0, 1, 200, (), len(body), body)

    a = write_capture(tmp_path / "a.trc", first, VALUES[:2])
    b = write_capture(tmp_path / "b.trc", versioned, VALUES[:2])
    assert main(["compare", str(a), str(b), "--ignore=model_version"]) == 1
    ignored = ["--ignore=model_version", "--ignore=id, parameters.ms"]
    assert main(["compare", str(a), str(b), *ignored]) == 0


@pytest.mark.parametrize("name", ["z", "m/z", "n/y"])
def test_a_tolerance_of_an_unknown_output_is_refused(tmp_path, capsys, name):
    a = write_capture(tmp_path / "a.trc", right, VALUES[:2])
    known = ["--tolerance=y:abs=1", "--tolerance=m/y:abs=1"]
    assert main(["compare", str(a), str(a), *known]) == 0
    capsys.readouterr()
    assert main(["compare", str(a), str(a), *known, f"--tolerance={name}:abs=1"]) == 2
    expected = f"--tolerance: found {name}; expected outputs of the responses: m/y"
    assert expected in capsys.readouterr().err


def test_an_output_that_only_b_has_is_known(tmp_path):
    a = write_capture(tmp_path / "a.trc", lambda n, x: quick_failure(n), VALUES[:2])
    b = write_capture(tmp_path / "b.trc", right, VALUES[:2])
    assert main(["compare", str(a), str(b), "--tolerance=y:abs=1"]) == 1


def test_redacted_responses_are_not_compared(compared):
    def redacted(number, x):
        return dataclasses.replace(response(number, x), redacted=True)

    assert compared(redacted).differing == 0


@pytest.mark.parametrize(
    ("speeds", "reported", "unlike"),
    [
        ((None, None), ["recorded at s:1", "recorded at s:1"], False),
        ((None, "1"), ["recorded at s:1", "replayed at speed 1 to s:1"], True),
        (("4", "max"), ["replayed at speed 4 to s:1", "replayed at speed max to s:1"], True),
        (("4", "4"), ["replayed at speed 4 to s:1", "replayed at speed 4 to s:1"], False),
    ],
)
def test_different_loads_are_reported_beside_the_latencies(
    tmp_path, capsys, speeds, reported, unlike
):
    paths = [
        write_capture(tmp_path / name, right, VALUES[:9], **({"speed": speed} if speed else {}))
        for name, speed in zip("ab", speeds, strict=True)
    ]
    page = tmp_path / "page.html"
    assert main(["compare", *map(str, paths), f"--html={page}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1].partition(",")[0] for line in lines[:2]] == reported
    for text in ("\n".join(lines), page.read_text()):
        assert ("A and B have different loads" in text) == unlike


def test_the_command_prints_groups_latencies_and_has_an_exit_code(tmp_path, capsys):
    a = write_capture(tmp_path / "a.trc", right, VALUES)
    b = write_capture(tmp_path / "b.trc", lambda n, x: x if len(x) > 3 else right(n, x), VALUES)
    assert main(["compare", str(a), str(a)]) == 0
    assert "the answers to 0 differ" in capsys.readouterr().out
    assert main(["compare", str(a), str(b), f"--smallest={tmp_path / 'small'}"]) == 1
    out = capsys.readouterr().out
    assert "120 requests compared, the answers to 30 differ" in out
    # The traffic itself is periodic.
    condition = "rows is 4 (or it is every 4th request of the model, from the 4th)"
    assert f"30 of 120 requests, {only(condition, 30)}" in out
    assert "p99" in out
    (one,) = read_capture(tmp_path / "small" / "group-1.trc").exchanges
    assert len(VALUES[one.request.number]) == 4
    assert main(["compare", str(a), str(b), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["differing"] == 30
    assert document["groups"][0]["kind"] == "values"
    (latencies,) = document["latencies"]
    assert latencies["a"]["percentiles"][0]["percent"] == 50
    assert (latencies["requests"], latencies["failures_b"], latencies["excluded"]) == (120, {}, 0)
    assert main(["compare", str(a), str(a), "--ignore=id,"]) == 2
    assert "--ignore: found 'id,', expected FIELD,..." in capsys.readouterr().err
    assert main(["compare", str(a), str(b), "--tolerance=y:near=1"]) == 2
    assert "with the keys abs, rel, scale, ulp, cosine, topk" in capsys.readouterr().err
