"""The fuzz targets accept valid inputs, random changes of them, and saved inputs.

The bytes are the same in every run; `make fuzz` runs the same targets guided by coverage.
"""

import random

import pytest
from support.mutations import mutated

from benchmarks.attack import kept
from benchmarks.attack.decoders import TARGETS, Defect, expect, seeds

EACH = 200


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_make_a_decoder_raise(name):
    good, dice = seeds(name), random.Random(1)
    assert good
    for data in (*kept(name), *good, *(mutated(dice.choice(good), dice) for _ in range(EACH))):
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"{name} of {data!r}") from error


def test_a_failed_expectation_raises_a_defect():
    expect(True, "nothing")
    with pytest.raises(Defect, match="something"):
        expect(False, "something")


def test_a_difference_between_readers_is_detected(monkeypatch):
    monkeypatch.setattr("benchmarks.attack.decoders.rapid_json.loads", lambda data: [])
    with pytest.raises(Defect, match="exact reader"):
        TARGETS["json_document"](b"{}")


def test_an_unexpected_exception_is_detected_although_it_gets_a_response(monkeypatch):
    def broken(*arguments, **more):
        raise KeyError("unforeseen")

    monkeypatch.setattr("reference_server.codecs.infer_json.json_length", broken)
    monkeypatch.setattr("reference_server.codecs.rapid_json.loads", broken)
    body = b'{"inputs":[]}'
    with pytest.raises(KeyError, match="unforeseen"):
        TARGETS["http"](
            b"POST /v2/models/vector/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
