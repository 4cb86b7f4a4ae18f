"""Filters of requests: models, times and conditions."""

import argparse

import pytest
from replay.traffic import MS, inputs, request, response, write_records

from triton_replay.__main__ import main
from triton_replay.capture.files import Capture, Exchange, read_capture
from triton_replay.capture.records import Closing, Opening, Request, Response
from triton_replay.commands.filtering import add_filter_options, filter_of
from triton_replay.errors import ReplayError
from triton_replay.wire.grpc_messages import framed, messages

VALUES = inputs(4)


def exchanges():
    """Return four requests of `m`, a call of `n`, a failed request, and one without response."""
    found = [
        Exchange(request(number, x), response(number, x, took=(number + 1) * MS))
        for number, x in enumerate(VALUES)
    ]
    body = framed([messages.ModelInferRequest(model_name="n")])
    target = "/inference.GRPCInferenceService/ModelInfer"
    call = Request(4, 7, 10**9, 10**9, "POST", target, (), len(body), body, protocol="grpc")
    status = (("grpc-status", "5"),)
    found.append(Exchange(call, Response(4, 2 * 10**9, 2 * 10**9, 200, (), 0, trailers=status)))
    trace = (("X-Trace", "a b"),)
    failed = Request(5, 8, 2 * 10**9, 2 * 10**9, "GET", "/v2/models/m/ready", trace, 0)
    found.append(Exchange(failed, Response(5, 2 * 10**9, 2 * 10**9, 503, (), 0)))
    last = Request(6, 8, 3 * 10**9, 3 * 10**9, "GET", "/v2", (), 0)
    return [*found, Exchange(last, None)]


def capture(numbers=range(7)):
    kept = tuple(one for one in exchanges() if one.request.number in numbers)
    return Capture("a.trc", Opening("s:1", "now", "0", {}), kept, Closing(0, "stopped", {}), None)


def filtered(*words, **options):
    parser = argparse.ArgumentParser()
    add_filter_options(parser)
    return filter_of(parser.parse_args(words), **options)


def numbers(found):
    return [one.request.number for one in found.exchanges]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6]),
        (["--model=m"], [0, 1, 2, 3]),
        (["--model=[mn]"], [0, 1, 2, 3, 4]),
        (["--model=n", "--model=/v2"], [4, 6]),
        (["--between=1:2"], [4]),
        (["--between=:0.02"], [0, 1]),
        (["--between=2:"], [5, 6]),
        (["--where=number>=5"], [5, 6]),
        (["--where=connection = 8"], [5, 6]),
        (["--where=protocol!=http"], [4]),
        (["--where=method=GET"], [5, 6]),
        (["--where=target~/infer$"], [0, 1, 2, 3]),
        (["--where=status=200"], [0, 1, 2, 3]),
        (["--where=status>=300"], [5]),
        (["--where=status<6"], [4]),
        (["--where=status=none"], [6]),
        (["--where=latency>2", "--where=latency<=4"], [2, 3]),
        (["--where=request=0"], [5, 6]),
        (["--where=response>0"], [0, 1, 2, 3]),
        (["--where=messages<1"], [0, 1, 2, 3, 4, 5, 6]),
        (["--where=header.x-trace=a b"], [5]),
        (["--model=m", "--between=:1", "--where=latency>3.5"], [3]),
    ],
)
def test_requests_are_selected(words, kept):
    assert numbers(filtered(*words).apply(capture())) == kept


def test_a_comparison_has_the_requests_selected_in_a():
    a, b = capture(range(1, 7)), capture(range(6))
    first, second = filtered("--model=m").apply_to_both(a, b)
    assert (numbers(first), numbers(second)) == ([1, 2, 3], [0, 1, 2, 3])
    first, second = filtered("--where=status=none").apply_to_both(a, b)
    assert (numbers(first), numbers(second)) == ([6], [])


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--between=5"], "--between: found '5', expected START:END in seconds"),
        (["--between=5:4"], "--between: found '5:4'"),
        (["--between=a:4"], "--between: found 'a:4'"),
        (["--where=rows"], "--where: found 'rows', expected a field, one of ="),
        (["--where=colour=1"], "the fields are number, connection,"),
        (["--where=latency>slow"], "expected a number after >"),
        (["--where=target~("], "expected a regular expression after ~"),
    ],
)
def test_an_invalid_filter_is_refused(words, reported):
    with pytest.raises(ReplayError) as error:
        filtered(*words)
    assert reported in str(error.value)


def test_requests_without_a_response_are_selected_by_their_own_fields():
    big = Exchange(Request(1234567, 0, 0, 0, "GET", "/v2", (), 0), None)
    assert filtered("--where=number=1234567", before_response=True).keeps(big)
    with pytest.raises(ReplayError, match=r"target, request and header\.NAME$"):
        filtered("--where=status=200", before_response=True)


def test_a_filter_that_selects_nothing_names_the_models(tmp_path, capsys):
    records = (each for one in exchanges()[:5] for each in (one.request, one.response))
    path = write_records(tmp_path / "a.trc", *records)
    assert len(read_capture(path).exchanges) == 5
    assert main(["show", str(path), "--model=x"]) == 2
    assert "select none of 5 requests; its models are m, n" in capsys.readouterr().err
    assert main(["show", str(path), "--model=n"]) == 0
    assert f"{path}: 1 requests to" in capsys.readouterr().out
    assert main(["compare", str(path), str(path), "--model=m"]) == 0
    assert "4 requests compared" in capsys.readouterr().out
